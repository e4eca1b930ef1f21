"""Files that a command would write are looked at before its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.jct import JctTrainOptions
from planner.shared.options.outputs import check_outputs
from planner.shared.options.record import entries
from planner.shared.options.simulate import SimulateOptions
from profiles.errors import InputError

SIMULATE = ["simulate", "planner/many_jobs/traces/small.csv", "--cluster", "a100-80gb:1x8"]


@pytest.mark.parametrize(
    "words",
    [
        ["estimate", "gpt-tiny", "--cluster", "a100-80gb:1x8", "--dp", "8", "-o"],
        ["estimate", "gpt-tiny", "--cluster", "a100-80gb:1x8", "--store"],
        ["plan", "gpt-tiny", "--cluster", "a100-80gb:1x8", "--store"],
        [*SIMULATE, "--checkpoint"],
        [*SIMULATE, "--cells"],
        [*SIMULATE, "--jobs-csv"],
        [*SIMULATE, "--seeds", "0..1", "--csv"],
        ["jct", "train", "planner/many_jobs/traces/small.csv", "-o"],
        ["comm", "fit", "README.md", "--link", "nvswitch3", "--store"],
        ["profiles", "export"],
    ],
)
def test_a_folder_that_there_is_not(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, str(tmp_path / "nodir" / "x")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("expected a path in an existing folder\n")
    assert len(said.err.splitlines()) == 1


def test_one_file_is_written_once_and_not_over_what_is_read(tmp_path: Path) -> None:
    trace, link = tmp_path / "trace.csv", tmp_path / "link"
    trace.touch()
    link.symlink_to(trace)
    with pytest.raises(
        InputError, match=r"jct: --output: found trace.csv, expected another file: TRACE reads this one"
    ):
        check_outputs(JctTrainOptions(trace, output=link))
    twice = tmp_path / "out.csv"
    with pytest.raises(InputError, match=r"--series-csv: found .*out.csv, expected another file: --jobs-csv writes"):
        check_outputs(SimulateOptions(trace, cluster="a100:1x8", jobs_csv=twice, series_csv=tmp_path / "." / "out.csv"))
    plan = tmp_path / "plan.json"
    plan.touch()
    with pytest.raises(InputError, match=r"estimate: --output: found plan.json, expected another file: --plan reads"):
        check_outputs(EstimateOptions(plan=plan, output=plan))
    with pytest.raises(InputError, match=r"--output: found .*, no regular file, expected a path to a file"):
        check_outputs(EstimateOptions(plan=plan, output=tmp_path))
    check_outputs(SimulateOptions(trace, cluster="a100:1x8", cells_file=tmp_path, checkpoint=tmp_path / "new"))


def test_what_a_command_writes_is_told_of_its_option() -> None:
    written = {name for name, entry in entries(SimulateOptions).items() if entry.option.writes}
    assert written == {"cells_file", "checkpoint", "jobs_csv", "series_csv", "timeline", "plot", "report"}
