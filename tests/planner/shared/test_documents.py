"""Every outcome of every command has a schema: what `--json` prints where it ends well, and where it does not."""

from __future__ import annotations

import errno
import json
import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner import api
from planner.cli import main as cli
from planner.many_jobs.traces.read import SMALL_TRACE
from planner.shared.documents import COMMANDS, FAILURE_SCHEMA, command_of
from profiles.errors import InputError, MachineError, NothingFits
from tests.documents import document_of, validator

ONE = "gpt-tiny --cluster a100-80gb:1x2"
WHOLE = "--train-tokens 1G --price a100-80gb=1.5"
SIMULATED = f"simulate {SMALL_TRACE} --cluster a100-80gb:2x8 --head 3"
TRACE = "job_id,submit_time_s,duration_s,gpus\n" + "".join(f"{n},{n * 900},{600 + n % 9 * 500},1\n" for n in range(60))
RUNS = """id,model,gpu,gpus,nodes,tp,pp,dp,micro_batch,global_batch,seq_len,iter_time_s,precision
A-1,gpt2-350m,a100-80gb,8,1,1,1,8,4,64,1024,0.5,bf16
A-2,gpt2-350m,a100-80gb,8,1,2,1,4,4,65,1024,0.6,bf16
"""


def commands_of(parser: ArgumentParser) -> Iterator[str]:
    """The words by which what the command line can do is asked for."""
    below = next((action for action in parser._actions if isinstance(action, _SubParsersAction)), None)
    if below is None:
        yield parser.prog.removeprefix("cellplan ")
        return
    for one in below.choices.values():
        yield from commands_of(one)


def test_each_command_has_a_schema() -> None:
    asked = [command for name in cli.COMMANDS for command in commands_of(cli.make_parser(name))]
    assert {command for command in asked if command.split()[0] != command or command in COMMANDS} == set(COMMANDS)
    assert {command.split()[0] for command in COMMANDS} == set(cli.COMMANDS) - {"mcp", "serve"}, "these serve"
    for command in COMMANDS:
        jsonschema.Draft202012Validator.check_schema(api.answer_schema(command))
    with pytest.raises(InputError, match="found 'fly', expected one of models list"):
        api.answer_schema("fly")


