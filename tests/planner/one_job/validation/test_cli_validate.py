"""`cellplan validate` on the command line: what it prints, writes and refuses. The rows are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import main as cli
from planner.cli import validate
from planner.cli.validation_tables import print_validation
from planner.one_job.validation.report import describe_validation
from profiles.errors import InputError
from tests.planner.one_job.validation.validation_examples import row, skipped

VALIDATE = "planner.one_job.validation.run.validate_runs"


def _many(count: int) -> dict[str, Any]:
    """Row n is off by n%; every seventh is skipped."""
    rows = []
    for n in range(1, count + 1):
        if n % 7 == 0:
            rows.append(skipped(n, "the global batch is not stated"))
        else:
            known = {"model_flops": 1e15, "peak_flops_per_s": 1e15, "assumptions": ("1F1B", f"vocabulary {n % 3}")}
            rows.append(row(n, estimated_iteration_time_s=10 * (1 + n / 100), **known))
    return describe_validation(rows)


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    if "validate" not in cli.COMMANDS:
        monkeypatch.setitem(cli.COMMANDS, "validate", "predict measured runs")


def _answer(monkeypatch: pytest.MonkeyPatch, result: dict[str, Any]) -> None:
    monkeypatch.setattr(VALIDATE, lambda path, *, store, progress: result)  # noqa: ARG005


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["validate", "runs.csv", *words]) == 0
    return capsys.readouterr().out


def test_a_small_table_is_printed_whole_with_its_skipped_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, _many(10))
    shown = _printed(capsys)
    assert any(line.split()[:3] == ["X-0010", "10", "s"] and "+10.0%" in line for line in shown.splitlines())
    assert "1: the global batch is not stated (X-0007)" in shown
    assert "10 rows: 9 predicted, 9 of them with a measured time; 1 skipped." in shown
    for title in ("by source", "by device", "by parallel kind", "by model size"):
        assert f"Error of the iteration time {title}" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_of_many_rows_the_worst_are_printed_unless_asked_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, _many(90))
    ids = [f"X-{n:04}" for n in range(1, 91) if n % 7]

    def rows_in(shown: str) -> list[str]:
        return [line.split()[0] for line in shown.splitlines() if line.startswith(" X-")]

    assert rows_in(_printed(capsys)) == ids[::-1][:20]
    assert rows_in(_printed(capsys, "--rows", "worst:3")) == ids[::-1][:3]
    assert rows_in(_printed(capsys, "--rows", "all")) == ids
    assert rows_in(_printed(capsys, "--rows", "none")) == []


def test_ids_of_skipped_rows_are_shortened_unless_all_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, _many(90))
    assert "X-0049, 5 more)" in " ".join(_printed(capsys).split())
    assert "X-0077, X-0084)" in " ".join(_printed(capsys, "--rows", "all").split())


def test_assumptions_are_numbered_below_the_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, _many(3))
    shown = _printed(capsys)
    assert "  - 1: 1F1B\n  - 2: vocabulary 1\n  - 3: vocabulary 2\n" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith(" X-0002"))
    assert line.split()[-2:] == ["1", "3"]


def test_out_of_memory_calls_stand_in_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    ended = {"measured_iteration_time_s": None, "measured_oom": True}
    memory = {"measured_peak_memory_bytes": 2.0**36, "estimated_peak_memory_bytes": 2.2 * 2**35}
    rows = [row(1, estimated_oom=True, **ended), row(2, **ended), row(3, estimated_oom=True), row(4, **memory)]
    print_validation(describe_validation(rows), rows="all", group="source")
    lines = {line[1:7]: " ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert "ran out told" in lines["X-0001"]
    assert "ran out missed" in lines["X-0002"]
    assert "false alarm" in lines["X-0003"]
    assert "64 GiB +10.0%" in lines["X-0004"]


def test_one_grouping_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _answer(monkeypatch, _many(10))
    shown = _printed(capsys, "--group", "device")
    assert "by device" in shown
    assert "by source" not in shown


def test_json_is_the_document_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result = _many(10)
    _answer(monkeypatch, result)
    assert json.loads(_printed(capsys, "--json")) == result


def test_a_table_in_which_nothing_can_be_predicted_still_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_validation(describe_validation([skipped(1, "no device"), skipped(2, "no batch")]), rows="auto", group=None)
    shown = capsys.readouterr().out
    assert "2 rows: 0 predicted, 0 of them with a measured time; 2 skipped." in shown
    assert "1: no batch (X-0002)" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "best"], "found 'best', expected all, none or worst:N"),
        (["--rows", "worst:0"], "found '0', expected a whole number"),
        (["--group", "colour"], "invalid choice: 'colour'"),
        (["--plot", "plot.pdf"], "expected a file name that ends in .svg or .png"),
        (["--plot", "no/such/folder/plot.svg"], "expected a path in an existing folder"),
    ],
)
def test_wrong_words_are_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("worked")

    monkeypatch.setattr(VALIDATE, work)
    assert cli.main(["validate", "runs.csv", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_the_plot_is_written_beside_either_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    _answer(monkeypatch, _many(10))
    json.loads(_printed(capsys, "--json", "--plot", str(tmp_path / "a.svg")))
    _printed(capsys, "--group", "device", "--plot", str(tmp_path / "b.png"))
    assert "X (9: " in (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_bad_table_is_the_user_s_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError(where="runs.csv, line 3", key="tp", found="'two'", expected="a whole number from 1")

    monkeypatch.setattr(VALIDATE, refuse)
    assert cli.main(["validate", "runs.csv"]) == 2
    assert "runs.csv, line 3: tp: found 'two'" in capsys.readouterr().err


def test_row_choices_are_these() -> None:
    assert [validate.row_choice(word) for word in ("all", "none", "worst:5")] == ["all", "none", "worst:5"]
