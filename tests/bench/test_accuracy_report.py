"""The command of the accuracy bench on a small table: its sections, its parts, what it keeps and what it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import bench.accuracy.__main__ as accuracy
from bench.accuracy.__main__ import PLOT, RESULTS, UNSEEN, main
from bench.accuracy.ablation import list_parts
from bench.accuracy.fitting import committed_values
from bench.accuracy.groups import GROUPS, Target
from bench.accuracy.markdown import section_of, table
from bench.accuracy.parameters import set_values
from bench.accuracy.runs import Run, load_runs, thin_runs, timed_runs
from profiles.uncertainty import parse_uncertainty
from tests.bench.accuracy_examples import ROWS, write_table

pytest.importorskip("matplotlib", reason="the plot needs matplotlib")

FILE = """# heading
[[parameter]]
name = "launch_s"
value = 6e-06  # kept
low = 1e-06
meaning = "value = 3 is text"

[[parameter]]
name = "gemm_share"
value = 0.9
low = 0.5

[[parameter]]
name = "gemm_share.b200"
value = 0.8
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, ...]:
    return load_runs(write_table(tmp_path_factory.mktemp("data")), lambda _: None)


def test_a_row_without_an_estimate_stays_with_its_reason(runs: tuple[Run, ...]) -> None:
    assert len(runs) == len(ROWS)
    lacking = [run for run in runs if run.setup is None]
    assert [run.row.id for run in lacking] == ["NTRN-0001"]
    assert lacking[0].result.skipped
    assert lacking[0] not in timed_runs(runs)


def test_linear_sources_are_thinned_to_their_cells(runs: tuple[Run, ...]) -> None:
    thinned = [run.row.id for run in thin_runs(runs) if run.result.source == "VTS"]
    assert thinned == ["VTS-0002", "VTS-0004"]
    assert len(thin_runs(runs)) == len(runs) - 2


def test_every_row_is_in_one_group(runs: tuple[Run, ...]) -> None:
    for run in runs:
        assert sum(group.holds(run) for group in GROUPS) == 1, run.row.id


def test_targets_are_written_as_the_issue_has_them() -> None:
    assert Target(mean=0.055, tau=0.65).text == "mean <= 5.5%, tau >= 0.65"
    assert Target().text == "reported"


def test_each_part_switched_off_changes_some_row_and_costs_no_time(runs: tuple[Run, ...]) -> None:
    timed = timed_runs(runs)
    slower = {"efficiency of products by shape", "attention apart", "overlap"}
    for part in list_parts(timed, committed_values()):
        seconds = {run.row.id: part.seconds(run) for run in timed}
        assert all(value > 0 for value in seconds.values()), part.name
        if part.name in slower:
            continue
        whole = {run.row.id: run.result.estimated_iteration_time_s or 0.0 for run in timed}
        assert all(seconds[one] <= whole[one] * (1 + 1e-9) for one in whole), part.name
        has_it = not part.name.startswith(("context", "expert"))
        assert any(seconds[one] < whole[one] * (1 - 1e-6) for one in whole) == has_it, part.name


def test_the_command_writes_table_and_plot_the_same_every_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path)
    assert main(["--data", str(tmp_path), "--out", str(tmp_path)]) == 0
    first = (tmp_path / RESULTS).read_text(encoding="utf-8")
    plot = (tmp_path / PLOT).read_bytes()
    for title in (UNSEEN, "Targets", "Both halves", "Baselines and peers", "Memory", "Ablation", "Skipped"):
        assert section_of(first, title), title
    assert "NTRN 1" in (section_of(first, "Skipped") or "")
    assert str(tmp_path) not in first
    assert main(["--data", str(tmp_path), "--out", str(tmp_path)]) == 0
    assert (tmp_path / RESULTS).read_text(encoding="utf-8") == first
    assert (tmp_path / PLOT).read_bytes() == plot
    assert "written:" in capsys.readouterr().out


def test_fit_and_intervals_are_written_where_the_package_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path)
    committed = (accuracy.DATA_FOLDER / "training.toml").read_text(encoding="utf-8")
    (tmp_path / "training.toml").write_text(committed, encoding="utf-8")
    monkeypatch.setattr(accuracy, "DATA_FOLDER", tmp_path)
    assert main(["--data", str(tmp_path), "--out", str(tmp_path), "--fit", "--intervals"]) == 0
    fitted = (tmp_path / "training.toml").read_text(encoding="utf-8")
    assert fitted != committed
    before, after = (tomllib.loads(text)["parameter"] for text in (committed, fitted))
    assert [row | {"value": 0} for row in before] == [row | {"value": 0} for row in after]
    assert all(row["low"] * 0.999 <= row["value"] <= row["high"] * 1.001 for row in after)
    widths = parse_uncertainty((tmp_path / "uncertainty.toml").read_text(encoding="utf-8"))
    assert widths.time_half_width("a100-80gb", "compute").rows == 8


def test_without_the_table_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert "skipped: no" in capsys.readouterr().out


def test_a_fit_is_written_back_beside_the_texts() -> None:
    changed = set_values(FILE, {"launch_s": 7.5e-06, "gemm_share": 0.95})
    assert changed == FILE.replace("6e-06  # kept", "7.5e-06  # kept").replace("value = 0.9\n", "value = 0.95\n")


@pytest.mark.parametrize("name", ["gemm", "gemm_share.b20", "launch.s"])
def test_a_parameter_that_the_file_lacks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected one"):
        set_values(FILE, {name: 1.0})


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 2"):
        table(("a", "b"), [("1",)])
