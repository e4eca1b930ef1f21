"""Counters of a node or a job by time, as a CSV: what its NICs or PCIe sent, and how active its GPUs were.

Each column is a counter, and its name ends in how it counts:

    time_s                  seconds, rising
    ..._bytes_total         bytes since some time before; a fall is a counter that began anew
    ..._bytes               bytes since the row before
    ..._bytes_per_s         bytes a second since the row before
    ..._active              share of the time since the row before, 0 to 1, that a GPU was busy

All columns of bytes are summed, so give one direction; of several GPUs the mean counts. Other columns are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from profiles.errors import InputError
from profiles.files import csv_rows, read_text
from profiles.numerals import read_number
from profiles.records import dataclass

TIME, TOTAL, SINCE, RATE, ACTIVE = "time_s", "_bytes_total", "_bytes", "_bytes_per_s", "_active"
COLUMNS = f"{TIME}, and columns whose names end in {TOTAL}, {SINCE} or {RATE}, and in {ACTIVE} if there are any"
FEWEST_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Bytes sent by each time since the first, and the share of GPUs' time that was busy since the time before (None:
    nobody counted)."""

    times_s: tuple[float, ...]
    totals: tuple[float, ...]
    active: tuple[float, ...] | None


def load_counters(path: Path) -> Counters:
    """Return the counters of a CSV. InputError, with the line, for a header without time or bytes, a cell that is no
    number, times that do not rise, and fewer than 16 rows."""
    where = str(path)
    rows = csv_rows(read_text(path), where=where)
    header = [name.lower() for name in next(rows, (0, [""]))[1]]
    kinds = [_kind(name) for name in header]
    if kinds.count(TIME) != 1 or not {TOTAL, SINCE, RATE} & set(kinds):
        raise InputError(where=where, key="header", found=", ".join(header) or "nothing", expected=COLUMNS)
    lines: list[list[float]] = []
    for number, cells in rows:
        if cells and any(cells):
            lines.append(_numbers(cells, header, kinds, f"{where}, line {number}", lines))
    if len(lines) < FEWEST_ROWS:
        raise InputError(where=where, found=f"{len(lines)} rows", expected=f"at least {FEWEST_ROWS}: two iterations")
    return _counters(lines, kinds)


def _kind(name: str) -> str | None:
    endings = (RATE, TOTAL, SINCE, ACTIVE)
    return TIME if name == TIME else next((ending for ending in endings if name.endswith(ending)), None)


def _numbers(
    cells: Sequence[str], header: Sequence[str], kinds: Sequence[str | None], where: str, before: Sequence[list[float]]
) -> list[float]:
    if len(cells) != len(header):
        raise InputError(where=where, found=f"{len(cells)} cells", expected=f"{len(header)}, as the header has")
    numbers: list[float] = []
    for cell, name, kind in zip(cells, header, kinds, strict=True):
        try:
            number = read_number(cell) if kind else 0.0
        except ValueError:
            number = float("nan")
        most = 1.0 if kind == ACTIVE else 1e18
        least = -1e18 if kind == TIME else 0.0
        if not least <= number <= most:
            expected = "a share from 0 to 1" if kind == ACTIVE else "a number"
            raise InputError(where=where, key=name, found=repr(cell), expected=expected)
        if kind == TIME and before and number <= before[-1][len(numbers)]:
            raise InputError(where=where, key=name, found=cell, expected="a later time than the row before")
        numbers.append(number)
    return numbers


def _counters(lines: Sequence[Sequence[float]], kinds: Sequence[str | None]) -> Counters:
    time = kinds.index(TIME)
    times = [line[time] for line in lines]
    totals = [0.0]
    for earlier, later in pairwise(lines):
        sent = 0.0
        for kind, old, new in zip(kinds, earlier, later, strict=True):
            if kind == TOTAL:
                sent += new - old if new >= old else new
            elif kind == SINCE:
                sent += new
            elif kind == RATE:
                sent += new * (later[time] - earlier[time])
        totals.append(totals[-1] + sent)
    busy = [place for place, kind in enumerate(kinds) if kind == ACTIVE]
    active = tuple(sum(line[place] for place in busy) / len(busy) for line in lines) if busy else None
    return Counters(times_s=tuple(times), totals=tuple(totals), active=active)
