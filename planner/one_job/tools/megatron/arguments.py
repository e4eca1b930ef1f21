"""Megatron-LM's arguments: which there are (`megatron_arguments.toml`), and those of a command line by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from planner.one_job.tools.base.import_records import not_understood
from planner.one_job.tools.base.settings import load_data
from planner.one_job.tools.megatron.shell import unknown_variable
from profiles.errors import InputError
from profiles.numerals import read_number
from profiles.records import dataclass

Kind = Literal["flags", "values", "lists"]
Role = Literal["used", "unfused_attention", "not_modelled", "refused", "renamed", "without_effect"]

LARGEST = 2**40

NODES = ("nnodes", "nnode", "num-nodes", "nodes")
PER_NODE = ("nproc-per-node", "num-gpus", "ntasks-per-node", "gpus-per-node", "tasks-per-node")
"""What torchrun, torch.distributed.launch, deepspeed and srun call nodes and the ranks on each."""

RENDEZVOUS = ("master-addr", "master-port", "node-rank", "rdzv-id", "rdzv-backend", "rdzv-endpoint", "rdzv-conf")
"""Further arguments of torchrun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of Megatron. `about` is what is said of it; with the value `default` nothing is."""

    kind: Kind
    role: Role
    about: str = ""
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Arguments by name, without the leading dashes; `script` is the file that they were given to, "" for none.

    `devices` is the launcher's world size, None where it does not say. `notes` are sentences about what was not
    understood.
    """

    setting: str
    values: Mapping[str, tuple[str, ...]]
    script: str = ""
    devices: int | None = None
    notes: tuple[str, ...] = ()

    def has(self, *names: str) -> bool:
        """Whether any of `names` was given."""
        return any(name in self.values for name in names)

    def words(self, name: str) -> tuple[str, ...]:
        """What follows the argument; nothing where it was not given. InputError for a variable that is not known."""
        given = self.values.get(name, ())
        for word in given:
            if (variable := unknown_variable(word)) is not None:
                expected = f"a value: {variable} is not assigned in what was read"
                raise self.wrong(name, word, expected)
        return given

    def text(self, name: str, default: str | None = None, *, choices: tuple[str, ...] = ()) -> str | None:
        """The word that follows; InputError where it is none of `choices`."""
        words = self.words(name)
        if not words:
            return default
        if choices and words[-1] not in choices:
            raise self.wrong(name, repr(words[-1]), f"one of {', '.join(choices)}")
        return words[-1]

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """As `text`, the first of `choices` where the argument was not given."""
        return self.text(name, choices=choices) or choices[0]

    def count(self, name: str, *, least: int = 1) -> int | None:
        """The whole number that follows, None where the argument was not given."""
        word = self.text(name)
        if word is None:
            return None
        if not (word.isascii() and word.isdigit() and len(word) < 14 and least <= int(word) <= LARGEST):
            raise self.wrong(name, repr(word), f"a whole number of at least {least}")
        return int(word)

    def required(self, name: str, why: str = "a whole number of at least 1") -> int:
        """As `count`, of an argument that must be there."""
        count = self.count(name)
        if count is None:
            raise self.wrong(name, "nothing", why)
        return count

    def number(self, name: str, default: float) -> float:
        """The number of at least 0 that follows."""
        word = self.text(name)
        if word is None:
            return default
        try:
            number = read_number(word)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise self.wrong(name, repr(word), "a number of at least 0")
        return number

    def wrong(self, name: str, found: object, expected: str) -> InputError:
        """The error about one argument."""
        return InputError(where=self.setting, key=f"--{name}", found=found, expected=expected)


@cache
def known_arguments() -> dict[str, Argument]:
    """All arguments of the data file by name."""
    return {name: Argument(**entry) for name, entry in _entries(load_data("megatron/arguments.toml"))}


