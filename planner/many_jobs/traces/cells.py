"""What stands in a cell of a trace: numbers, counts, dates, statuses, fractions of GPUs."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from profiles.host_lists import is_host_name
from profiles.numerals import read_number

EPOCH = datetime(1970, 1, 1)

BLANK = frozenset({"", "nan", "NaN", "None", "none", "NULL", "null", "Unknown", "unknown", "N/A", "NA", "-"})
"""What other people's traces write where they know nothing."""

STATUSES = {
    "pass": "completed",
    "finished": "completed",
    "success": "completed",
    "succeeded": "completed",
    "killed": "cancelled",
    "canceled": "cancelled",
    "failure": "failed",
    "error": "failed",
}
"""Other words for the statuses of `TraceRow`."""

MOST = 1e18
"""No figure of a trace is larger: in seconds more than the universe is old."""

_SPAN = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9}(?:\.\d+)?)", re.ASCII)
_POWERS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGTP]?)", re.ASCII)


class BadCell(Exception):  # noqa: N818  never leaves this package: it becomes an InputError with file and line
    """A cell, or a whole line (`key` None), that is not what it should be."""

    def __init__(self, key: str | None, seen: str, expected: str) -> None:
        super().__init__(f"{key or 'line'}: found {seen}, expected {expected}")
        self.key, self.found, self.expected = key, seen, expected


def number(text: str, key: str, *, least: float = 0.0) -> float:
    """A number of at least `least` and at most `MOST`."""
    try:
        value = read_number(text)
    except ValueError:
        value = math.nan
    if not least <= value <= MOST or value < -MOST:
        expected = "a number" if least == -math.inf else f"a number of at least {least:g}"
        raise BadCell(key, _shown(text), f"{expected}, and at most {MOST:g}" if value > MOST else expected)
    return value


def positive(text: str, key: str) -> float:
    """A number above 0."""
    try:
        value = number(text, key)
    except BadCell as bad:
        raise BadCell(key, bad.found, bad.expected.replace("of at least 0", "above 0")) from None
    if value == 0.0:
        raise BadCell(key, _shown(text), "a number above 0")
    return value


@lru_cache(maxsize=4096)
def whole(text: str, key: str, *, least: int = 1) -> int:
    """A whole number of at least `least`; `8.0` is one."""
    try:
        return _whole(number(text, key, least=least))
    except (BadCell, ValueError):
        raise BadCell(key, _shown(text), f"a whole number of at least {least}") from None


@lru_cache(maxsize=4096)
def any_whole(text: str, key: str) -> int:
    """A whole number of either sign."""
    try:
        return _whole(number(text, key, least=-math.inf))
    except (BadCell, ValueError):
        raise BadCell(key, _shown(text), "a whole number") from None


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError
    return int(value)


@lru_cache(maxsize=16)
def yes_or_no(text: str, key: str) -> bool:
    """Whether a cell says yes, true or 1 (any case) and not no, false or 0."""
    word = text.strip().lower()
    if word not in ("yes", "true", "1", "no", "false", "0"):
        raise BadCell(key, _shown(text), "yes or no")
    return word in ("yes", "true", "1")


@lru_cache(maxsize=4096)
def hosts_of(text: str, key: str) -> tuple[tuple[str, int], ...]:
    """Hosts, each once, with a number of devices: `gpu7:8 gpu3:4`."""
    hosts: dict[str, int] = {}
    for word in text.split():
        host, _, count = word.rpartition(":")
        if not is_host_name(host) or host in hosts:
            expected = "names of nodes, each once, with devices, such as gpu7:8 gpu3:4"
            raise BadCell(key, _shown(word), expected)
        hosts[host] = whole(count, key)
    return tuple(hosts.items())


def date_s(text: str, key: str) -> float:
    """Seconds from 1970 to a date like `2020-06-09 18:41:01` or `2020-06-09T18:41:01`, taken as it stands; one with a
    time zone is first brought to UTC."""
    try:
        date = datetime.fromisoformat(text.strip())
        if date.tzinfo is not None:
            date = date.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise BadCell(key, _shown(text), "a date like 2020-06-09 18:41:01") from None
    return (date - EPOCH).total_seconds()


def date_at(seconds: float) -> datetime | None:
    """The date so many seconds after 1970, the other way of `date_s`; None beyond the year 9999."""
    try:
        return EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return None


def span_s(text: str, key: str) -> float:
    """Seconds of Slurm's `[days-][hours:]minutes:seconds`."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise BadCell(key, _shown(text), "a span like 1-02:03:04")
    days, hours, minutes, seconds = match.groups(default="0")
    return ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + float(seconds)


@lru_cache(maxsize=4096)
def size_gb(text: str, key: str) -> float:
    """GB (1e9 bytes) of Slurm's sizes, whose G is 2^30; a bare number is MiB."""
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        raise BadCell(key, _shown(text), "a size like 512G")
    return float(match[1]) * _POWERS[match[2] or "M"] / 1e9


@lru_cache(maxsize=256)
def status_of(text: str) -> str:
    """The status in one of the words of `TraceRow`; `CANCELLED by 1001` is cancelled."""
    word = text.strip().lower().partition(" ")[0].rstrip("+")
    return STATUSES.get(word, word)


def _shown(text: str) -> str:
    if not text.strip():
        return "nothing"
    return repr(text if len(text) <= 60 else text[:57] + "...")
