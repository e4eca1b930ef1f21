"""What a command prints with `--json`, whatever came of it: its answer, or a document of what went wrong, and the JSON
Schema of both.

A document of a failure has `failure`, of one shape for all commands. Where nothing fits it has besides the keys of the
command's answer, as far as they are known.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from typing import Any

from profiles.errors import InputError, MachineError, NothingFits

FAILURE_SCHEMA = "cellplan.failure/1"
MOST_LETTERS = 2000
"""Of a message: what was found may be a word of a megabyte."""

NOTHING: Mapping[str, Mapping[str, Any]] = {
    "estimate": {"cells": []},
    "plan": {"plan": None},
    "place": {"sites": [], "pods": [], "plan": None, "alternatives": []},
    "export": {"files": [], "nearest": None},
    "run": {"measured": None, "estimated": None, "losses": []},
    "validate": {"rows": []},
    "profile": {"layers": []},
    "simulate": {"finished": 0},
    "network paths": {"paths": []},
    "network probe": {"paths": []},
}
"""What commands answer that find nothing, where what raised NothingFits had no more to say. No other command can."""

COMMANDS: tuple[str, ...] = (
    "models list", "models show", "hardware list", "hardware show", "hardware topology", "profile", "comm measure",
    "comm fit", "comm show", "estimate", "plan", "place", "export", "run", "validate", "jct train", "jct predict",
    "jct evaluate", "simulate", "network show", "network paths", "network probe", "network measure",
    "contention", "profiles export", "profiles import", "profiles show",
)  # fmt: skip
"""By the words that they are asked by: the names of their answers."""


def command_of(words: Sequence[str]) -> str | None:
    """Return the name in `COMMANDS` of the command that a command line asks for; None if it asks for none."""
    asked = [word for word in words if not word.startswith("-")]
    return next((name for name in COMMANDS if asked[: name.count(" ") + 1] == name.split()), None)


NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a path that leads nowhere whatever the machine does: the input is wrong."""


def shorten(message: str) -> str:
    """Return a message as one line that is no longer than can be read."""
    line = " ".join(message.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= MOST_LETTERS else f"{line[: MOST_LETTERS // 2]} ... {line[-MOST_LETTERS // 2 :]}"


def describe_failure(error: BaseException, *, command: str | None = None) -> dict[str, Any]:
    """Return the document of what went wrong, as `--json` prints it: `failure`, and where nothing fits the `command`'s
    own keys before it.

    `error` is what a function of `planner.api` raised: an InputError (or a ValueError that has its attributes),
    NothingFits, MachineError, an OSError, MemoryError or KeyboardInterrupt. What is unknown is null. An OSError about
    a path that no file can have is told as wrong input.
    """
    if isinstance(error, OSError) and error.errno in NO_PATH:
        where = str(error.filename)
        error = InputError(where=where, found=f"an error ({error.strerror})", expected="a path that a file can have")
    kind, status = _kind(error)
    failure = {
        "schema": FAILURE_SCHEMA,
        "command": command,
        "status": status,
        "kind": kind,
        "message": shorten(say_failure(error)),
        **{key: _text(getattr(error, key, None)) for key in ("where", "key", "found", "expected")},
    }
    return {**_answer_without(error, command), "failure": failure}


def say_failure(error: BaseException) -> str:
    """Return the message of what went wrong."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError):
        return "this process may take no more memory"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror or error}"
    return str(error)


def _kind(error: BaseException) -> tuple[str, int]:
    """What kind of failure it is, and the exit status of the command that ends so."""
    if isinstance(error, NothingFits):
        return "nothing_fits", 3
    if isinstance(error, MachineError | OSError | MemoryError):
        return "machine", 4
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    return "input", 2


def _text(value: object) -> str | None:
    return None if value is None else shorten(str(value))


def _answer_without(error: BaseException, command: str | None) -> Mapping[str, Any]:
    if not isinstance(error, NothingFits):
        return {}
    return error.result if isinstance(error.result, dict) else NOTHING.get(command or "", {})


def is_failure(document: object) -> bool:
    """Return whether a document that a command printed says that something went wrong."""
    return isinstance(document, dict) and "failure" in document


def answer_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of all that the command called `command` (`"plan"`, `"comm fit"`) prints with `--json`, as
    one schema: the published files that it names are in it. Raise InputError for a name that is none."""
    if command not in COMMANDS:
        raise InputError(where="answer_schema", found=repr(command), expected=f"one of {', '.join(COMMANDS)}")
    schema = _published(f"{command.replace(' ', '-')}-answer.schema.json")
    names = sorted(set(_references(schema)))
    return {**schema, "$defs": {**schema.get("$defs", {}), **{name: _published(name) for name in names}}}


def _published(name: str) -> dict[str, Any]:
    """A schema of this package, with its file's name as what others name it by."""
    from importlib.resources import files

    text = files("planner.shared").joinpath("schemas", name).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return {**schema, "$id": name}


def _references(schema: object) -> list[str]:
    """The files that a schema refers to."""
    if isinstance(schema, dict):
        named = schema.get("$ref")
        own = [named] if isinstance(named, str) and named.endswith(".json") else []
        return own + [name for part in schema.values() for name in _references(part)]
    if isinstance(schema, list):
        return [name for part in schema for name in _references(part)]
    return []
