"""The `dataclass` that all records here are made with: the standard library's, which takes account of the fields and
writes and compiles the methods of every class when its module is imported. A command imports some 300 records, which
were a third of its start, and makes few instances of few of them: here both happen when they are needed.

To a type checker it is `dataclasses.dataclass` itself, and `field`, `fields`, `replace`, `asdict` stay the library's.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

from profiles.record_methods import UNSET, Field, write_eq, write_hash, write_init

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


_CALLS_BEFORE_COMPILING = 16
"""Writing and compiling a method takes as long as so many calls of the form that asks what the fields are."""
_OF_LIBRARY = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
"""What the library keeps in a class."""


class _Content:
    """What a class without bases says of its fields: names and defaults, or their `dataclasses.field`, in order."""

    __slots__ = ("annotations", "defaults", "frozen", "kind", "kw_only")

    def __init__(self, plain: type, *, kw_only: bool, frozen: bool) -> None:
        self.kind, self.kw_only, self.frozen = plain, kw_only, frozen
        self.annotations: dict[str, str] = vars(plain)["__annotations__"]
        self.defaults = {name: getattr(plain, name, UNSET) for name in self.annotations}

    def of_library(self) -> dict[str, Any]:
        """What the library keeps in a class, by its name there, read off a class with these fields and nothing else."""
        given = {name: default for name, default in self.defaults.items() if default is not UNSET}
        alone = type(self.kind.__name__, (), given | {"__annotations__": self.annotations, "__doc__": "Fields alone."})
        alone.__module__ = self.kind.__module__
        made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=self.kw_only)(alone)
        made.__dataclass_params__.frozen = self.frozen
        return {name: getattr(made, name) for name in _OF_LIBRARY}

    def fields(self) -> tuple[Field, ...]:
        """The fields as far as methods need them."""
        described = []
        for name, default in self.defaults.items():
            if default is UNSET:
                field: Field = dataclasses.field(kw_only=self.kw_only)
            elif isinstance(default, dataclasses.Field):
                field = default
                field.kw_only = self.kw_only if field.kw_only is dataclasses.MISSING else field.kw_only
            else:
                field = dataclasses.field(default=default, kw_only=self.kw_only)
            field.name = name
            described.append(field)
        return tuple(described)


class _OfLibrary:
    """An attribute that the library keeps in a record's class, put there when it is first read."""

    __slots__ = ("content", "name")

    def __init__(self, name: str, content: _Content) -> None:
        self.name, self.content = name, content

    def __get__(self, record: object, kind: type | None = None) -> Any:
        account = self.content.of_library()
        for name, value in account.items():
            setattr(self.content.kind, name, value)
        return account[self.name]


def _make_record(plain: type, *, frozen: bool, slots: bool, kw_only: bool, eq: bool) -> type:
    explicit = set(vars(plain))
    if plain.__doc__ is None:
        plain.__doc__ = plain.__name__  # the library would write a signature
    content: _Content | None = None
    if plain.__bases__ == (object,) and all(map(_is_simple, vars(plain).get("__annotations__", {"": None}).values())):
        content = _Content(plain, kw_only=kw_only, frozen=frozen)
        made = _with_content(plain, content, slots=slots)
    else:
        made = _with_fields(plain, slots=slots, kw_only=kw_only)
        made.__dataclass_params__.frozen = frozen  # type: ignore[attr-defined]
    for name, method in _methods(made, content, frozen=frozen, slots=slots, eq=eq):
        marked = name == "__hash__" and "__eq__" in explicit and vars(plain)["__hash__"] is None  # Python's own mark
        if name not in explicit or marked:
            setattr(made, name, method)
    return made


def _is_simple(annotation: object) -> bool:
    """Return whether it is the text of a type alone: no class variable, no mark for the library."""
    return isinstance(annotation, str) and not annotation.startswith(("ClassVar", "KW_ONLY", "InitVar", "typing."))


def _with_content(plain: type, content: _Content, *, slots: bool) -> type:
    """`plain` as the library would leave it but for its methods: with slots in place of its defaults, a new class."""
    lazy = {name: _OfLibrary(name, content) for name in _OF_LIBRARY}
    if slots:
        kept = {name: value for name, value in vars(plain).items() if name not in content.defaults}
        for name in ("__dict__", "__weakref__"):
            kept.pop(name, None)
        made = type(plain)(plain.__name__, (), kept | lazy | {"__slots__": tuple(content.defaults)})
        made.__qualname__ = plain.__qualname__
    else:
        made = plain
        for name, value in lazy.items():
            setattr(made, name, value)
        for name, default in content.defaults.items():
            if isinstance(default, dataclasses.Field):
                if default.default is dataclasses.MISSING:
                    delattr(made, name)
                else:
                    setattr(made, name, default.default)
    content.kind = made
    return made


