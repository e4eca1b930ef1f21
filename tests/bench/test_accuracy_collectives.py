"""The table of modelled and published collectives: rows are placed, split and fitted as it says, and stay this near."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from bench.accuracy.collectives import main, signed_error
from bench.accuracy.comm_rows import Published, group_of, modelled_s, read_kernels, read_published

DATA = Path(__file__).parents[3] / "shared" / "data"

published = pytest.mark.skipif(not DATA.is_dir(), reason="the published measurements are not beside the project")

HEAD = "id,source,path_or_url,gpu,topology,gpus,nodes,op,bytes,time_us,busbw_gbps,algbw_gbps,software,notes\n"


def rows_of(tmp_path: Path, *lines: str) -> tuple[tuple[Published, ...], dict[str, int]]:
    file = tmp_path / "comm.csv"
    file.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return read_published(file)


def test_rows_are_placed_on_the_machine_that_they_name(tmp_path: Path) -> None:
    rows, left = rows_of(
        tmp_path,
        "C00403,s,p,B200,4 nodes,32,4,all_reduce,17179869184,87181.76,381.80,,,",
        "C00718,s,p,H200,8x,8,1,all_reduce,4294967296,,475,,,",
        "C00727,s,p,A100,2 nodes,16,2,all_reduce,,,30,,,PROBLEM REPORT: below expectation",
    )
    wide, inside = rows
    assert [level.link for level in group_of(wide).levels] == ["nvswitch5", "efa400"]
    assert (group_of(wide).ranks, group_of(wide).nodes) == (32, 4)
    assert wide.measured_s == pytest.approx(87181.76e-6)
    assert modelled_s(wide) - wide.family.harness_s > 0
    assert inside.measured_s == pytest.approx(1.75 * 2**32 / 475e9)
    assert left == {"report of a mistuned cluster": 1}


def test_without_the_table_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "skipped: no" in capsys.readouterr().out


@published
def test_the_table_names_errors_rows_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(DATA)]) == 0
    out = capsys.readouterr().out
    for text in ("NVLink 3 switch, vTrain", "report", "Not predicted:", "mistuned", "Fitted parameters", "nvswitch4"):
        assert text in out


@published
@pytest.mark.parametrize(
    ("kind", "op", "most"),
    [
        ("NVLink 3 switch, vTrain", "all_reduce", 0.04),
        ("NVLink 3 switch, other sources", "all_reduce", 0.14),
        ("NVLink 3 switch, Galvatron (device not stated)", "all_to_all", 0.18),
        ("NVLink 2 cube mesh, vTrain", "all_reduce", 0.03),
        ("NVLink 4 switch, torch", "all_reduce", 0.06),
        ("NVLink 4 switch (device not stated)", "all_reduce", 0.08),
        ("NVLink 5 switch, torch", "all_reduce", 0.08),
        ("NVLink 5 switch, rack of 72", "all_reduce", 0.08),
        ("4 x InfiniBand HDR a node", "all_reduce", 0.12),
        ("8 x EFA 400 a node, torch", "all_reduce", 0.12),
    ],
)
def test_mean_error_on_the_rows_that_nothing_was_fitted_on(kind: str, op: str, most: float) -> None:
    rows, _ = read_published(DATA / "comm.csv")
    errors = [abs(signed_error(row)) for row in rows if row.family.kind == kind and row.op == op and not row.fit_half]
    assert statistics.mean(errors) < most


@published
@pytest.mark.parametrize(
    ("op", "most"), [("all_reduce", 0.09), ("all_gather", 0.09), ("reduce_scatter", 0.09), ("all_to_all", 0.13)]
)
def test_mean_error_on_the_curves_in_a_node_that_nothing_was_fitted_on(op: str, most: float) -> None:
    rows = [row for row in read_kernels(DATA / "kernels" / "comm.csv.gz") if row.op == op and not row.fit_half]
    for gpu in {row.family.kind for row in rows}:
        errors = [abs(signed_error(row)) for row in rows if row.family.kind == gpu]
        assert statistics.mean(errors) < most, gpu


@published
def test_curves_are_held_as_a_whole_and_read_without_what_misleads() -> None:
    rows = read_kernels(DATA / "kernels" / "comm.csv.gz")
    assert len({(row.curve, row.size_bytes) for row in rows}) == len(rows)
    halves: dict[str, set[bool]] = {}
    for row in rows:
        halves.setdefault(row.curve, set()).add(row.fit_half)
    assert all(len(half) == 1 for half in halves.values())
    assert 0.2 < sum(half == {False} for half in halves.values()) / len(halves) < 0.45
    # A copy of the rank's own share is what the harness adds, to gathers and scatters alone.
    assert all((row.copied_bytes > 0) == (row.op in ("all_gather", "reduce_scatter")) for row in rows)