def _entries(data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for old, new in data["renamed"].items():
        yield old, {"kind": "values", "role": "renamed", "about": new}
    for role, kinds in data.items():
        for kind, names in kinds.items() if role != "renamed" else ():
            for name in names:
                about = names[name] if isinstance(names, dict) else {}
                said = about if isinstance(about, dict) else {"about": about}
                yield name, {"kind": kind, "role": role, **said}


def read_arguments(words: Sequence[str], *, setting: str) -> Arguments:
    """The arguments in `words`: a whole command, or what follows the script in one. InputError where a value is
    missing, or a variable that nobody assigned stands among them."""
    split = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
    launching = list(words[:split]) if split is not None else []
    given = words[split + 1 :] if split is not None else words
    values, notes = _by_name(given, setting)
    if split is None:
        launcher_names = {*NODES, *PER_NODE, *RENDEZVOUS}
        launching = [
            word for name in values if _dashed(name) in launcher_names for word in (f"--{name}", *values[name])
        ]
        values = {name: words_given for name, words_given in values.items() if _dashed(name) not in launcher_names}
    devices = _world_size(launching, notes)
    notes += _describe_unread(values)
    return Arguments(
        setting=setting,
        values=values,
        script="" if split is None else words[split].rpartition("/")[2],
        devices=devices,
        notes=tuple(dict.fromkeys(notes)),
    )


def _by_name(words: Sequence[str], setting: str) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Values of each argument; of one given twice the last. Words that belong to none are noted.

    InputError for a variable among the arguments, since it may hold any of them.
    """
    values: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--"):
            variable = unknown_variable(word)
            if values and variable is not None and variable.isidentifier():
                expected = f"arguments: {variable} is not assigned in what was read"
                raise InputError(where=setting, found=word, expected=expected)
            if values and word not in ("$@", "$*"):
                notes.append(f"{word!r} follows no argument, and was not read")
            continue
        name, equals, value = word[2:].partition("=")
        end = at
        while end < len(words) and not words[end].startswith("--"):
            end += 1
        following = (value, *words[at:end]) if equals else tuple(words[at:end])
        argument = known_arguments().get(name)
        taken = _taken(argument, following)
        if argument is not None and argument.kind == "values" and not taken:
            raise InputError(where=setting, key=f"--{name}", found="no value", expected="a value after it")
        values[name] = taken
        at += max(0, len(taken) - bool(equals))
    return values, notes


def _taken(argument: Argument | None, following: tuple[str, ...]) -> tuple[str, ...]:
    """How many of the words that follow an argument are its own."""
    if argument is None or argument.kind == "lists":
        return following
    return following[:1] if argument.kind == "values" else ()


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _world_size(launching: Sequence[str], notes: list[str]) -> int | None:
    """Nodes times ranks on each, where the launcher's words say both; torchrun means one node where it says none."""
    words = ["--nodes" if word == "-N" else word for word in launching]
    given: dict[str, str] = {}
    for number, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            given[_dashed(name)] = value if equals else "".join(words[number + 1 : number + 2])
    one_node = any(word.endswith("torchrun") for word in words)
    nodes, per_node = _launched(given, NODES, 1 if one_node else None, notes), _launched(given, PER_NODE, None, notes)
    return nodes * per_node if nodes and per_node else None


def _launched(given: Mapping[str, str], names: tuple[str, ...], default: int | None, notes: list[str]) -> int | None:
    """The count under the first of `names` that was given; None where it is no number."""
    name = next((name for name in names if name in given), None)
    if name is None:
        return default
    value = given[name]
    if value.isascii() and value.isdigit() and 0 < int(value) < 10**9:
        return int(value)
    notes.append(f"--{name} {value}: no number, so that the devices are not taken from it (--devices)")
    return None


def _describe_unread(values: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Sentences about what estimates do not follow and what nobody knows."""
    arguments = known_arguments()
    said = []
    for name, words in values.items():
        argument = arguments.get(name)
        if argument is None:
            said.append(not_understood(name, arguments, shown="--{}".format))
        elif argument.role == "not_modelled" and (not words or " ".join(words) != argument.default):
            said.append(f"--{name}: not modelled; {argument.about}")
    return said


def refuse_others(arguments: Arguments, *, model_named: bool) -> None:
    """InputError for arguments that Megatron no longer has, and unless the user named the model for those that make
    another than a decoder."""
    for name in arguments.values:
        argument = known_arguments().get(name)
        if argument is not None and argument.role == "renamed":
            raise arguments.wrong(name, "an argument that Megatron no longer has", f"--{argument.about}")
        if argument is not None and argument.role == "refused" and not model_named:
            raise arguments.wrong(name, argument.about, "a decoder that is trained from tokens, or MODEL beside it")
