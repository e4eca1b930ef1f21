"""Records of ours behave as the standard library's do: the same classes are made by both and compared."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest

from profiles.records import dataclass as ours
from profiles.records import replace as our_replace
from tests.planner.test_project import PACKAGES, ROOT

MADE = [0]


def _next() -> int:
    MADE[0] += 1
    return MADE[0]


def _classes(decorator: Callable[..., Any]) -> dict[str, type[Any]]:
    """The same classes, made by `decorator`."""

    @decorator(frozen=True, slots=True, kw_only=True)
    class Base:
        """What it is."""

        NAMES: ClassVar[tuple[str, ...]] = ("a",)
        a: int
        b: tuple[float, ...] = (1.0,)
        shown: str = field(default="x", repr=False, compare=False)
        table: dict[str, int] = field(default_factory=dict, hash=False)

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("below 0")

    @decorator(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        c: int = 3
        b: tuple[float, ...] = (2.0, 3.0)

    @decorator(frozen=True, slots=True)
    class Positional:
        first: str
        second: int = 2
        third: int = field(default=5, kw_only=True)

    @decorator(frozen=True, slots=True, kw_only=True)
    class One:
        value: Any

    @decorator(frozen=True)
    class Empty:
        pass

    @decorator(frozen=True, kw_only=True)
    class Open:
        a: int
        digest: int = field(init=False, repr=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "digest", self.a * 7)

        @cached_property
        def twice(self) -> int:
            return 2 * self.a

        def __hash__(self) -> int:
            return self.digest

    @decorator(slots=True)
    class Mutable:
        a: int
        seen: list[int] = field(init=False)
        kept: int = field(init=False, default=4)
        number: int = field(init=False, default_factory=_next)

        def __post_init__(self) -> None:
            self.seen = [self.a]

    @decorator(frozen=True, slots=True, kw_only=True, eq=False)
    class Same:
        a: int

    @decorator(order=True, slots=True)
    class Ordered:
        a: int
        b: int = field(default=0, compare=False)

    @decorator
    class Plain:
        a: int = 1

    return {key: value for key, value in locals().items() if key != "decorator"}


OURS, THEIRS = _classes(ours), _classes(dataclasses.dataclass)

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Base", (), {"a": 1}),
    ("Base", (), {"a": 1, "b": (math.nan,), "table": {"k": 1}}),
    ("Base", (), {"a": -1}),
    ("Base", (), {}),
    ("Base", (1,), {}),
    ("Base", (), {"a": 1, "unknown": 2}),
    ("Derived", (), {"a": 1, "c": 9}),
    ("Positional", ("x", 4), {"third": 1}),
    ("Positional", (), {"second": 1}),
    ("One", (), {"value": math.nan}),
    ("One", (), {"value": (1, 2)}),
    ("Empty", (), {}),
    ("Open", (), {"a": 3}),
    ("Open", (), {"a": 3, "digest": 2}),
    ("Mutable", (5,), {}),
    ("Same", (), {"a": 1}),
    ("Ordered", (1,), {}),
    ("Plain", (), {}),
]


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def _observed(kind: type[Any], positional: tuple[Any, ...], values: dict[str, Any]) -> dict[str, object]:
    """Everything that one can ask of a record."""
    MADE[0] = 0
    record = _outcome(lambda: kind(*positional, **values))
    if isinstance(record, tuple):
        return {"error": record}
    name = fields(kind)[0].name if fields(kind) else "none"
    return {
        "repr": repr(record),
        "dict": asdict(record),
        "names": [(each.name, each.kw_only, each.init, each.compare) for each in fields(record)],
        "slots": hasattr(record, "__dict__"),
        "match": kind.__match_args__,
        "doc": kind.__doc__ if kind.__name__ == "Base" else None,
        "set": _outcome(lambda: setattr(record, name, getattr(record, name, None))),
        "new": _outcome(lambda: setattr(record, "not_there", 1))
        if kind.__dataclass_params__.frozen and hasattr(record, "__dict__")  # with slots the library trips itself
        else None,
        "delete": _outcome(lambda: delattr(copy.copy(record), name)) if name != "none" else None,
        "equal": (record == copy.copy(record), record == replace(record), record == 3, record != copy.deepcopy(record)),
        "hash": _outcome(lambda: hash(record) == hash(copy.copy(record))),
        "digest": _outcome(lambda: hash(record)) if kind.__name__ != "Same" else None,
        "params": kind.__dataclass_params__.frozen,
    }


@pytest.mark.parametrize(("name", "positional", "values"), CALLS)
def test_a_record_is_what_the_library_makes(name: str, positional: tuple[Any, ...], values: dict[str, Any]) -> None:
    for _ in range(2):  # the first instance of a class is made another way
        assert _observed(OURS[name], positional, values) == _observed(THEIRS[name], positional, values)


def test_frozen_records_stay_frozen() -> None:
    record = OURS["Derived"](a=1)
    for name in ("a", "c"):
        with pytest.raises(FrozenInstanceError, match="cannot assign"):
            setattr(record, name, 2)
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Loose", (OURS["Base"],), {}))
    assert OURS["Open"](a=4).twice == 8


def test_a_class_of_the_library_may_derive_from_ours() -> None:
    plain: type[Any] = type("Theirs", (OURS["Base"],), {"__annotations__": {"z": int}})
    derived: Any = dataclasses.dataclass(frozen=True, kw_only=True)(plain)
    assert derived(a=1, z=2) == derived(a=1, z=2)
    again: type[Any] = type("Again", (derived,), {})
    made: Any = ours(frozen=True, kw_only=True)(again)
    assert made(a=1, z=2).z == 2


def test_records_are_made_in_one_way() -> None:
    line = "from dataclasses import"
    wrong = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path != ROOT / "profiles" / "records.py"
        for text in path.read_text(encoding="utf-8").splitlines()
        if text.startswith(line) and "dataclass" in text.removeprefix(line).replace(" ", "").split(",")
    ]
    assert not wrong, f"take `dataclass` from profiles.records, whose records are made quicker: {wrong}"


def test_a_record_is_changed_as_the_library_changes_it() -> None:
    kinds = _classes(ours)
    derived, positional = kinds["Derived"](a=1, shown="y", table={"b": 2}), kinds["Positional"]("x", third=9)
    for record, changes in (
        (derived, {"c": 7}),
        (derived, {"a": 4, "b": ()}),
        (derived, {}),
        (positional, {"second": 1}),
    ):
        changed, other = our_replace(record, **changes), replace(record, **changes)
        assert (type(changed), asdict(changed)) == (type(other), asdict(other))
        assert changed is not record
    with pytest.raises(ValueError, match="below 0"):
        our_replace(derived, a=-1)
    with pytest.raises(TypeError, match="'d'"):
        our_replace(derived, d=1)
