"""The command line: exit status, messages, where output goes, and that the Python interface is its twin."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planner import api
from planner.cli import main as cli
from planner.cli import models
from profiles.errors import InputError, MachineError, NothingFits


def _run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "planner.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def _raise(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (
            InputError(where="c.yaml", key="sites[0].name", found="3", expected="a name"),
            2,
            "c.yaml: sites[0].name: found 3",
        ),
        (NothingFits("1 stage lacks 3 GiB"), 3, "1 stage lacks 3 GiB"),
        (MachineError("worker 1 died\nwith signal 9"), 4, "worker 1 died with signal 9"),
        (OSError(28, "No space left on device", "store"), 4, "store: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
@pytest.mark.parametrize("output", [[], ["--json"]])
def test_each_failure_leaves_with_its_status_and_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    message: str,
    output: list[str],
) -> None:
    monkeypatch.setattr(api, "models_list", _raise(error))
    assert cli.main(["models", "list", *output]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"cellplan: error: {message}")
    assert captured.err.count("\n") == 1


def test_an_unexpected_exception_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "models_list", _raise(ZeroDivisionError("our own bug")))
    with pytest.raises(ZeroDivisionError, match="our own bug"):
        cli.main(["models", "list"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["modles"], "invalid choice: 'modles' (choose from"),
        (["models", "list", "--jso"], "unrecognized arguments: --jso"),
        (["estimate", "gpt-tiny"], "the following arguments are required: --cluster"),
        (["estimate", "gpt-tiny", "--cluster", "c", "--devices", "0"], "--devices: found '0', expected a whole number"),
        (["estimate", "gpt-tiny", "--cluster", "c", "--stages", "1,,2"], "--stages: found '', expected a whole number"),
        (["estimate", "gpt-tiny", "--cluster", "c", "--global-batch", "1e3"], "found '1e3', expected a whole number"),
        (["estimate", "gpt-tiny", "--cluster", "c", "--dtype", "int4"], "--dtype: invalid choice: 'int4'"),
        (["profile", "gpt-tiny", "--budget", "-3"], "--budget"),
        (["profile", "gpt-tiny", "--budget", "nan"], "--budget: found 'nan', expected seconds above 0"),
        (["profile", "gpt-tiny", "--stage", "3:3"], "--stage: found '3:3', expected FIRST:END"),
        (["models", "show", "gpt9"], "found 'gpt9', expected a zoo name such as"),
        (
            ["hardware", "show", "a100-80bg"],
            "an unknown device 'a100-80bg', expected a device of the catalogue such as",
        ),
    ],
)
def test_wrong_words_are_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cellplan: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_help_lists_the_commands_and_version_is_the_distribution_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"    {name} " in shown for name in cli.COMMANDS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "cellplan 0.1.0\n"


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m planner.cli.main models list | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Models\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_the_machine_s_failure() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "planner.cli.main", "models", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == "cellplan: error: No space left on device\n"


def _leaves(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for word, child in action.choices.items():
            yield from _leaves(child, f"{name}_{word}")
    if not below:
        yield name, parser


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_a_function_of_its_name_and_arguments(command: str) -> None:
    top = argparse.ArgumentParser()
    cli.add_command_arguments(command, top)
    for name, parser in _leaves(top, command):
        function = inspect.signature(getattr(api, name))
        given = {action.dest for action in parser._actions} - {"help", "json"}
        taken = set(function.parameters) - {"progress"}
        assert given - {"output"} == taken, name
        for action in parser._actions:
            if action.dest in taken and action.dest != "store" and not action.required and action.option_strings:
                assert function.parameters[action.dest].default == action.default, f"{name} {action.dest}"


def test_json_stands_alone_on_stdout_and_tables_fit_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["models", "list"],
        ["models", "show", "gpt3-175b"],
        ["hardware", "list"],
        ["hardware", "show", "t4"],
    ):
        assert cli.main([*words, "--json"]) == 0
        json.loads(capsys.readouterr().out)
        assert cli.main(words) == 0
        assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 100


def test_alike_layers_share_a_row() -> None:
    layer = {"kind": "A", "parameters": 1, "forward_flops": 2, "backward_flops": 3, "saved_bytes": 4, "cut_bytes": 5}
    degrees = {"1": [], "2": "3 heads cannot be split in 2"}
    assert models._alike({**layer, "tp": degrees}) == ("A", "1", "2 FLOP", "3 FLOP", "4 B", "5 B", "1")
