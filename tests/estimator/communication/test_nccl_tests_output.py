"""Reading nccl-tests: the formats of several versions, and what is refused."""

from __future__ import annotations

import pytest

from estimator.communication.nccl_tests import read_nccl_tests
from estimator.communication.tables import bus_factor
from profiles.errors import InputError
from profiles.vocabulary import CollectiveOp

PROGRAMS: dict[CollectiveOp, str] = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "send_recv": "sendrecv_perf",
}
Times = dict[int, tuple[float, float]]
TIMES: Times = {1_048_576: (50.0, 49.0), 16_777_216: (200.0, 210.0), 268_435_456: (2100.0, 2090.0)}


def row(
    op: CollectiveOp, ranks: int, size: int, times: tuple[float, float], *, operator: bool = True, wrong: str = "0"
) -> str:
    cells = [f"{size:12d}", f"{size // 4:13d}", "float"] + (["sum", "-1"] if operator else [])
    for microseconds in times:
        algorithm = size / microseconds / 1e3
        cells += [f"{microseconds:8.2f}", f"{algorithm:7.2f}", f"{algorithm * bus_factor(op, ranks):7.2f}", wrong]
    return "  ".join(cells)


def run_text(
    op: CollectiveOp,
    times: Times = TIMES,
    *,
    hosts: tuple[str, ...] = ("alpha",) * 8,
    named: bool = True,
    operator: bool = True,
    wrong_name: str = "#wrong",
    group: str = "Group  0 ",
) -> str:
    """What a run prints, put together from the format's parts: version lines, ranks, header, rows, footer."""
    lines = ["# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703"] if named else []
    lines += [f"# Collective test starting: {PROGRAMS[op]}"] if named else []
    lines += ["# nThread 1 nGpus 1 minBytes 1048576 maxBytes 268435456 step: 16(factor) warmup iters: 5 iters: 20", "#"]
    lines += ["# Using devices"] if hosts else []
    lines += [
        f"#  Rank {i:2d} {group}Pid  {4000 + i} on {host:>10} device {i % 8:2d} [0x{i:02x}] NVIDIA A100-SXM4-80GB"
        for i, host in enumerate(hosts)
    ]
    columns = "size count type" + (" redop root" if operator else "") + f" time algbw busbw {wrong_name}" * 2
    lines += [
        "#",
        "#     out-of-place      in-place",
        "#   " + "   ".join(columns.split()),
        "#   (B) (elements) (us) (GB/s)",
    ]
    ranks = len(hosts) or 1
    lines += [row(op, ranks, size, pair, operator=operator) for size, pair in times.items()]
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 123.4", "#", ""])


@pytest.mark.parametrize("op", PROGRAMS)
def test_every_program(op: CollectiveOp) -> None:
    (table,) = read_nccl_tests(run_text(op), where="run.txt", link="nvlink3")
    assert (table.link, table.op, table.ranks, table.nodes, table.provenance) == ("nvlink3", op, 8, 1, "measured")
    assert table.points == ((1_048_576, 49e-6), (16_777_216, 200e-6), (268_435_456, 2090e-6))
    assert "run.txt" in table.source


def test_nodes_are_counted_by_host_name() -> None:
    text = run_text("all_gather", hosts=("alpha",) * 8 + ("beta",) * 8)
    (table,) = read_nccl_tests(text, where="x", link="ib")
    assert (table.ranks, table.nodes) == (16, 2)


@pytest.mark.parametrize("changes", [{"operator": False}, {"wrong_name": "error"}, {"group": ""}])
def test_formats_of_other_versions(changes: dict[str, object]) -> None:
    text = run_text("all_reduce", **changes)  # type: ignore[arg-type]
    assert read_nccl_tests(text, where="x", link="l")[0].points[0] == (1_048_576, 49e-6)


def test_old_output_without_a_name_needs_one() -> None:
    text = run_text("reduce_scatter", named=False)
    with pytest.raises(InputError, match="no name above the table"):
        read_nccl_tests(text, where="x", link="l")
    assert read_nccl_tests(text, where="x", link="l", op="reduce_scatter")[0].op == "reduce_scatter"
    shell = "$ ./build/reduce_scatter_perf -b 1M -e 256M -f 16 -g 8\n"
    assert read_nccl_tests(shell + text, where="x", link="l")[0].op == "reduce_scatter"


def test_threads_and_gpus_of_one_process_without_rank_lines() -> None:
    text = run_text("all_reduce", hosts=()).replace("nThread 1 nGpus 1", "nThread 2 nGpus 4")
    rows = "\n".join(row("all_reduce", 8, size, pair) for size, pair in TIMES.items())
    head = text[: text.index("     1048576 ")]
    (table,) = read_nccl_tests(head + rows, where="x", link="l")
    assert (table.ranks, table.nodes) == (8, 1)


