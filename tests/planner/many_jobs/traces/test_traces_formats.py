"""The forms of traces, one by one, on rows of our own in the shapes that their owners document."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from planner.many_jobs.traces.read import FORMATS, read_trace
from planner.many_jobs.traces.records import Trace
from planner.shared.options.simulate import TraceFormat
from profiles.errors import InputError

HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "7,uA,vcX,8,32,2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 19:42:01,3600,60\n"
    "8,uB,vcY,0,4,1,COMPLETED,2020-06-09 18:41:02,2020-06-09 18:41:02,2020-06-09 18:45:02,240,0\n"
    "9,uB,vcY,1,4,1,CANCELLED,2020-06-09 18:40:01,2020-06-09 18:40:01,2020-06-09 18:40:31,,\n"
    "10,uB,vcY,1,4,1,CANCELLED,2020-06-09 18:41:05,,,0,0\n"
)

SACCT = (
    "JobID|User|Account|Partition|State|Submit|Start|End|ElapsedRaw|AllocTRES|ReqTRES|NNodes|AllocCPUS|JobName\n"
    "100|ann|lab|gpu|COMPLETED|2024-03-01T10:00:00|2024-03-01T10:00:30|2024-03-01T11:00:30|3600|"
    "billing=8,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=2||2|64|train\n"
    "100.batch||lab||COMPLETED|2024-03-01T10:00:30|2024-03-01T10:00:30|2024-03-01T11:00:30|3600|cpu=64,node=2||2|64|batch\n"
    "101_3|bob|lab|gpu|CANCELLED by 1001|2024-03-01T09:59:00|2024-03-01T10:00:00|2024-03-01T10:10:00|600|"
    "cpu=4,gres/gpu:v100=1,gres/gpu:a100=2,mem=64000M,node=1||1|4|sweep\n"
    "102|bob|lab|cpu|COMPLETED|2024-03-01T10:01:00|2024-03-01T10:01:00|2024-03-01T10:02:00|60|cpu=4,node=1||1|4|prep\n"
    "103|bob|lab|gpu|CANCELLED by 1001|2024-03-01T10:01:00|None|2024-03-01T10:02:00|0||cpu=4,gres/gpu=4,node=1|1|0|x\n"
    "104|bob|lab|gpu|RUNNING|2024-03-01T10:01:00|2024-03-01T10:02:00|Unknown|900|cpu=4,gres/gpu=4,node=1||1|4|y\n"
    "105_[4-9%2]|bob|lab|gpu|PENDING|2024-03-01T10:01:00|Unknown|Unknown|0||cpu=4,gres/gpu=1,node=1|1|0|z\n"
)

TASKS = (
    "j1,ps,1.0,Terminated,1000.0,1600.0,600.0,10.0,,\n"
    "j2,tensorflow,1.0,Failed,500.0,560.0,600.0,29.0,50.0,V100M32\n"
    "j1,worker,3.0,Terminated,1010.0,1700.0,400.0,20.0,50.0,T4\n"
    "j3,xComputeWorker,2.0,Terminated,900.0,950.0,100.0,1.0,0.0,\n"
    "j4,worker,1.0,Running,900.0,,100.0,1.0,100.0,MISC\n"
    "j5,worker,4.0,Terminated,2000.0,2100.0,100.0,1.0,200.0,MISC\n"
    "j6,worker,1.0,Waiting,,,100.0,1.0,100.0,P100\n"
)
JOBS = "j1,i1,alice,Terminated,990.0,1700.0\nj2,i2,bob,Failed,500.0,560.0\nj5,i5,eve,Terminated,1990.0,2100.0\n"


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    """A scheduling attempt of Philly's on one machine for each count."""
    detail = [{"ip": f"m{place}", "gpus": [f"gpu{gpu}" for gpu in range(count)]} for place, count in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


def philly_job(id_: str, *attempts: dict[str, Any], submitted: str = "2017-10-07 01:11:39") -> dict[str, Any]:
    """An entry of Philly's job log."""
    entry: dict[str, Any] = {"status": "Pass", "vc": "ee9e8c", "jobid": id_, "attempts": list(attempts)}
    return entry | {"submitted_time": submitted, "user": "ce2f4c"}


def written(folder: Path, text: str, name: str = "trace") -> Path:
    """A file that holds the text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_philly(tmp_path: Path) -> None:
    entries = [
        philly_job(
            "a", attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8, 4), attempt("x", "2017-10-09 01:12:09")
        ),
        philly_job("b", attempt("2017-10-07 01:00:30", "2017-10-07 01:10:30", 1), submitted="2017-10-07 01:00:00"),
        philly_job("c"),
        philly_job("d", attempt("2017-10-07 01:00:30", "None", 1)),
        philly_job("e", attempt(None, "2017-10-07 01:00:30", 1)),
        philly_job("f", attempt("2017-10-07 01:00:30", "2017-10-07 01:10:30")),
    ]
    trace = read_trace(written(tmp_path, json.dumps(entries, indent=1)))
    assert trace.format == "philly"
    assert trace.zero == datetime(2017, 10, 7, 1, 0)
    b, a = trace.rows
    assert (a.job_id, a.submit_time_s, a.duration_s, a.gpus, a.nodes) == ("a", 699.0, 2 * 86400.0, 12, 2)
    assert (a.queue_s, a.status, a.user, a.vc_or_department) == (30.0, "completed", "ce2f4c", "ee9e8c")
    assert (b.job_id, b.submit_time_s, b.duration_s, b.gpus, b.queue_s) == ("b", 0.0, 600.0, 1, 30.0)
    assert trace.reasons == {"never ran": 2, "had not ended when the trace was taken": 1, "asked for no GPU": 1}
    lines = json.dumps(entries, indent=1).splitlines()
    starts = [number for number, line in enumerate(lines, 1) if line == " {"]
    assert [row.line for row in (a, b)] == starts[:2]
    assert [line for line, _ in trace.skipped] == starts[2:]


def test_helios(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, HELIOS))
    assert trace.format == "helios"
    assert trace.zero == datetime(2020, 6, 9, 18, 40, 1)
    second, first = trace.rows
    assert (first.job_id, first.submit_time_s, first.duration_s, first.gpus) == ("7", 60.0, 3600.0, 8)
    assert (first.nodes, first.cpus, first.queue_s, first.status) == (2, 32.0, 60.0, "completed")
    assert (second.job_id, second.submit_time_s, second.duration_s, second.queue_s) == ("9", 0.0, 30.0, 0.0)
    assert trace.skipped == ((3, "asked for no GPU"), (5, "never ran"))


def test_helios_names_its_jobs_in_some_releases(tmp_path: Path) -> None:
    text = HELIOS.replace("vc,", "vc,jobname,", 1).replace("vcX,", "vcX,train_a,").replace("vcY,", "vcY,other,")
    assert [row.job_type_or_name for row in read_trace(written(tmp_path, text)).rows] == ["other", "train_a"]


def test_sacct(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, SACCT))
    assert trace.format == "sacct"
    array, job = trace.rows
    assert (job.job_id, job.submit_time_s, job.duration_s, job.gpus, job.device) == ("100", 60.0, 3600.0, 8, "a100")
    assert (job.queue_s, job.nodes, job.cpus, job.user) == (30.0, 2, 64.0, "ann")
    assert job.mem_gb == pytest.approx(512 * 2**30 / 1e9)
    assert (job.vc_or_department, job.job_type_or_name) == ("lab", "train")
    assert (array.job_id, array.gpus, array.device, array.status) == ("101_3", 3, "a100", "cancelled")
    assert trace.reasons == {
        "a step of a job": 1,
        "asked for no GPU": 1,
        "never ran": 1,
        "had not ended when the trace was taken": 2,
    }


@pytest.mark.parametrize(
    ("column", "cell", "duration_s"),
    [
        ("Elapsed", "01:00:00", 3600.0),
        ("Elapsed", "2-00:00:01", 172801.0),
        ("Elapsed", "10:30", 630.0),
        ("End", "2024-03-01T10:10:00", 600.0),
    ],
)
def test_sacct_tells_the_duration_in_three_ways(tmp_path: Path, column: str, cell: str, duration_s: float) -> None:
    header = f"JobID|State|Submit|Start|{column}|ReqTRES|\n"
    line = f"1|TIMEOUT|2024-03-01T10:00:00|2024-03-01T10:00:00|{cell}|gres/gpu=1|\n"
    (row,) = read_trace(written(tmp_path, header + line)).rows
    assert (row.duration_s, row.status) == (duration_s, "timeout")


def test_pai(tmp_path: Path) -> None:
    tasks = written(tmp_path, TASKS, "pai_task_table.csv")
    written(tmp_path, JOBS, "pai_job_table.csv")
    for path in (tasks, tmp_path, tmp_path / "pai_job_table.csv"):
        trace = read_trace(path)
        j2, j1, j5 = trace.rows
        assert (j1.job_id, j1.submit_time_s, j1.duration_s, j1.gpus, j1.device) == ("j1", 490.0, 700.0, 2, "t4")
        assert (j1.cpus, j1.mem_gb, j1.user, j1.queue_s) == (18.0, 70.0, "alice", 10.0)
        assert (j1.job_type_or_name, j1.status) == ("ps+worker", "completed")
        assert (j2.job_id, j2.submit_time_s, j2.gpus, j2.device, j2.status) == ("j2", 0.0, 1, "v100-32gb", "failed")
        assert (j5.gpus, j5.device) == (8, "")
        assert trace.rounded_up == 2
        assert trace.reasons == {
            "asked for no GPU": 1,
            "had not ended when the trace was taken": 1,
            "never ran": 1,
        }


def test_pai_keeps_the_time_of_day_in_utc_8(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "j,w,1,Terminated,3600.0,7200.0,100,1,100,T4\n"))
    assert trace.zero == datetime(1970, 1, 1, 9)


def test_pai_without_its_job_table_has_no_users(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, TASKS, "pai_task_table.csv"))
    assert [row.job_id for row in trace.rows] == ["j2", "j1", "j5"]
    assert {row.user for row in trace.rows} == {""}
    assert {row.queue_s for row in trace.rows} == {None}


def test_pai_needs_its_task_table(tmp_path: Path) -> None:
    path = written(tmp_path, JOBS, "pai_job_table.csv")
    with pytest.raises(InputError, match="pai_task_table"):
        read_trace(path)
    with pytest.raises(InputError, match="pai_task_table"):
        read_trace(tmp_path / ".")


def test_pai_fractions_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1: plan_gpu: found 1.5 GPUs"):
        read_trace(written(tmp_path, TASKS), fractional="refuse")
    lenient = read_trace(written(tmp_path, TASKS), fractional="refuse", lenient=True)
    assert [row.job_id for row in lenient.rows] == ["j5"]
    assert lenient.reasons["malformed"] == 2


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (HELIOS, "helios"),
        (SACCT, "sacct"),
        (TASKS, "pai"),
        ("job_id,submit_time_s,duration_s,gpus\na,0,5,1", "cellplan"),
    ],
)
def test_the_form_is_told_by_the_first_line_packed_or_not(tmp_path: Path, text: str, form: TraceFormat) -> None:
    plain = read_trace(written(tmp_path, text))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(("\ufeff" + text).encode()))
    assert plain.format == form
    assert read_trace(packed).rows == plain.rows == read_trace(packed, format=form).rows


def wrong(text: str, old: str, new: str) -> str:
    """The text with one thing changed that is there once at least."""
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (wrong(HELIOS, "vcX,8", "vcX,many"), r"line 2: gpu_num: found 'many'"),
        (wrong(HELIOS, "vcX,8", "vcX,-8"), r"line 2: gpu_num: found '-8'"),
        (wrong(HELIOS, "2020-06-09 18:41:01", "9 June"), r"line 2: submit_time: found '9 June'"),
        (wrong(HELIOS, "2020-06-09 19:42:01", "2019-06-09 19:42:01"), r"line 2: end_time"),
        (wrong(HELIOS, ",3600,", ",-3600,"), r"line 2: duration: found '-3600'"),
        (wrong(HELIOS, "\n9,", "\n7,"), r"line 4: job_id: found '7' again \(first in line 2\)"),
        (wrong(HELIOS, "gpu_num", "gpus"), r"no column 'gpu_num'"),
        (wrong(SACCT, "gres/gpu=8", "gres/gpu=x"), r"line 2: AllocTRES: found 'x'"),
        (wrong(SACCT, "|3600|", "|an hour|"), r"line 2: ElapsedRaw: found 'an hour'"),
        (wrong(SACCT, "|train", "|a|b"), r"line 2: found 15 cells, expected 14"),
        (wrong(SACCT, "\n101_3", "\n100"), r"line 4: job_id: found '100' again"),
        (wrong(wrong(SACCT, "AllocTRES", "A"), "ReqTRES", "B"), r"none of AllocTRES, ReqTRES"),
        (wrong(TASKS, "1600.0", "later"), r"line 1: end_time: found 'later'"),
        (wrong(TASKS, "1600.0", "600.0"), r"line 1: end_time"),
        (wrong(TASKS, "j1,worker", "j1,ps"), r"line 3: task_name: found 'ps' again"),
        (wrong(TASKS, "j2,tensorflow,1.0", "j2,tensorflow"), r"line 2: found 9 cells, expected 10"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(written(tmp_path, text))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jobid": ""}, r"line 6: job 2, jobid: found nothing"),
        ({"submitted_time": "then"}, r"line 6: job 2, submitted_time: found 'then'"),
        ({"submitted_time": 5}, r"line 6: job 2, submitted_time: found int"),
        ({"attempts": 3}, r"line 6: job 2, attempts: found int"),
        ({"attempts": [4]}, r"line 6: job 2, attempts: found int"),
        ({"attempts": [attempt("2017-10-07 01:12:09", "2017-10-06 01:13:23", 1)]}, r"line 6: job 2, end_time"),
        ({"jobid": "a"}, r"line 6: job 2, job_id: found 'a' again \(first in line 2\)"),
    ],
)
def test_wrong_entries_of_philly(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = philly_job("a", attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8))
    text = f"[\n{json.dumps(good)},\n\n\n\n{json.dumps(good | {'jobid': 'b'} | change)}\n]"
    with pytest.raises(InputError, match=message):
        read_trace(written(tmp_path, text))
    lenient = read_trace(written(tmp_path, text), lenient=True)
    assert [row.job_id for row in lenient.rows] == ["a"]
    assert lenient.reasons == {"malformed": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"vc"', '"status": "Pass", "vc"', 1), "found the key 'status' twice in one object"),
        (lambda text: text.replace('"b"', '"a"'), r"line 1: job 2, job_id: found 'a' again \(first in line 1\)"),
    ],
)
def test_what_is_there_twice_in_one_line_of_philly(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    jobs = [philly_job(name, attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8)) for name in "ab"]
    with pytest.raises(InputError, match=message):
        read_trace(written(tmp_path, change(json.dumps(jobs))))


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_broken_json_is_refused_lenient_or_not(tmp_path: Path, cut: float) -> None:
    entries = [philly_job(str(n), attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8)) for n in range(5)]
    text = json.dumps(entries)
    with pytest.raises(InputError, match="line 1"):
        read_trace(written(tmp_path, text[: int(cut * len(text))]), lenient=True)


def test_jobs_without_gpus_alone_are_no_trace(tmp_path: Path) -> None:
    header, _, cpu_only, *_ = HELIOS.splitlines()
    with pytest.raises(InputError, match=r"no job in it \(skipped: 1 asked for no GPU\)"):
        read_trace(written(tmp_path, f"{header}\n{cpu_only}\n"))


@pytest.mark.parametrize(
    "text",
    ["[" + "[" * 100_000, "[" + "9" * 5000 + "]", '[{"jobid": "a", "submitted_time": "0001-01-01T00:00:00+14:00"}]'],
)
def test_extreme_json_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="line 1"):
        read_trace(written(tmp_path, text))


def test_pai_times_beyond_dates_have_no_date(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "j,w,1,Terminated,1e15,1.5e15,100,1,100,T4\n"))
    assert trace.zero is None
    assert trace.rows[0].submit_time_s == 0.0


def test_every_form_has_a_name_in_messages(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=", ".join(FORMATS)):
        read_trace(written(tmp_path, HELIOS), format="swf")  # type: ignore[arg-type]


def test_traces_are_equal_however_often_they_are_read(tmp_path: Path) -> None:
    first: Trace = read_trace(written(tmp_path, SACCT))
    assert first == read_trace(tmp_path / "trace")
