"""The arguments of a command, made from its records of options; and the record that they come back as."""

from __future__ import annotations

import os
from argparse import (
    Action,
    ArgumentError,
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
    _ActionsContainer,
)
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from planner.shared.options.record import Entry, Options, entries, refuse_blank
from planner.shared.options.values import Values, WrongValueError
from profiles.errors import MachineError

O = TypeVar("O", bound=Options)  # noqa: E741


def add_json_option(parser: ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="machine-readable output alone on stdout")


def add_options(parser: ArgumentParser, *kinds: type[Options]) -> None:
    """Give `parser` an argument for each option of these records, under the headings of their groups, and `--json`."""
    groups: dict[str | None, _ActionsContainer] = {None: parser}
    # What the first does not need is not needed: it is what another question is asked by.
    needed = {name for kind in kinds[:1] for name, entry in entries(kind).items() if entry.required}
    for name, entry in {name: entry for kind in kinds for name, entry in entries(kind).items()}.items():
        group = entry.option.group
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        groups[group].add_argument(*_names(entry), **_words(name, entry, required=name in needed))
    add_json_option(parser)


def chosen(arguments: Namespace, kind: type[O], **hooks: Any) -> O:
    """Return the record that the arguments mean, with `hooks` for what is no option. Raise InputError for options that
    contradict each other."""
    options = entries(kind)
    values = {name: getattr(arguments, name) for name in options}
    for name, entry in options.items():
        if entry.option.supplied and values[name] is None:
            place = SUPPLIED[name]()
            # The user's own folder need not be there yet; what is only read then has nothing to say.
            there = place is not None and (entry.required or place.parent.is_dir())
            values[name] = place if there else None
    taken = {name: hook for name, hook in hooks.items() if name in kind.hooks()}
    return kind(**values, **taken)


def _names(entry: Entry) -> list[str]:
    if entry.positional:
        return [entry.name]
    return [*([entry.option.short] if entry.option.short else []), entry.flag]


def _words(name: str, entry: Entry, *, required: bool) -> dict[str, Any]:
    """What argparse is told of one option."""
    option = entry.option
    words: dict[str, Any] = {"help": option.help, "default": None if entry.required else entry.default}
    if entry.positional:
        words |= {"nargs": None if entry.required else "?"}
    else:
        words |= {"dest": name, "required": required and not option.supplied}
    if entry.members == (bool,):
        return words | {"action": "store_true" if entry.default is False else _OneWay}
    words |= {"action": _Collect if option.repeated else _Once}
    if entry.metavar is not None:
        words["metavar"] = entry.metavar
    if option.nargs is not None:
        words["nargs"] = option.nargs
    if entry.choices:
        return words | {"choices": entry.choices, "type": type(entry.choices[0])}
    if entry.values is not None:
        return words | {"type": _reader(entry.values)}
    return words | {"type": _text_reader(entry)}


def _text_reader(entry: Entry) -> Callable[[str], Any]:
    """What reads a text or path, which is not blank."""
    kind = Path if "Path" in str(entry.hint) else str

    def read(word: str) -> Any:
        try:
            refuse_blank(word, entry)
        except WrongValueError as wrong:
            raise ArgumentTypeError(str(wrong)) from None
        return kind(word)

    return read


def _reader(values: Values) -> Callable[[str], Any]:
    """What reads a word for argparse, which prints the message of ArgumentTypeError alone as it is."""

    def read(word: str) -> Any:
        try:
            return values.parse(word)
        except WrongValueError as wrong:
            raise ArgumentTypeError(str(wrong)) from None

    return read


class _Once(Action):
    """Keeps the value of an option that is given once; of two that are given, neither could count silently."""

    def __call__(
        self,
        _: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: set[str] = vars(namespace).setdefault(GIVEN, set())
        if option_string is not None and self.dest in given:
            raise ArgumentError(self, "found it twice, expected it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class _OneWay(BooleanOptionalAction):
    """A switch that is set or unset, not both: the last would win silently."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: dict[str, str] = vars(namespace).setdefault(SWITCHED, {})
        before = given.setdefault(self.dest, option_string or "")
        if before != option_string:
            raise ArgumentError(self, f"found {before} and {option_string}, expected one of them")
        super().__call__(parser, namespace, values, option_string)


SWITCHED = "given_switches"
"""Where a namespace keeps which switches were given, and how."""
GIVEN = "given_options"
"""Where a namespace keeps which options were given."""


class _Collect(Action):
    """Keeps all values of an option that is given several times."""

    def __call__(
        self,
        _: ArgumentParser,
        namespace: Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        setattr(namespace, self.dest, (*(getattr(namespace, self.dest) or ()), values))


def user_store() -> Path:
    """Return the profile store of whoever runs the command: `$CELLPLAN_STORE`, else a file among the user's data. Only
    the command line looks into the environment."""
    named = os.environ.get("CELLPLAN_STORE")
    return Path(named) if named else _user_folder() / "store.sqlite"


def make_user_folder() -> None:
    """Make the folder of the user's own profile store, for a command that writes there."""
    if not os.environ.get("CELLPLAN_STORE"):
        try:
            _make_folder(_user_folder())
        except OSError as error:
            place = f"{error.filename}: {error.strerror}"
            raise MachineError(f"{place}; name a file elsewhere by --store or $CELLPLAN_STORE") from error


def _user_folder() -> Path:
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else _home() / ".local" / "share") / "cellplan"


def _home() -> Path:
    """`~` where this user has none: what only reads a store does without."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("~")


def user_cells() -> Path | None:
    """Return the folder of Cells beside the user's profile store, and make it; None where nothing can be kept there:
    they only save time."""
    folder = user_store().parent / "cells"
    try:
        _make_folder(folder)
    except (OSError, MachineError):
        return None
    return folder if os.access(folder, os.W_OK) else None


def _make_folder(folder: Path) -> None:
    """MachineError where there is no home to make it in."""
    if folder.parts[0] == "~":
        raise MachineError(f"{folder}: this user has no home folder; name a file by --store or $CELLPLAN_STORE")
    folder.mkdir(parents=True, exist_ok=True)


SUPPLIED: dict[str, Callable[[], Path | None]] = {"store": user_store, "cells_file": user_cells}
"""What the command line says where nobody does, for options that are `supplied`."""