def test_tags_of_mpirun_and_log_lines() -> None:
    text = "\n".join("[1,0]<stdout>:" + line for line in run_text("all_reduce").splitlines())
    text = text.replace(
        "[1,0]<stdout>:#  Rank  3", "alpha:812:812 [0] NCCL INFO Bootstrap : Using eth0\n[1,0]<stdout>:#  Rank  3"
    )
    text = text.replace(
        "[1,0]<stdout>:    16777216", "alpha:812:830 [2] NCCL INFO Channel 00 : 2 -> 3\n[1,0]<stdout>:    16777216"
    )
    (table,) = read_nccl_tests(text, where="x", link="l")
    assert len(table.points) == 3


def test_several_runs_in_one_text_join_by_op_and_ranks() -> None:
    text = "".join(
        (
            run_text("all_reduce"),
            run_text("all_to_all", hosts=("alpha",) * 4),
            run_text("all_reduce", {1_048_576: (45.0, 60.0), 33_554_432: (350.0, 350.0)}),
        )
    )
    first, second = read_nccl_tests(text, where="x", link="l")
    assert (first.op, first.ranks, second.op, second.ranks) == ("all_reduce", 8, "all_to_all", 4)
    assert first.points == ((1_048_576, 45e-6), (16_777_216, 200e-6), (33_554_432, 350e-6), (268_435_456, 2090e-6))


def test_rows_of_no_bytes_and_missing_in_place_checks() -> None:
    text = run_text("all_to_all").replace(
        "\n     1048576 ", "\n           0 0 float sum -1 5.1 0.00 0.00 0 5.0 0.00 0.00 N/A\n     1048576 "
    )
    (table,) = read_nccl_tests(text, where="x", link="l")
    assert len(table.points) == 3


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), start=1) if part in line)


def test_a_row_cut_short_names_its_line() -> None:
    text = run_text("all_reduce")
    start = text.index("   268435456 ")
    for cut in (start + 20, start + 60, text.index("\n", start) - 3):
        with pytest.raises(InputError, match=rf"run.txt, line {line_of(text, '268435456  ')}: row: found \d+ values"):
            read_nccl_tests(text[:cut], where="run.txt", link="l")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  200.00", "  2x0.00", "line 19: row: found .* expected numbers under size and time"),
        ("    16777216", "Segmentation fault\n    16777216", "line 19: row: found 2 values"),
        ("  200.00", "  -20.00", "line 19: time: .* expected times from"),
        ("  200.00", "     nan", "line 19: time: .* expected times from"),
        ("  200.00", "  1e-300", "line 19: time: .* expected times from"),
        ("  200.00", "   1e300", "line 19: time: .* expected times from"),
        ("#  Rank  7", "#  Rnk  7", "line 18: busbw: .* all_reduce over 7 ranks"),
        ("#  Rank  6", "#  Rnk  6", "line 13: Rank: found 7, expected 6, ranks in order"),
        ("Group  0 Pid  4007", "Group  1 Pid  4007", "line 13: Group: found 1, expected a single group"),
        ("all_reduce_perf", "all_gather_perf", "line 18: busbw: found 1.750 of algbw, expected 0.875"),
        ("all_reduce_perf", "broadcast_perf", "line 2: program: found broadcast_perf, expected one of all_reduce_perf"),
        ("nGpus 1", "nGpus 3", "line 16: Rank: found 8 ranks, expected a multiple of the 3"),
        ("busbw", "bus", "line 16: columns"),
    ],
)
def test_what_is_refused(old: str, new: str, message: str) -> None:
    text = run_text("all_reduce")
    assert old in text
    with pytest.raises(InputError, match=message):
        read_nccl_tests(text.replace(old, new), where="run.txt", link="l")


def test_wrong_results_are_refused() -> None:
    text = run_text("all_reduce")
    bad = row("all_reduce", 8, 4096, (20.0, 20.0), wrong="12")
    with pytest.raises(InputError, match="#wrong: found 12, expected 0"):
        read_nccl_tests(text.replace("    16777216", bad + "\n    16777216", 1), where="x", link="l")


def test_texts_without_a_result() -> None:
    whole = run_text("all_reduce")
    header_only = whole[: whole.index("     1048576 ")]
    for text in ("", "hello\nworld\n", header_only, header_only + whole, whole + header_only):
        with pytest.raises(InputError, match="before any result"):
            read_nccl_tests(text, where="x", link="l")
    single = run_text("all_reduce", hosts=("alpha",))
    with pytest.raises(InputError, match="found 1 rank, expected at least 2"):
        read_nccl_tests(single, where="x", link="l")
