"""Reading a `config.json`: typed look-ups of its keys, and errors that say file, key, found and expected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from models_zoo.layers import Activation
from profiles.errors import InputError
from profiles.files import read_json
from profiles.records import dataclass

LARGEST_SIZE = 2**24
"""Beyond this a size is a slip of the keyboard, and sums of FLOPs would leave 64 bits."""

LARGEST_NUMBER = 1e30
"""Of what scales or turns values: far beyond any base of rotary positions."""

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`. Raise InputError if it cannot be read or is something else."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(where=str(path), found=f"a JSON {_kind(value)}", expected="a JSON object")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A config's keys, or those of its text part (`prefix` then names it in messages).

    A key's default is that of the transformers class. Files leave out of a text part whatever equals it; the sizes that
    make the model, `required`, must stand in a file of its own. `asked` fills with the keys that anybody looked up,
    each with its prefix: what the file states beside them has no reader.
    """

    where: str
    values: Mapping[str, Any]
    prefix: str = ""
    asked: set[str] = field(default_factory=set, compare=False, repr=False)

    def part(self, key: str) -> Keys:
        """The object under `key`; without keys where that is absent or null."""
        value = self.get(key, None)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, describe(value), "an object")
        return replace(self, values=value or {}, prefix=f"{self.prefix}{key}.")

    def wrong(self, key: str, found: object, expected: str) -> InputError:
        """The error for `key`."""
        return InputError(where=self.where, key=f"{self.prefix}{key}", found=found, expected=expected)

    def spelling(self, *names: str) -> str:
        """The first of `names` that is present, for keys with several spellings; the first of all if none is. Raise
        InputError where another of them says something else."""
        self.asked.update(self.prefix + name for name in names)
        stated = [name for name in names if name in self.values]
        for other in stated[1:]:
            value, first = self.values[other], self.values[stated[0]]
            if None not in (value, first) and value != first:
                raise self.wrong(other, describe(value), f"{describe(first)}, as {stated[0]} says")
        return stated[0] if stated else names[0]

    def get(self, key: str, default: Any) -> Any:
        """The value of `key` as it stands, `default` where it is absent."""
        self.asked.add(self.prefix + key)
        return self.values.get(key, default)

    def size(
        self, key: str, default: int | None = None, *, required: bool = False, least: int = 1, most: int = LARGEST_SIZE
    ) -> int:
        """An integer from `least` to `most`; null counts as absent."""
        value = self.get(key, None)
        if value is None:
            if default is None or (required and not self.prefix):
                raise self.wrong(key, "null" if key in self.values else "nothing", f"an integer of at least {least}")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, describe(value), f"an integer of at least {least}")
        if not least <= value <= most:
            raise self.wrong(key, value, f"an integer from {least} to {most}")
        return value

    def optional_size(self, key: str, default: int | None = None, *, least: int = 1) -> int | None:
        """As `size`, for keys where null says something: `default` stands only for an absent key."""
        stated = self.get(key, None)
        if key not in self.values:
            return default
        return None if stated is None else self.size(key, least=least)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null counts as absent."""
        value = self.get(key, None)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, describe(value), "true or false")
        return value

    def word(self, key: str, default: str, allowed: tuple[str, ...] = ()) -> str:
        """Text, one of `allowed` where there are any."""
        word = self.get(key, default)
        if not isinstance(word, str) or (allowed and word not in allowed):
            raise self.wrong(key, describe(word), f"one of {', '.join(allowed)}" if allowed else "text")
        return word

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1; null counts as absent."""
        value = self.get(key, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.wrong(key, describe(value), "a number from 0 to 1")
        return float(value)

    def number(self, key: str, *, above: bool = False) -> float | None:
        """A finite number of at least 0, or `above` it; None where it is absent or null."""
        value = self.get(key, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 or (above and value == 0):
            raise self.wrong(key, describe(value), "a number above 0" if above else "a number of at least 0")
        if value > LARGEST_NUMBER:
            raise self.wrong(key, describe(value), f"a number of at most {LARGEST_NUMBER:g}")
        return float(value)

    def sizes(self, key: str) -> tuple[int, ...]:
        """A list of integers of at least 0; absent or null is the empty one."""
        value = self.get(key, None)
        if value is None:
            return ()
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in value):
            raise self.wrong(key, describe(value), "a list of layer numbers")
        return tuple(value)

    def activation(self, key: str, default: str) -> Activation:
        """An activation by the name that transformers gives it; the variants of GELU count as one."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.wrong(key, describe(value), f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def refuse(self, key: str, *, default: bool, meaning: str) -> None:
        """Refuse a config whose `key` is not `default`; `meaning` says what it would ask for."""
        if self.flag(key, default) != default:
            raise self.wrong(key, describe(not default), f"{describe(default)} ({meaning} is not modelled)")


def describe(value: object) -> str:
    """A JSON value for a message: itself if short, else its kind."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"a JSON {_kind(value)}"


def _kind(value: object) -> str:
    names = ((bool, "boolean"), (dict, "object"), (list, "array"), (str, "string"), (type(None), "null"))
    return next((name for kind, name in names if isinstance(value, kind)), "number")
