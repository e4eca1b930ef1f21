"""Which values an option takes, beside its type: how one is read from a word of the command line, and what must hold.

Numbers, lists and pairs are the same on the command line, from Python and in a request as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from math import inf
from operator import ge, gt, le, lt
from typing import Any, Literal, get_args, get_origin

from profiles.limits import LIMITS, Limit
from profiles.numerals import read_number, read_whole
from profiles.records import dataclass

Schema = Mapping[str, Any]


class WrongValueError(ValueError):
    """A value that an option does not take: `found`, and what was `expected`."""

    def __init__(self, found: object, expected: str) -> None:
        super().__init__(f"found {found}, expected {expected}")
        self.found, self.expected = found, expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """`expected` in words; `read` makes one of a word (ValueError where it cannot), of which `holds` must be true;
    `schema` are the keywords of JSON Schema that say the same."""

    expected: str
    read: Callable[[str], Any]
    holds: Callable[[Any], bool] = lambda _: True
    schema: Schema = field(default_factory=dict)

    def parse(self, word: str) -> Any:
        """Return the value that `word` means; raise WrongValueError if it means none."""
        try:
            value = self.read(word)
        except WrongValueError:
            raise
        except ValueError:
            raise WrongValueError(repr(word), self.expected) from None
        if not self.holds(value):
            raise WrongValueError(repr(word), self.expected)
        return value

    def check(self, value: Any) -> None:
        """Raise WrongValueError if `value`, of the right type, is none of these."""
        if not self.holds(value):
            raise WrongValueError(repr(value) if isinstance(value, str) else value, self.expected)


def _read_large(word: str) -> float:
    powers = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "p": 1e15}
    power = powers.get(word[-1:].lower())
    return read_number(word[:-1]) * power if power else read_number(word)


def _numbers(expected: str, read: Callable[[str], Any] = read_number, **bounds: float) -> Values:
    """The numbers within `bounds`, which are JSON Schema's keywords; infinity is none."""
    kept = tuple((_WITHIN[keyword], bound) for keyword, bound in bounds.items())
    return Values(
        expected=expected,
        read=read,
        holds=lambda value: -inf < value < inf and all(within(value, bound) for within, bound in kept),
        schema=bounds,
    )


def _counts(limit: Limit, *, least: int = 1) -> Values:
    return _numbers(f"a whole number from {least}, {limit.expected}", read_whole, minimum=least, maximum=limit.most)


_WITHIN = {"minimum": ge, "exclusiveMinimum": gt, "exclusiveMaximum": lt, "maximum": le}
POSITIVE_INT = _numbers("a whole number of at least 1", read_whole, minimum=1)
NATURAL = _numbers("a whole number of at least 0", read_whole, minimum=0)
UDP_PORT = _numbers("a port from 1 to 65535", read_whole, minimum=1, maximum=65535)
SAMPLES = _counts(LIMITS.samples)
TOKENS = _counts(LIMITS.tokens)
ITERATIONS = _counts(LIMITS.iterations)
NO_OR_SOME_ITERATIONS = _counts(LIMITS.iterations, least=0)
PARAMETER_SETS = _counts(LIMITS.parameter_sets, least=0)
ROUND = _numbers(
    "seconds from 1, no scheduler decides more often, to 31,536,000, a year", minimum=1, maximum=31_536_000
)
LOAD = _numbers("from 0.000001 to 1,000,000 times", minimum=1e-6, maximum=1e6)
BANDWIDTH = _numbers("bytes/s from 1 to 1e15", minimum=1, maximum=1e15)
RATE = _numbers("a number above 0", exclusiveMinimum=0)
SECONDS = _numbers("seconds above 0", exclusiveMinimum=0)
PATIENCE = _numbers("seconds above 0, at most 1,000,000: 11 days", exclusiveMinimum=0, maximum=1_000_000)
"""How long somebody waits for a machine. What waits counts milliseconds, in 32 bits."""
DURATION = _numbers("seconds from 0 to 1e9: 31 years", minimum=0, maximum=1e9)
LARGE = _numbers("a number above 0 such as 1.4T or 300e9", _read_large, exclusiveMinimum=0)
"""With k, M, G (or B), T or P behind it for powers of a thousand."""
TRAINED = _numbers(
    "a number above 0 such as 1.4T or 300e9, at most 1e18", _read_large, exclusiveMinimum=0, maximum=1e18
)
"""Tokens or samples of a whole training: all that was ever written is some 1e15."""
CLOCK = _numbers("seconds on the trace's clock")
SHARE = _numbers("a share between 0 and 1", exclusiveMinimum=0, exclusiveMaximum=1)
PART = _numbers("a share from 0 to 1", minimum=0, maximum=1)
IMBALANCE = _numbers("from 1 to 10,000: the fullest rank's tokens over the mean", minimum=1, maximum=1e4)
CAPACITY = _numbers(
    "from 0.001 to 10,000: room for so many times the mean tokens of an expert", minimum=1e-3, maximum=1e4
)
VOCABULARY_MULTIPLE = _counts(LIMITS.vocabulary_multiple)
FAILURES = _numbers("from 0 to 86,400, one a second", minimum=0, maximum=86_400)
NOW = _numbers("seconds since 1970, at most 1e12", minimum=0, maximum=1e12)