def _with_fields(plain: type, *, slots: bool, kw_only: bool) -> type:
    """`plain` with the library's account of its fields, and no method."""
    bases: list[Any] = [base for base in plain.__mro__ if "__dataclass_params__" in vars(base)]
    frozen_bases = [base.__dataclass_params__ for base in bases if base.__dataclass_params__.frozen]
    for params in frozen_bases:
        params.frozen = False  # the library would refuse a class that it takes for a mutable one
    try:
        return dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(plain)
    finally:
        for params in frozen_bases:
            params.frozen = True


def _methods(made: type, content: _Content | None, *, frozen: bool, slots: bool, eq: bool) -> Iterator[tuple[str, Any]]:
    def fields() -> tuple[Field, ...]:
        return dataclasses.fields(made) if content is None else content.fields()

    yield "__repr__", _repr
    init = _Written(made, "__init__", lambda: write_init(made, fields(), frozen=frozen, slots=slots))
    yield "__init__", init.method() if content is None else _init_by_content(init, content, frozen=frozen)
    if eq:
        equal = _Written(made, "__eq__", lambda: write_eq(made, _compared(fields())))
        yield "__eq__", equal.method() if content is None else _eq_by_content(equal, content)
        hashed = _Written(made, "__hash__", lambda: write_hash(made, _compared(fields(), hashed=True)))
        by_content = hashed.method() if content is None else _hash_by_content(hashed, content)
        yield "__hash__", by_content if frozen else None
    if frozen:
        yield from _frozen_methods(made).items()
        if slots:
            yield "__getstate__", _get_state
            yield "__setstate__", _set_state


def _compared(fields: tuple[Field, ...], *, hashed: bool = False) -> list[str]:
    """The fields by which two records are compared; if `hashed`, those of which the hash is made."""
    return [field.name for field in fields if field.compare and not (hashed and field.hash is False)]


class _Written:
    """A method of the class `made`, written when that is worth it: most classes of a command have few instances."""

    __slots__ = ("calls", "made", "name", "write")

    def __init__(self, made: type, name: str, write: Callable[[], Callable[..., Any]]) -> None:
        self.made, self.name, self.write = made, name, write
        self.calls = 0

    def now(self) -> Callable[..., Any]:
        """Write the method, give it to the class and return it."""
        written = self.write()
        setattr(self.made, self.name, written)
        return written

    def is_worth_it(self) -> bool:
        """Count another call, and return whether there have been so many that the method should be written."""
        self.calls += 1
        return self.calls > _CALLS_BEFORE_COMPILING

    def method(self) -> Callable[..., Any]:
        """What stands in for the method, until its first call."""

        def method(record: Any, *args: Any, **values: Any) -> Any:
            return self.now()(record, *args, **values)

        return method


def _init_by_content(written: _Written, content: _Content, *, frozen: bool) -> Callable[..., Any]:
    """The first `__init__`: sets what is given by keyword and the defaults; the written one does all else."""
    set_value = object.__setattr__ if frozen else setattr
    defaults: dict[str, Any] = {}
    required: set[str] = set()

    def init(self: Any, *args: Any, **values: Any) -> None:
        if not written.calls:
            fields = content.fields()
            if all(field.init and field.default_factory is dataclasses.MISSING for field in fields):
                defaults.update((field.name, field.default) for field in fields)
                required.update(name for name, default in defaults.items() if default is dataclasses.MISSING)
            else:
                required.add("")  # no call gives it
        if args or written.is_worth_it() or not required <= values.keys() <= defaults.keys():
            written.now()(self, *args, **values)
            return
        for name, default in defaults.items():
            set_value(self, name, values.get(name, default))
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    return init


def _eq_by_content(written: _Written, content: _Content) -> Callable[..., Any]:
    names: list[str] = []

    def eq(self: Any, other: Any) -> Any:
        if not written.calls:
            names[:] = _compared(content.fields())
        if written.is_worth_it():
            return written.now()(self, other)
        if other.__class__ is not self.__class__:
            return NotImplemented
        return [getattr(self, name) for name in names] == [getattr(other, name) for name in names]

    return eq


def _hash_by_content(written: _Written, content: _Content) -> Callable[..., Any]:
    names: list[str] = []

    def hash_value(self: Any) -> Any:
        if not written.calls:
            names[:] = _compared(content.fields(), hashed=True)
        if written.is_worth_it():
            return written.now()(self)
        return hash(tuple([getattr(self, name) for name in names]))

    return hash_value


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _frozen_methods(made: Any) -> dict[str, Any]:
    def is_field(name: str) -> bool:
        return any(field.name == name for field in dataclasses.fields(made))

    def set_value(self: Any, name: str, value: object) -> None:
        if type(self) is made or is_field(name):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is made or is_field(name):
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