def properties_of(schema: object) -> Iterator[str]:
    """The names of what objects have, anywhere in `schema`."""
    if isinstance(schema, dict):
        named = schema.get("properties", {})
        yield from named
        for part in (*named.values(), *(value for key, value in schema.items() if key != "properties")):
            yield from properties_of(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from properties_of(part)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_schema_names_what_an_example_had(command: str) -> None:
    """A key is a word of ours; names of jobs, devices and models are keys of no schema."""
    assert [
        name for name in properties_of(api.answer_schema(command)) if not re.fullmatch("[a-z][a-z0-9_]*", name)
    ] == []


@pytest.mark.usefixtures("folder")
def test_what_is_beyond_a_budget_was_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(f"plan {ONE} --global-batch 8 {WHOLE} --budget 1".split(), 3, capsys)
    assert document["choices"]
    assert not any(choice["within"] for choice in document["choices"])
    assert all("the budget of 1" in " ".join(choice["over"]) for choice in document["choices"])
    assert document["nearest_miss"] in document["failure"]["message"]


def test_the_command_of_a_command_line() -> None:
    assert command_of(["plan", "comm", "fit"]) == "plan"
    assert command_of(["--json", "comm", "fit", "x"]) == "comm fit"
    assert command_of(["comm"]) is command_of(["plans"]) is command_of([]) is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With files that the commands below read, and are in."""
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE, encoding="utf-8")
    Path("runs.csv").write_text(RUNS, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "models list",
        "models show wide-resnet-2b",
        "models show moe-2.4b",
        "hardware list",
        "hardware show trn2",
        "hardware show nvswitch3",
        "hardware show megatron-core",
        f"estimate {ONE}",
        "estimate gpt2-1.3b --cluster v100-16gb:1x2",
        f"estimate {ONE} --tp 2",
        f"plan {ONE} --global-batch 8",
        f"plan {ONE} --global-batch 8 --explain",
        f"plan {ONE} --global-batch 8 --beside h100:1x1",
        f"plan {ONE} --global-batch 8 --front devices",
        f"plan {ONE} --global-batch 8 --meet 60",
        f"plan {ONE} --global-batch 8 --largest seq-len",
        f"plan {ONE} --global-batch 8 --why tp=2 --why recompute=none {WHOLE}",
        f"plan {ONE} --global-batch 8 --why tp=3",
        f"plan {ONE} --global-batch 8 --beside h100:1x1 {WHOLE} --price h100=3 --budget 1M",
        f"estimate {ONE} --tp 2 --largest micro-batch",
        f"estimate {ONE} --tp 2 {WHOLE}",
        f"place {ONE} --devices 2 --global-batch 8 {WHOLE}",
        f"place {ONE} --devices 2 --global-batch 8",
        "export --list",
        "validate runs.csv",
        SIMULATED,
        f"{SIMULATED} --seeds 0..1",
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_ends_well_is_by_its_schema(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "failure" not in document_of(line.split(), 0, capsys)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("estimate gpt3-175b --cluster a100-80gb:1x2", {"cells"}),
        ("estimate gpt3-175b --cluster a100-80gb:1x2 --tp 2", {"plan", "estimate"}),
        ("plan gpt3-175b --cluster a100-80gb:1x2", {"plan", "nearest"}),
        (f"plan {ONE} --fix tp=3 --explain", {"plan", "explanation", "nearest"}),
        ("plan gpt3-175b --cluster a100-80gb:1x2 --search cells", {"plan"}),
        ("plan gpt3-175b --cluster a100-80gb:1x2 --front memory", {"choices"}),
        (f"plan {ONE} --meet 1e-9", {"choices", "nearest"}),
        ("plan gpt3-175b --cluster a100-80gb:1x1 --largest micro-batch", {"plan", "largest"}),
        ("estimate gpt3-175b --cluster a100-80gb:1x1 --tp 1 --largest seq-len", {"largest"}),
        ("plan gpt3-175b --cluster a100-80gb:1x2 --beside h100:1x1", {"choices"}),
        ("place gpt3-175b --cluster a100-80gb:1x2 --devices 2", {"plan", "sites", "alternatives"}),
    ],
)
def test_where_nothing_fits_the_answer_says_why(
    line: str, known: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = document_of(line.split(), 3, capsys)
    assert known <= set(document)
    assert document["failure"]["kind"] == "nothing_fits"
    if document.get("nearest") and "plan" in known:
        assert document["nearest"]["lacking_bytes_per_device"] > 0
    for choice in document.get("choices", []):
        assert choice["reason"]


WRONG = {
    "models list": "models list --nosuch",
    "models show": "models show nosuch",
    "hardware list": "hardware list x",
    "hardware show": "hardware show nosuch",
    "hardware topology": "hardware topology --cluster t4:2x8",
    "network show": "network show t4:2x8 --between 0,2",
    "contention": "contention nosuch.yaml --cluster t4:2x8",
    "network paths": "network paths t4:2x8 0 2",
    "network probe": "network probe t4:2x8 1 --source 0 --read nosuch.txt",
    "network measure": "network measure nosuch.csv",
    "profile": "profile gpt-tiny --tp 3",
    "comm measure": "comm measure --ranks 1",
    "comm fit": "comm fit nosuch.txt --link nvswitch3",
    "comm show": "comm show --store nosuch",
    "estimate": "estimate gpt-tiny --cluster a100-80gb:1x2 --tp 5",
    "plan": "plan gpt-tiny --cluster a100-80gb:1x2 --schedule nosuch",
    "place": "place gpt-tiny --cluster a100-80gb:1x2 --devices 5 --local nosuch",
    "export": "export nosuch.json --to megatron",
    "run": "run nosuch.json",
    "validate": "validate nosuch.csv",
    "jct train": "jct train nosuch.csv -o model",
    "jct predict": "jct predict nosuch trace.csv",
    "jct evaluate": "jct evaluate trace.csv --origins 99999",
    "simulate": f"{SIMULATED} --policy nosuch",
    "profiles export": "profiles export out.json --store nosuch",
    "profiles import": "profiles import nosuch.json",
    "profiles show": "profiles show --store nosuch",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("folder")
def test_wrong_input_is_told_in_a_document(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(WRONG[command].split(), 2, capsys)
    assert list(document) == ["failure"]
    failure = document["failure"]
    assert (failure["schema"], failure["kind"]) == (FAILURE_SCHEMA, "input")
    assert failure["where"]
    for part in ("where", "key", "found", "expected"):
        assert failure[part] is None or failure[part] in failure["message"], part


def words_with_json(command: str, folder: Path) -> list[str]:
    """A command line that is right as far as can be seen before anything is done."""
    store = ["--store", str(folder / "store")]
    options = {
        "models show": ["gpt-tiny"],
        "hardware show": ["t4"],
        "hardware topology": ["--cluster", "t4:2x8"],
        "network show": ["t4:2x8"],
        "contention": ["jobs.yaml", "--cluster", "t4:2x8"],
        "network paths": ["t4:2x8", "0", "1"],
        "network probe": ["t4:2x8", "1", "--source", "0", "--read", "trace.csv"],
        "network measure": ["counters.csv"],
        "profile": ["gpt-tiny", *store],
        "comm measure": store,
        "comm fit": ["nccl.txt", "--link", "nvswitch3", *store],
        "comm show": store,
        "estimate": ONE.split(),
        "plan": ONE.split(),
        "place": [*ONE.split(), "--devices", "2"],
        "export": ["plan.json", "--to", "megatron"],
        "run": ["plan.json", *store],
        "validate": ["runs.csv"],
        "jct train": ["trace.csv", "-o", "model"],
        "jct predict": ["model", "trace.csv"],
        "jct evaluate": ["trace.csv"],
        "simulate": ["trace.csv", "--cluster", "a100-80gb:2x8"],
        "profiles export": ["out.json", *store],
        "profiles import": ["in.json", *store],
        "profiles show": store,
    }
    return [*command.split(), *options.get(command, []), "--json"]


def fail(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (MachineError("worker 1 died"), 4, "machine"),
        (PermissionError(13, "Permission denied", "here"), 4, "machine"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "here"), 2, "input"),
        (MemoryError(), 4, "machine"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (NothingFits("no way"), 3, "nothing_fits"),
        (NothingFits("no way", result=object()), 3, "nothing_fits"),
    ],
)
def test_what_the_machine_or_the_user_ends_is_told_in_a_document(
    command: str,
    error: BaseException,
    status: int,
    kind: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = command.replace(" ", "_")
    failing = fail(error)
    failing.options = getattr(getattr(api, name), "options", None)  # type: ignore[attr-defined]
    monkeypatch.setattr(api, name, failing)
    assert cli.main(words_with_json(command, folder)) == status
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    validator(command).validate(document)
    assert (document["failure"]["kind"], document["failure"]["command"]) == (kind, command)
    assert shown.err == f"cellplan: error: {document['failure']['message']}\n"


def test_from_python_the_same_document() -> None:
    with pytest.raises(NothingFits) as caught:
        api.plan("gpt3-175b", cluster="a100-80gb:1x2")
    document = api.describe_failure(caught.value, command="plan")
    validator("plan").validate(document)
    assert document["plan"] is None
    assert document["failure"]["status"] == 3


def test_a_full_disk_under_stdout_leaves_no_half_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed may be stdout itself: nothing more is written there."""
    monkeypatch.setattr(api, "models_list", fail(OSError(28, "No space left on device")))
    monkeypatch.setattr(cli, "_discard", lambda _stream: None)
    assert cli.main(["models", "list", "--json"]) == 4
    assert capsys.readouterr().out == ""


def test_a_word_behind_two_hyphens_asks_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "show", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""
