"""Our own CSV, files that are wrong, and the parts and speeds of a trace."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scheduling.small_trace import small_trace, trace_csv
from planner.many_jobs.traces.cellplan_csv import COLUMNS
from planner.many_jobs.traces.read import SMALL_TRACE, read_trace
from planner.many_jobs.traces.records import Trace, TraceRow, head, load, window
from profiles.errors import InputError

HEADER = "job_id,submit_time_s,duration_s,gpus,user,deadline_s"
DATA = Path(__file__).parents[5] / "shared" / "data" / "traces"


def written(folder: Path, *lines: str, header: str = HEADER) -> Path:
    """A trace file of these lines."""
    path = folder / "trace.csv"
    path.write_text("\n".join((header, *lines)) + "\n", encoding="utf-8")
    return path


def row(id_: str, submit_time_s: float, deadline_s: float | None = None) -> TraceRow:
    """A row that matters by its times alone."""
    return TraceRow(line=2, job_id=id_, submit_time_s=submit_time_s, duration_s=60.0, gpus=1, deadline_s=deadline_s)


def trace_of(*rows: TraceRow) -> Trace:
    """A trace of rows that are in order."""
    return Trace(source="t", format="cellplan", rows=rows, zero=datetime(2024, 1, 1))


def test_columns_and_rows_have_the_same_names() -> None:
    assert {field.name for field in fields(TraceRow)} == {"line", *COLUMNS}


def test_every_column_is_read(tmp_path: Path) -> None:
    planned = "99,-2,1,7,3,Yes,gpu7:8 gpu3:4"
    cells = f"a,5,60.5,8,2,64,512.5,ann,lab,train,Killed,30,bert-1.3b,128,1e3,a100-80gb,{planned},extra"
    (one,) = read_trace(written(tmp_path, cells, header=",".join(COLUMNS) + ",more")).rows
    assert one == TraceRow(
        line=2,
        job_id="a",
        submit_time_s=5.0,
        duration_s=60.5,
        gpus=8,
        nodes=2,
        cpus=64.0,
        mem_gb=512.5,
        user="ann",
        vc_or_department="lab",
        job_type_or_name="train",
        status="cancelled",
        queue_s=30.0,
        model="bert-1.3b",
        global_batch=128,
        iterations=1000.0,
        device="a100-80gb",
        deadline_s=99.0,
        priority=-2,
        planned_s=1.0,
        planned_for_s=7.0,
        cancelled_s=3.0,
        preemptible=True,
        hosts=(("gpu7", 8), ("gpu3", 4)),
    )
    assert read_trace(tmp_path / "trace.csv").ignored_columns == ("more",)


def test_blank_cells_and_lines_say_nothing(tmp_path: Path) -> None:
    cells = "a,5,60,8" + "," * (len(COLUMNS) - 4)
    (one,) = read_trace(written(tmp_path, "", cells, "", header=",".join(COLUMNS))).rows
    assert one == TraceRow(line=3, job_id="a", submit_time_s=5.0, duration_s=60.0, gpus=8)


PLANS = "job_id,submit_time_s,duration_s,gpus,planned_s,planned_for_s,cancelled_s,preemptible"


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("50.5,,,", r"line 3: planned_s: found 50.5, expected a time of day not after submit_time_s \(50\)"),
        ("40,39,,", r"line 3: planned_for_s: found 39, expected a time of day not before planned_s \(40\)"),
        ("40,,39,", r"line 3: cancelled_s: found 39, expected a time of day not before planned_s \(40\)"),
        (",60,,", r"line 3: planned_s: found nothing, expected when it was announced, as planned_for_s says 60"),
        (",,60,", r"line 3: planned_s: found nothing, expected when it was announced, as cancelled_s says 60"),
        ("-1,,,", r"line 3: planned_s: found '-1', expected a number of at least 0"),
        (",,,perhaps", r"line 3: preemptible: found 'perhaps', expected yes or no"),
    ],
)
def test_what_cannot_be_planned_is_refused(tmp_path: Path, cells: str, message: str) -> None:
    path = written(tmp_path, "a,0,1,1,,,,", f"b,50,1,1,{cells}", header=PLANS)
    with pytest.raises(InputError, match=message):
        read_trace(path)
    assert [one.job_id for one in read_trace(path, lenient=True).rows] == ["a"]


def test_announcements_move_along(tmp_path: Path) -> None:
    path = written(tmp_path, "a,10,1,1,,,,no", "b,50,1,1,30,60,,", "c,90,1,1,90,,95,1", header=PLANS)
    trace = read_trace(path)
    faster = load(trace, 2.0).rows
    assert [(one.submit_time_s, one.planned_s, one.planned_for_s) for one in faster] == [
        (10.0, None, None),
        (30.0, 10.0, 40.0),
        (50.0, 50.0, None),
    ]
    assert faster[2].cancelled_s == 55.0
    (kept,) = window(trace, 40.0, 60.0).rows
    assert (kept.submit_time_s, kept.planned_s, kept.planned_for_s) == (10.0, -10.0, 20.0)


def test_rows_are_sorted_and_those_of_one_time_keep_their_order(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "c,7,1,1,,", "b,3,1,1,,", "a,7,1,1,,", "d,0,1,1,,"))
    assert [one.job_id for one in trace.rows] == ["d", "b", "c", "a"]
    assert trace.zero is None


def test_fractions_are_rounded_up_and_counted_or_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a,0,1,0.5,,", "b,1,1,2.25,,", "c,2,1,3.0,,")
    trace = read_trace(path)
    assert [one.gpus for one in trace.rows] == [1, 3, 3]
    assert trace.rounded_up == 2
    with pytest.raises(InputError, match=r"line 2: gpus: found 0.5 GPUs"):
        read_trace(path, fractional="refuse")
    assert [one.job_id for one in read_trace(path, fractional="refuse", lenient=True).rows] == ["c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,0,1", r"line 3: found 3 cells, expected 6"),
        ("a,0,1,1,,,9", r"line 3: found 7 cells, expected 6"),
        (",0,1,1,,", r"line 3: job_id: found nothing, expected an id"),
        ("a,,1,1,,", r"line 3: submit_time_s: found nothing"),
        ("a,-5,1,1,,", r"line 3: submit_time_s: found '-5'"),
        ("a,noon,1,1,,", r"line 3: submit_time_s: found 'noon'"),
        ("a,nan,1,1,,", r"line 3: submit_time_s: found 'nan'"),
        ("a,inf,1,1,,", r"line 3: submit_time_s: found 'inf'"),
        ("a,0,-1,1,,", r"line 3: duration_s: found '-1'"),
        ("a,0,0,1,,", r"line 3: duration_s: found '0', expected a number above 0"),
        ("a,0,1_0,1,,", r"line 3: duration_s: found '1_0'"),
        ("a,0,1e999,1,,", r"line 3: duration_s: found '1e999'"),
        ("a,0,1,0,,", r"line 3: gpus: found '0', expected a number above 0"),
        ("a,0,1,-2,,", r"line 3: gpus: found '-2'"),
        ("a,0,1,,,", r"line 3: gpus: found nothing"),
        (
            "a,50,1,1,,49",
            r"line 3: deadline_s: found 49, expected a time of day after submit_time_s \(50\), not a span",
        ),
        ("ok,1,1,1,,", r"line 3: job_id: found 'ok' again \(first in line 2\)"),
        ('"a,0,1,1,,', r"line 3: found a line that is no CSV"),
        ('"a"b,0,1,1,,', r"line 3: found a line that is no CSV"),
    ],
)
def test_malformed_lines_are_named_or_skipped(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path, "ok,0,60,1,,", line)
    with pytest.raises(InputError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    lenient = read_trace(path, lenient=True)
    assert [one.job_id for one in lenient.rows] == ["ok"]
    assert lenient.reasons == {"malformed": 1}
    assert lenient.skipped[0][0] == 3


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("nodes", "0"),
        ("nodes", "1.5"),
        ("cpus", "-1"),
        ("mem_gb", "64GB"),
        ("queue_s", "-1"),
        ("global_batch", "0"),
        ("global_batch", "a"),
        ("iterations", "0"),
        ("iterations", "-5"),
        ("priority", "1.5"),
        ("priority", "high"),
    ],
)
def test_malformed_optional_cells_are_named(tmp_path: Path, column: str, cell: str) -> None:
    path = written(tmp_path, f"a,0,1,1,{cell}", header=f"job_id,submit_time_s,duration_s,gpus,{column}")
    with pytest.raises(InputError, match=f"line 2: {column}: found '{cell}'"):
        read_trace(path)


def test_lenient_reading_goes_on_after_a_malformed_line(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "a,0,1,1,,", "b,x,1,1,,", '"c"d,0,1,1,,', "e,2,1,1,,"), lenient=True)
    assert [one.job_id for one in trace.rows] == ["a", "e"]
    assert [line for line, _ in trace.skipped] == [3, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"\n\n", "an empty file"),
        (b"job_id,submit_time_s,duration_s\n", "no column 'gpus'"),
        (b"job_id,submit_time_s,duration_s,gpus,gpus\n", "column 'gpus' twice"),
        (b"job_id,submit_time_s,duration_s,gpus\n", "no job in it"),
        (b"some,other,table\n1,2,3\n", "line 1: found 'some,other,table'"),
        (b"{}", "line 1: found '{}'"),
        (b"[]", "no job in it"),
        (b"[", "a file that ends too early"),
        (b"job_id,submit_time_s,duration_s,gpus\n\xff,0,1,1\n", "not UTF-8"),
        (b"\x1f\x8b and then no gzip", "a damaged gzip file"),
    ],
)
def test_files_that_are_wrong_as_a_whole_are_refused_lenient_or_not(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    for lenient in (False, True):
        with pytest.raises(InputError, match=message):
            read_trace(path, lenient=lenient)


def test_a_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    whole = gzip.compress(trace_csv(small_trace()).encode())
    path.write_bytes(whole)
    assert len(read_trace(path).rows) == 60
    for kept in (3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(InputError, match="a gzip file that ends too early"):
            read_trace(path, lenient=True)


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    whole = bytearray(gzip.compress(trace_csv(small_trace()).encode()))
    whole[-6] ^= 255
    path.write_bytes(whole)
    with pytest.raises(InputError, match="a damaged gzip file"):
        read_trace(path)


def test_a_tar_archive_is_named(tmp_path: Path) -> None:
    import tarfile

    inside = written(tmp_path, "a,0,1,1,,")
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as archive:
        archive.add(inside, arcname="trace.csv")
    with pytest.raises(InputError, match="a tar archive"):
        read_trace(tmp_path / "t.tar.gz")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv"):
        read_trace(tmp_path / "none.csv")


def test_the_small_trace_is_what_its_seed_makes() -> None:
    assert SMALL_TRACE.read_text(encoding="utf-8") == trace_csv(small_trace())
    assert read_trace(SMALL_TRACE).rows == small_trace().rows


def test_the_small_trace_has_something_of_everything() -> None:
    rows = small_trace().rows
    assert len(rows) == 60
    for name in ("model", "global_batch", "iterations", "deadline_s", "priority", "user", "status"):
        filled = sum(bool(getattr(one, name)) for one in rows)
        assert filled >= 5, name
    assert {one.gpus for one in rows} == {1, 2, 4, 8}
    assert not any(one.device for one in rows)


amounts = st.floats(min_value=0.001, max_value=1e7)
texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z")), max_size=8)


@st.composite
def rows_(draw: st.DrawFn) -> tuple[TraceRow, ...]:
    """Rows in order with unique ids, every optional cell filled or not."""
    count = draw(st.integers(1, 6))
    submits_s = sorted(draw(st.lists(st.floats(0, 1e6), min_size=count, max_size=count)))
    return tuple(
        TraceRow(
            line=place + 2,
            job_id=f"{draw(texts)}{place}",
            submit_time_s=submit_s,
            duration_s=draw(amounts),
            gpus=draw(st.integers(1, 512)),
            nodes=draw(st.none() | st.integers(1, 64)),
            cpus=draw(st.none() | amounts),
            mem_gb=draw(st.none() | amounts),
            user=draw(texts),
            vc_or_department=draw(texts),
            job_type_or_name=draw(texts),
            status=draw(st.sampled_from(["", "completed", "failed", "cancelled", "timeout"])),
            queue_s=draw(st.none() | amounts),
            model=draw(texts),
            global_batch=draw(st.none() | st.integers(1, 4096)),
            iterations=draw(st.none() | amounts),
            device=draw(texts),
            deadline_s=draw(st.none() | amounts.map(lambda span, submit_s=submit_s: submit_s + 1 + span)),  # type: ignore[misc]
            priority=draw(st.none() | st.integers(-9, 9)),
            hosts=draw(st.sampled_from([(), (("gpu7", 8),), (("gpu7", 8), ("a.b-1", 3))])),
        )
        for place, submit_s in enumerate(submits_s)
    )


@given(rows=rows_())
def test_what_is_saved_is_read_again(tmp_path_factory: pytest.TempPathFactory, rows: tuple[TraceRow, ...]) -> None:
    path = tmp_path_factory.mktemp("saved") / "trace.csv"
    path.write_text(trace_csv(trace_of(*rows)), encoding="utf-8")
    assert read_trace(path).rows == rows


@given(
    content=st.binary(max_size=80),
    start=st.sampled_from([b"", (HEADER + "\n").encode(), b"[{", b"\x1f\x8b\x08", b"JobID|State\n"]),
)
def test_no_bytes_do_anything_but_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, start: bytes
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "trace.csv"
    path.write_bytes(start + content)
    for lenient in (False, True):
        try:
            trace = read_trace(path, lenient=lenient)
        except InputError:
            continue
        assert trace.rows


def test_head() -> None:
    trace = trace_of(*(row(str(n), float(n)) for n in range(5)))
    assert head(trace, 2).rows == trace.rows[:2]
    assert head(trace, 9).rows == trace.rows
    with pytest.raises(InputError, match="at least one"):
        head(trace, 0)


def test_a_window_starts_its_clock_anew() -> None:
    trace = trace_of(row("a", 0), row("b", 100, 150), row("c", 200), row("d", 300))
    part = window(trace, 100, 300)
    assert part.rows == (row("b", 0, 50), row("c", 100))
    assert part.zero == datetime(2024, 1, 1, 0, 1, 40)
    for first_s, last_s in ((400, 500), (300, 300), (5, 1)):
        with pytest.raises(InputError, match="window"):
            window(trace, first_s, last_s)


def test_load_moves_submissions_together_and_deadlines_with_them() -> None:
    trace = trace_of(row("a", 100), row("b", 200, 500), row("c", 400))
    assert load(trace, 2.0).rows == (row("a", 100), row("b", 150, 450), row("c", 250))
    assert load(trace, 0.5).rows == (row("a", 100), row("b", 300, 600), row("c", 700))
    assert load(trace, 1.0).rows == trace.rows
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="load"):
            load(trace, factor)


@pytest.mark.parametrize(
    "change", [lambda one: head(one, 1), lambda one: load(one, 3.0), lambda one: window(one, 0, 9)]
)
def test_parts_keep_what_is_known_of_the_file(change: Callable[[Trace], Trace]) -> None:
    trace = replace(trace_of(row("a", 0), row("b", 8)), rounded_up=3, skipped=((7, "never ran"),))
    part = change(trace)
    assert (part.source, part.format, part.rounded_up, part.skipped) == ("t", "cellplan", 3, ((7, "never ran"),))


@pytest.mark.skipif(not DATA.is_dir(), reason="the published traces are not beside the project")
@pytest.mark.parametrize(("name", "jobs"), [("philly", 111_539), ("crux_lingjun2023", 2_257)])
def test_published_traces_are_read_whole(name: str, jobs: int) -> None:
    trace = read_trace(DATA / f"{name}.csv.gz")
    assert len(trace.rows) == jobs
    assert trace.skipped == ()
