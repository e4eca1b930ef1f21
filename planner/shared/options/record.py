"""A command's options as one record: each is declared once, with its type, default and what it means.

From the record come the command line's arguments (`planner.cli.arguments`), the signature of the function in
`planner.api`, and the JSON Schema of a request. A record checks its values when it is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, fields
from functools import cache
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from planner.shared.options.values import Values, WrongValueError, values_of
from profiles.errors import InputError
from profiles.records import dataclass

Progress = Callable[[int, int, float | None, str], None]
"""Called with things done, things in all, seconds left (None: unknown) and what comes next."""


@dataclass(frozen=True, slots=True)
class Option:
    """What is said of an option beside its name, type and default: `Option("the first N jobs", "N")`.

    `metavar` and `values` None: what its type says (FILE, N, LIST; all that is of the type, whole numbers from 1, with
    commas between). `group` is the heading that help shows it under, `flag` its name on the command line where that is
    not the field's without the unit, `short` a letter besides. `repeated`: each use on the command line adds a value;
    `nargs` as argparse has it. `supplied`: what nobody says, the command line supplies. `writes`: it names a
    file that is written, or a folder (or file) that files are written into.
    """

    help: str
    metavar: str | tuple[str, ...] | None = None
    values: Values | None = None
    _: KW_ONLY
    group: str | None = None
    flag: str | None = None
    short: str | None = None
    repeated: bool = False
    nargs: str | int | None = None
    supplied: bool = False
    writes: Literal["", "file", "folder"] = ""


class Hook:
    """Marks a field that is no option: something that a Python caller alone can give, such as whom to tell how far the
    work is."""


HOOK = Hook()
ProgressHook = Annotated[Progress | None, HOOK]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One option of a record. `default` MISSING: it must be said."""

    name: str
    hint: Any
    option: Option
    default: Any
    positional: bool
    values: Values | None
    """Which values it takes, where its type does not say all."""

    @property
    def required(self) -> bool:
        """Whether somebody must say it."""
        return self.default is MISSING

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        if self.positional:
            return str(self.metavar)
        return self.option.flag or f"--{self.name.removesuffix('_s').replace('_', '-')}"

    @property
    def members(self) -> tuple[Any, ...]:
        """The types that a value may be of, None left out."""
        return _members(self.hint)

    @property
    def metavar(self) -> str | tuple[str, ...] | None:
        """What stands for its value in the help."""
        if self.option.metavar is not None or self.choices or self.option.nargs or self.option.repeated:
            return self.option.metavar
        if get_origin(self.members[0]) is tuple:
            return "LIST"
        return "N|RULE" if len(self.members) > 1 else {Path: "FILE", int: "N"}.get(self.members[0])

    @property
    def choices(self) -> tuple[Any, ...]:
        """The words (or numbers) that it is one of; empty where it is no such choice."""
        if self.option.values is not None or not all(get_origin(part) is Literal for part in self.members):
            return ()
        return tuple(word for part in self.members for word in get_args(part))

    @property
    def help(self) -> str:
        """What it means, with its default."""
        return self.option.help % {"default": self.default} if "%(" in self.option.help else self.option.help

    def accept(self, value: Any, *, where: str) -> Any:
        """Return `value` as a field holds it; raise InputError if it is none that the option takes."""
        try:
            refuse_blank(value, self)
            accepted = _convert(value, self.hint)
            if self.values is not None and accepted is not None and accepted != self.default:
                self.values.check(accepted)
        except WrongValueError as wrong:
            expected = self.values.expected if self.values else wrong.expected
            raise InputError(where=where, key=self.flag, found=wrong.found, expected=expected) from None
        return accepted


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all records of options are. `command` names them in messages."""

    command: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, entry in entries(type(self)).items():
            object.__setattr__(self, name, entry.accept(getattr(self, name), where=self.command))
        self.check()

    def check(self) -> None:
        """Raise InputError for options that contradict each other."""

    def wrong(self, name: str, *, found: object, expected: str) -> InputError:
        """Return the InputError about the option called `name`."""
        return InputError(where=self.command, key=entries(type(self))[name].flag, found=found, expected=expected)

    def changed(self) -> tuple[str, ...]:
        """Return the names of the options that are not at their default."""
        return tuple(name for name, entry in entries(type(self)).items() if getattr(self, name) != entry.default)

    def part(self, kind: type[O]) -> O:
        """Return the record of class `kind`, one that this class includes, with the same values."""
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    @classmethod
    def hooks(cls) -> tuple[str, ...]:
        """Return the names of the fields that are no options."""
        return tuple(field.name for field in fields(cls) if field.name not in entries(cls))

    def as_dict(self) -> dict[str, Any]:
        """Return all options by name."""
        return {name: getattr(self, name) for name in entries(type(self))}


O = TypeVar("O", bound=Options)  # noqa: E741


def entries(kind: type[Options]) -> Mapping[str, Entry]:
    """Return the options of `kind` by name, in the order of its fields."""
    key: Any = kind  # mypy takes the class's own __hash__ for that of its records
    return _entries(key)


@cache
def _entries(kind: Any) -> Mapping[str, Entry]:
    hints = {name: hint for base in reversed(kind.__mro__) for name, hint in _own_hints(base).items()}
    options = {}
    for field in fields(kind):
        option = _option(hints[field.name])
        if option is None:
            continue
        hint = get_args(hints[field.name])[0]
        derived = None if option.repeated or option.nargs else values_of(_members(hint))
        options[field.name] = Entry(
            name=field.name,
            hint=hint,
            option=option,
            default=field.default,
            positional=not field.kw_only,
            values=option.values or derived,
        )
    return options


@cache
def _own_hints(kind: Any) -> Mapping[str, Any]:
    """The types of the fields that a class itself adds to those of its bases, which most records of options share."""
    own = {name: text for name, text in vars(kind).get("__annotations__", {}).items() if "ClassVar" not in str(text)}
    return get_type_hints(SimpleNamespace(__annotations__=own), vars(sys.modules[kind.__module__]), include_extras=True)


def _option(hint: Any) -> Option | None:
    return next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Option)), None)


def refuse_blank(value: Any, entry: Entry) -> None:
    """Raise WrongValueError for a text of nothing but blanks, which names nothing."""
    if isinstance(value, str) and not value.strip() and value != entry.default and not entry.choices:
        raise WrongValueError(repr(value), "a path" if Path in entry.members else "some text")


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _members(hint: Any) -> tuple[Any, ...]:
    return tuple(part for part in _parts(hint) if part is not NoneType)


def _convert(value: Any, hint: Any) -> Any:
    """`value` as one of type `hint`: a list as a tuple, text as a path. WrongValueError if it is none."""
    members = _members(hint)
    if value is None and len(members) < len(_parts(hint)):
        return None
    expected = []
    for part in members:
        try:
            return _convert_one(value, part)
        except WrongValueError as wrong:
            if len(members) == 1:
                raise
            expected.append(wrong.expected)
    raise WrongValueError(_shown(value), " or ".join(dict.fromkeys(expected)))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return repr(value)
    # Of others no more than what they are: Python code may hand over anything.
    return value if isinstance(value, int | float | list | tuple | Path) or value is None else type(value).__name__


def _convert_one(value: Any, hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        if isinstance(value, str | int) and value in inner and not isinstance(value, bool):
            return value
        raise WrongValueError(_shown(value), f"one of {', '.join(map(str, inner))}")
    if origin is tuple and isinstance(value, tuple | list):
        if inner[-1] is Ellipsis:
            return tuple(_convert(part, inner[0]) for part in value)
        if len(inner) == len(value):
            return tuple(_convert(part, kind) for part, kind in zip(value, inner, strict=True))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(value, Mapping | tuple | list):
            return {key: _convert(part, inner[1]) for key, part in dict(value).items()}
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    raise WrongValueError(_shown(value), _TYPE_WORDS.get(hint, "a list of values"))


_TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
}
_JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "string", NoneType: "null"}


def schema_of(kind: type[Options]) -> dict[str, Any]:
    """Return the JSON Schema of a request: an object with the options of `kind`, by name."""
    options = entries(kind)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.command,
        "type": "object",
        "properties": {name: _property(entry) for name, entry in options.items()},
        "required": [name for name, entry in options.items() if entry.required],
        "additionalProperties": False,
    }


def _property(entry: Entry) -> dict[str, Any]:
    shape = _schema(entry.hint) | (dict(entry.values.schema) if entry.values else {})
    default = {} if entry.required else {"default": _plain(entry.default)}
    return shape | {"description": entry.help} | default


def _schema(hint: Any) -> dict[str, Any]:
    parts = _parts(hint)
    if len(parts) > 1:
        return {"anyOf": [_schema(part) for part in parts]}
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[-1] is Ellipsis:
        return {"type": "array", "items": _schema(inner[0])}
    if origin is tuple:
        return {"type": "array", "prefixItems": list(map(_schema, inner)), "minItems": len(inner), "items": False}
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    return {"type": "object", "additionalProperties": _schema(inner[1])}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