def _pair(expected: str, between: str, read: Callable[[str], Any], holds: Callable[[Any, Any], bool]) -> Values:
    """Two values with `between` between them, as a tuple."""

    def read_both(word: str) -> tuple[Any, Any]:
        first, _, second = word.partition(between)
        return read(first), read(second)

    return Values(expected=expected, read=read_both, holds=lambda pair: holds(*pair))


_MARGIN = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s?(%|B|[KMGT]i?B)", re.ASCII)
_BYTES = {"B": 1} | {
    f"{letter}{i}B": (1024 if i else 1000) ** power for power, letter in enumerate("KMGT", 1) for i in ("", "i")
}


def margin_bytes(text: str, memory_bytes: int) -> int:
    """Return how many bytes of a device of `memory_bytes` a margin such as 4GiB or 10% is; raise ValueError for a text
    that is none.

    >>> margin_bytes("2GiB", 80 * 2**30), margin_bytes("10%", 80 * 10**9), margin_bytes("0", 1)
    (2147483648, 8000000000, 0)
    """
    matched = _MARGIN.fullmatch("0B" if text == "0" else text)
    if matched is None:
        raise ValueError(f"a margin of {text!r}, expected {MARGIN_EXPECTED}")
    number, unit = float(matched[1]), matched[2]
    return round(memory_bytes * number / 100 if unit == "%" else number * _BYTES[unit])


MARGIN_EXPECTED = "bytes with a unit such as 4GiB or 500MB, a share of the device's memory below 100% such as 10%, or 0"


def _is_margin(text: str) -> bool:
    matched = _MARGIN.fullmatch(text)
    return text == "0" or (matched is not None and (matched[2] != "%" or float(matched[1]) < 100))


MARGIN = Values(expected=MARGIN_EXPECTED, read=str, holds=_is_margin)
_LAYERS = "FIRST:END, layers from 0, END not included, such as 1:5"
LAYERS = _pair(_LAYERS, ":", read_whole, lambda first, end: 0 <= first < end)
SPAN = _pair("two rising numbers A:B of at least 0", ":", read_number, lambda low, high: 0 <= low <= high < inf)
NIC_PAIR = _pair("two numbers N,N of at least 0", ",", read_whole, lambda *nics: min(nics) >= 0)
SHARD_X_REPLICATE = _pair("SHARDxREPLICATE such as 8x4", "x", read_whole, lambda *counts: min(counts) >= 1)


def list_of(values: Values, *, rising: bool = False) -> Values:
    """Return the lists of `values` with commas between; `rising`: read as each once, ascending."""

    def read(word: str) -> tuple[Any, ...]:
        parts = tuple(map(values.parse, word.split(",")))
        return tuple(sorted(set(parts))) if rising else parts

    return Values(
        expected=f"{values.expected}, or several with commas between",
        read=read,
        holds=lambda parts: bool(parts) and all(map(values.holds, parts)),
        schema={"items": values.schema, "minItems": 1},
    )


LOADS = list_of(LOAD)
COUNTS = list_of(POSITIVE_INT, rising=True)
TEXTS = Values(expected="words with commas between", read=lambda word: tuple(word.split(",")))


def words_of(allowed: tuple[str, ...], *, or_none: bool = False) -> Values:
    """Return the lists of `allowed` words with commas between; `or_none`: each once and in their order, or `none`."""
    expected = f"{'none, or ' if or_none else ''}one or more of {', '.join(allowed)}"

    def read(word: str) -> tuple[str, ...]:
        parts = () if or_none and word == "none" else tuple(word.split(","))
        for part in parts:
            if part not in allowed:
                raise WrongValueError(repr(part), expected)
        return tuple(part for part in allowed if part in parts) if or_none else parts

    return Values(expected=expected, read=read, holds=lambda parts: or_none or bool(parts))


def number_or(words: tuple[str, ...]) -> Values:
    """Return the whole numbers of at least 1, and these `words`, which name rules."""
    return Values(
        expected=f"a whole number of at least 1, or {', '.join(words)}",
        read=lambda word: word if word in words else read_whole(word),
        holds=lambda value: value in words or (not isinstance(value, str) and value >= 1),
        schema={"minimum": 1},
    )


def values_of(members: tuple[Any, ...]) -> Values | None:
    """Return the values that an option's types say by themselves: whole numbers from 1, rules that words name beside
    them, and lists with commas between; None where they say all or nothing."""
    if int in members:
        return number_or(get_args(members[1])) if len(members) > 1 else POSITIVE_INT
    if len(members) > 1 or get_origin(members[0]) is not tuple or get_args(members[0])[-1] is not Ellipsis:
        return None
    inner = get_args(members[0])[0]
    return words_of(get_args(inner)) if get_origin(inner) is Literal else {int: COUNTS, str: TEXTS}.get(inner)
