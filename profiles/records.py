"""The `dataclass` that all records here are made with: the standard library's, whose methods are not written and
compiled for each class anew when its module is imported. A command makes some 300 records, a third of its start.

To a type checker it is `dataclasses.dataclass` itself, and `field`, `fields`, `replace`, `asdict` stay the library's.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from itertools import repeat
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        kw_only: bool = False,
        eq: bool = True,
        order: bool = False,
    ) -> Any:
        """Return `cls` as a record, or the decorator that makes it one. Arguments are the standard library's."""

        def make(plain: type) -> type:
            if order:
                return dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only, eq=eq, order=True)(plain)
            return _make_record(plain, frozen=frozen, slots=slots, kw_only=kw_only, eq=eq)

        return make if cls is None else make(cls)


_UNSET = object()
"""Stands for a value that the record makes itself."""


def _make_record(plain: type, *, frozen: bool, slots: bool, kw_only: bool, eq: bool) -> type:
    explicit = set(vars(plain))
    if plain.__doc__ is None:
        plain.__doc__ = plain.__name__  # the library would write a signature
    made = _with_fields(plain, slots=slots, kw_only=kw_only)
    methods: dict[str, Any] = {"__repr__": _repr}
    methods["__init__"] = _when_asked(made, "__init__", lambda: _write_init(made, frozen=frozen, slots=slots))
    if eq:
        methods["__eq__"] = _when_asked(made, "__eq__", lambda: _write_eq(made))
        methods["__hash__"] = _when_asked(made, "__hash__", lambda: _write_hash(made)) if frozen else None
        if "__eq__" in explicit and vars(plain)["__hash__"] is None:
            explicit.discard("__hash__")  # Python's own mark
    if frozen:
        methods |= _frozen_methods(made)
        made.__dataclass_params__.frozen = True  # type: ignore[attr-defined]
        if slots:
            methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in explicit:
            setattr(made, name, method)
    return made


def _with_fields(plain: type, *, slots: bool, kw_only: bool) -> type:
    """`plain` with the library's account of its fields, and no method."""
    bases = [vars(base)["__dataclass_params__"] for base in plain.__mro__ if "__dataclass_params__" in vars(base)]
    frozen_bases = [params for params in bases if params.frozen]
    for params in frozen_bases:
        params.frozen = False  # the library would refuse a class that it takes for a mutable one
    try:
        return dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(plain)
    finally:
        for params in frozen_bases:
            params.frozen = True


def _when_asked(made: type, name: str, write: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """What writes a method of the class `made` when it is first called: most classes of a command have no instance."""

    def method(self: Any, *args: Any, **values: Any) -> Any:
        written = write()
        setattr(made, name, written)
        return written(self, *args, **values)

    return method


def _write_init(made: type, *, frozen: bool, slots: bool) -> Callable[..., Any]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_UNSET": _UNSET}
    positional, keywords, body = ["self"], list[str](), list[str]()
    for field in dataclasses.fields(made):
        name, word, value = field.name, field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            word = f"{name}=_UNSET"
            value = f"_make_{name}() if {name} is _UNSET else {name}" if field.init else f"_make_{name}()"
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
    return _compiled(made, f"__init__({words})", body or ["pass"], names)


def _write_eq(made: type) -> Callable[..., Any]:
    names = [field.name for field in dataclasses.fields(made) if field.compare]
    unlike = "if other.__class__ is not self.__class__: return NotImplemented"
    body = [unlike, f"return {_values_of('self', names)} == {_values_of('other', names)}"]
    return _compiled(made, "__eq__(self, other)", body, {})


def _write_hash(made: type) -> Callable[..., Any]:
    names = [field.name for field in dataclasses.fields(made) if field.compare and field.hash is not False]
    return _compiled(made, "__hash__(self)", [f"return hash({_values_of('self', names)})"], {})


def _values_of(record: str, names: list[str]) -> str:
    return "(" + "".join(f"{record}.{name}, " for name in names) + ")"


def _compiled(made: type, head: str, body: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    """The function whose head and lines these are, as a method of `made`."""
    exec(f"def {head}:\n  " + "\n  ".join(body), names)
    method: Callable[..., Any] = names[head.partition("(")[0]]
    method.__qualname__ = f"{made.__qualname__}.{method.__name__}"
    return method


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _frozen_methods(made: Any) -> dict[str, Any]:
    names = frozenset(field.name for field in dataclasses.fields(made))

    def set_value(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    return {"__setattr__": set_value, "__delattr__": delete}


def _get_state(self: Any) -> list[Any]:
    """For `copy`, as the library has it for frozen records with slots."""
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(record: Any, /, **changes: Any) -> Any:
        """Return `record` with some fields changed, as the standard library does it, but sooner: searches ask for it by
        the ten thousand. What a record makes itself its `__post_init__` makes anew. TypeError for a name that is none
        of its fields."""
        cls = record.__class__
        copied = _COPIED.get(cls)
        if copied is None:
            names = tuple(field.name for field in dataclasses.fields(cls))
            copied = _COPIED[cls] = names, attrgetter(*names, names[0]), hasattr(cls, "__post_init__")
        names, values_of, has_more = copied
        made = object.__new__(cls)
        deque(map(_set_field, repeat(made), names, values_of(record)), maxlen=0)
        for name, value in changes.items():
            if name not in names:
                raise TypeError(f"{cls.__name__}: found {name!r}, expected one of {', '.join(names)}")
            _set_field(made, name, value)
        if has_more:
            made.__post_init__()
        return made


_COPIED: dict[type, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], bool]] = {}
"""Of the records that were changed: their fields, and whether they do more when they are made."""
_set_field = object.__setattr__
