"""The fuzzer itself, and by name what it once found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.fuzz.examples import SMALL, all_examples
from bench.fuzz.mutate import LEFT_OUT, options_of, spoil_bytes, spoil_lines, spoil_value, spoil_words
from bench.fuzz.options import COMMANDS as LINES
from bench.fuzz.options import option_cases
from bench.fuzz.texts import CONFIG
from planner.cli.main import COMMANDS, main
from planner.many_jobs.traces.read import SMALL_TRACE

ROOT = Path(__file__).parents[2]


def test_a_thousand_cases_hold() -> None:
    """In a process of its own, of which each case is a fork; slow machines are given all the time they need."""
    words = [sys.executable, "-m", "bench.fuzz", "--cases", "1000", "--seed", "0", "--workers", "2"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert "1000 cases of seed 0: 0 failed" in ended.stdout


def test_each_option_of_each_command_has_wrong_values() -> None:
    cases = list(option_cases())
    assert {line.split()[0] for line in LINES} == set(COMMANDS) - {"mcp", "serve"}  # servers
    assert len({case.name for case in cases}) == len(cases)
    asked = {(case.words[:2], case.option) for case in cases if case.words[0] == "simulate"}
    valued = {flag for flag, has_value, _ in options_of(("simulate",)) if has_value}
    assert {option for _, option in asked} == valued


def test_the_same_seed_spoils_in_the_same_way() -> None:
    for spoil in (spoil_bytes, spoil_lines):
        assert spoil(b"a,b\n1,2\n", Random("0/1")) == spoil(b"a,b\n1,2\n", Random("0/1"))
    value = {"a": [1, {"b": 2}], "c": "d"}
    spoilt = [json.dumps(spoil_value(value, Random(f"0/{number}"))) for number in range(50)]
    assert spoilt == [json.dumps(spoil_value(value, Random(f"0/{number}"))) for number in range(50)]
    assert len(set(spoilt)) > 30
    assert value == {"a": [1, {"b": 2}], "c": "d"}


def test_every_option_of_an_examples_command_may_come() -> None:
    for example in all_examples():
        assert example.words[0] in COMMANDS
    flags = {flag for flag, _, _ in options_of(("simulate",))}
    assert {"--policy", "--seeds", "--checkpoint"} <= flags
    drawn = {word for number in range(500) for word in spoil_words(("simulate", "x"), Random(number))}
    assert len(drawn & flags) > 20
    assert not drawn & LEFT_OUT


def _cells(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "cells.json"
    assert main([*SMALL.split(), "--cells", str(path)]) == 0
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.csv").write_text(SMALL_TRACE.read_text(encoding="utf-8"))
    return tmp_path


def _one_message(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert said.startswith("cellplan: error: ")
    return said


def test_cells_whose_time_is_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = _cells(folder)
    row = next(row for row in content["cells"] if row[-1])
    row[-1][0] = "nodir/x"
    (folder / "cells.json").write_text(json.dumps(content))
    assert main([*SMALL.split(), "--cells", "cells.json"]) == 2
    assert "cells.json: found 'nodir/x' for seconds above 0" in _one_message(capsys)


def test_a_word_of_a_megabyte(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "small.csv", "--cluster", "a100-80gb:2x8", "--restart-s", "a" * 10**6]) == 2
    said = _one_message(capsys)
    assert len(said) < 2100
    assert "argument --restart-s: found 'aaa" in said
    assert said.endswith("expected seconds from 0 to 1e9: 31 years (see `cellplan simulate --help`)\n")


@pytest.mark.parametrize("classes", [5, "LlamaForCausalLM", [5], {"a": 1}])
def test_classes_of_a_config_that_are_none(classes: object, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**CONFIG, "architectures": classes}
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["models", "show", "config.json"]) == 2
    assert "architectures: found" in _one_message(capsys)
