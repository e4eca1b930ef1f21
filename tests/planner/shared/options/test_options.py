"""Records of options: what a command takes stands once, and the command line, Python and requests as JSON follow it."""

from __future__ import annotations

import doctest
import inspect
import json
from argparse import SUPPRESS, ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner import api
from planner.cli import main as cli
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import Options, entries
from planner.shared.options.running import RunOptions
from planner.shared.options.simulate import SimulateOptions, SweepOptions, TraceOptions
from profiles.errors import InputError

TERMINAL_ALONE = {"help", "json", "list", "rows", "assumptions"}
"""Arguments about what is printed: no part of the question."""

SEVERAL: dict[str, tuple[str, ...]] = {
    "simulate": ("simulate", "simulate_sweep"),
    "plan": ("plan", "front", "smallest", "side_by_side", "largest"),
    "mcp": (),
    "serve": (),
}
"""Commands that several functions answer, or none: their arguments are those of all."""


def _leaves(parser: ArgumentParser, name: str) -> Iterator[tuple[str, ArgumentParser]]:
    below = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    for action in below:
        for word, child in action.choices.items():
            yield from _leaves(child, f"{name}_{word}")
    if not below:
        yield name, parser


def _parsers() -> Iterator[tuple[str, ArgumentParser]]:
    for command in cli.COMMANDS:
        top = ArgumentParser()
        cli.add_command_arguments(command, top)
        yield from _leaves(top, command)


PARSERS = dict(_parsers())


def _records(name: str) -> tuple[type[Options], ...]:
    functions = (getattr(api, function) for function in SEVERAL.get(name, (name,)))
    return tuple(function.options for function in functions if hasattr(function, "options"))


@pytest.mark.parametrize("name", [name for name in PARSERS if _records(name)])
def test_arguments_fields_parameters_and_properties_are_the_same(name: str) -> None:
    parser, records = PARSERS[name], _records(name)
    actions = {action.dest: action for action in parser._actions if action.dest not in TERMINAL_ALONE}
    assert set(actions) == {field for record in records for field in entries(record)}
    for function, record in zip(SEVERAL.get(name, (name,)), records, strict=True):
        own, schema = entries(record), api.request_schema(function)
        parameters = {
            key: parameter
            for key, parameter in inspect.signature(getattr(api, function)).parameters.items()
            if key not in record.hooks()
        }
        assert list(parameters) == list(own) or set(parameters) == set(own)
        assert set(schema["properties"]) == set(own)
        jsonschema.Draft202012Validator.check_schema(schema)
        for key, entry in own.items():
            action = actions[key]
            assert action.help not in (None, "", SUPPRESS), key
            assert schema["properties"][key]["description"] == entry.help
            if entry.required:
                assert parameters[key].default is inspect.Parameter.empty
                assert key in schema["required"]
                assert action.required or entry.option.supplied or len(records) > 1, key
            else:
                assert action.default == parameters[key].default == entry.default, key
                default = schema["properties"][key]["default"]
                assert default == json.loads(json.dumps(entry.default, default=str)), key
                jsonschema.validate(default, schema["properties"][key])


def test_a_function_takes_its_record_or_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SimulateOptions] = []
    monkeypatch.setattr("planner.many_jobs.simulation.run.simulate_trace", seen.append)
    options = SimulateOptions(Path("t.csv"), cluster="c", head=3)
    api.simulate(options)
    api.simulate(Path("t.csv"), cluster="c", head=3)
    assert seen == [options, options]
    with pytest.raises(TypeError, match=r"simulate\(\) got .* argument 'heads'; is it head\?"):
        api.simulate(Path("t.csv"), cluster="c", heads=3)  # type: ignore[call-overload]


def test_a_request_as_json_is_the_record() -> None:
    request = json.loads('{"trace": "t.csv", "cluster": "c", "window_s": [1, 2], "seeds": [0, 1], "option": {"k": 1}}')
    jsonschema.validate(request, api.request_schema("simulate_sweep"))
    record = SweepOptions(**request)
    assert record == SweepOptions(Path("t.csv"), cluster="c", window_s=(1.0, 2.0), seeds=(0, 1), option={"k": 1})
    assert record.changed() == ("trace", "cluster", "window_s", "option", "seeds")
    assert record.part(TraceOptions) == TraceOptions(Path("t.csv"), cluster="c", window_s=(1.0, 2.0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"head": 0}, "simulate: --head: found 0, expected a whole number of at least 1"),
        ({"head": 1.5}, "simulate: --head: found 1.5, expected a whole number of at least 1"),
        ({"head": True}, "simulate: --head: found True"),
        ({"load": float("nan")}, "simulate: --load: found nan, expected from 0.000001 to"),
        ({"load": 1e308}, "simulate: --load: found 1e\\+308, expected from 0.000001 to 1,000,000 times"),
        ({"round_s": 0}, "simulate: --round: found 0.0, expected seconds from 1"),
        ({"round_s": 1e300}, "simulate: --round: found 1e\\+300, expected seconds from 1"),
        ({"restart_s": 1e300}, "simulate: --restart-s: found 1e\\+300, expected seconds from 0 to 1e9"),
        ({"storage_bandwidth_bytes_per_s": 1e-300}, "simulate: --storage-bandwidth: found 1e-300, expected bytes/s"),
        ({"jct": " "}, "simulate: --jct: found ' ', expected some text"),
        ({"topology": ""}, "simulate: --topology: found '', expected a path"),
        ({"format": "sql"}, "simulate: --format: found 'sql', expected one of auto, cellplan"),
        ({"window_s": (2, 1)}, r"simulate: --window: found \(2.0, 1.0\), expected two rising numbers A:B"),
        ({"trace": 3}, "simulate: TRACE: found 3, expected a path"),
        ({"lenient": 1}, "simulate: --lenient: found 1, expected true or false"),
        ({"resume": True}, "simulate: --resume: found no --checkpoint, expected the file to go on from"),
    ],
)
def test_wrong_values_are_refused_when_the_record_is_made(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SimulateOptions(Path("t.csv"), cluster="c"), **changed)


def test_what_waits_and_pads_has_a_limit() -> None:
    with pytest.raises(InputError, match=r"run: --timeout: found 1e\+25, expected seconds above 0, at most 1,000,000"):
        RunOptions(Path("plan.json"), timeout=1e25)
    with pytest.raises(
        InputError, match="estimate: --vocab-pad: found 1048577, expected a whole number from 1, at most"
    ):
        EstimateOptions("gpt-tiny", cluster="a100-80gb:1x4", vocab_pad=2**20 + 1)


def test_the_python_of_the_readme_says_what_it_prints() -> None:
    assert doctest.testfile(str(Path(__file__).parents[4] / "README.md"), module_relative=False) == (0, 4)
