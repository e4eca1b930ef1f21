"""The methods of records (`profiles.records`), written and compiled once for all records with as many fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any

Field = Any
"""A `dataclasses.Field`, of whatever type."""
UNSET = object()
"""Stands for a value that the record makes itself, and for one that has to be given."""


def write_init(made: type, fields: tuple[Field, ...], *, frozen: bool, slots: bool) -> Callable[..., Any]:
    """Return the `__init__` of `made`, which has these fields."""
    if all(field.init and field.default_factory is dataclasses.MISSING for field in fields):
        return _write_plain_init(made, fields, frozen=frozen)
    names: dict[str, Any] = {"_set": object.__setattr__, "UNSET": UNSET}
    positional, keywords, body = ["self"], list[str](), list[str]()
    for field in fields:
        name, word, value = field.name, field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            word = f"{name}=UNSET"
            value = f"_make_{name}() if {name} is UNSET else {name}" if field.init else f"_make_{name}()"
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            word = f"{name}=_default_{name}"
            value = name if field.init else f"_default_{name}"
        if field.init:
            (keywords if field.kw_only else positional).append(word)
        elif value == name or (not slots and not value.endswith("()")):
            continue  # `__post_init__` sets it, or the class holds it
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    words = ", ".join([*positional, "*", *keywords] if keywords else positional)
    exec(f"def __init__({words}):\n  " + "\n  ".join(body or ["pass"]), names)
    return _as_method(made, names["__init__"])


def _write_plain_init(made: type, fields: tuple[Field, ...], *, frozen: bool) -> Callable[..., Any]:
    """`__init__` of fields that are all given, or have a default."""
    positional, keywords = [[field for field in fields if field.kw_only is kw_only] for kw_only in (False, True)]
    order = [*positional, *keywords]
    numbered = [f"_{number}" for number in range(len(order))]
    words = ["self", *numbered[: len(positional)], *(["*"] if keywords else []), *numbered[len(positional) :]]
    number_of = {field.name: number for number, field in zip(numbered, order, strict=True)}
    body = [
        f"_set(self, {number!r}, {number})" if frozen else f"self.{number} = {number}"
        for number in map(number_of.__getitem__, (field.name for field in fields))
    ]
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    method = _renamed(made, f"__init__({', '.join(words)})", body or ["pass"], [field.name for field in order])
    given = [field for field in positional if field.default is not dataclasses.MISSING]
    method.__defaults__ = tuple(field.default for field in given) or None
    method.__kwdefaults__ = {
        field.name: field.default for field in keywords if field.default is not dataclasses.MISSING
    } or None
    return method


def write_eq(made: type, names: list[str]) -> Callable[..., Any]:
    """Return the `__eq__` of `made`, by the fields of these names."""
    unlike = "if other.__class__ is not self.__class__: return NotImplemented"
    body = [unlike, f"return {_values_of('self', len(names))} == {_values_of('other', len(names))}"]
    return _renamed(made, "__eq__(self, other)", body, names)


def write_hash(made: type, names: list[str]) -> Callable[..., Any]:
    """Return the `__hash__` of `made`, by the fields of these names."""
    return _renamed(made, "__hash__(self)", [f"return hash({_values_of('self', len(names))})"], names)


def _values_of(record: str, count: int) -> str:
    return "(" + "".join(f"{record}._{number}, " for number in range(count)) + ")"


def _renamed(made: type, head: str, body: list[str], names: list[str]) -> Callable[..., Any]:
    """The function whose head and lines these are, as a method of `made`: its fields are called _0, _1 and so on there,
    and have `names` here. So records with as many fields are compiled once."""
    code = _compiled_code(head, "\n  ".join(body))
    name_of = {f"_{number}": name for number, name in enumerate(names)}

    def named(words: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(name_of.get(word, word) if type(word) is str else word for word in words)

    own = code.replace(
        co_names=named(code.co_names), co_varnames=named(code.co_varnames), co_consts=named(code.co_consts)
    )
    return _as_method(made, FunctionType(own, {"_set": object.__setattr__}))


@cache
def _compiled_code(head: str, body: str) -> CodeType:
    written: dict[str, Any] = {}
    exec(f"def {head}:\n  {body}", written)
    code: CodeType = written[head.partition("(")[0]].__code__
    return code


def _as_method(made: type, method: Callable[..., Any]) -> Callable[..., Any]:
    method.__qualname__ = f"{made.__qualname__}.{method.__name__}"
    return method
