"""How many seeds an oracle is compared on: some in `make test`, all that the test names in `make test-all`.

Every place that asks is counted, so that a run can say at its end what it left out (see `tests/conftest.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

ALL_SEEDS = "CELLPLAN_ALL_SEEDS"
SHARE = 4
"""`make test` takes one seed of so many."""

Case = TypeVar("Case")

Place = tuple[str, int, int, int]
"""A file, a line of it, how many seeds `make test` takes there, and how many there are."""

_asked: set[Place] = set()


def all_seeds() -> bool:
    """Return whether every seed was asked for (`pytest --all-seeds`)."""
    return bool(os.environ.get(ALL_SEEDS))


def seeds(count: int, *, least: int = 5, share: int = SHARE) -> range:
    """Return the seeds to take of `count`: all of them under `--all-seeds`, else one of `share`, but `least`."""
    return range(_taken(count, least, share))


def examples(count: int, *, least: int = 5, share: int = SHARE) -> int:
    """Return how many of `count` drawn examples to take: all under `--all-seeds`, else one of `share`, but `least`."""
    return _taken(count, least, share)


def some(cases: Sequence[Case], count: int) -> list[Case]:
    """Return the cases to take: all under `--all-seeds`, else the first `count`."""
    _ask(len(cases), count)
    return list(cases if all_seeds() else cases[:count])


def places() -> list[Place]:
    """Return where seeds were asked for in this process so far."""
    return sorted(_asked)


def summary(places: Iterable[Place]) -> str:
    """Return one line on the seeds that `make test` takes of those at `places`, and what `make test-all` adds."""
    distinct = set(places)
    taken, total = sum(place[2] for place in distinct), sum(place[3] for place in distinct)
    there = f"at {len(distinct)} places"
    if all_seeds():
        return f"all {total:,} seeds, examples and cases {there}, {total - taken:,} more than `make test` takes"
    return f"{taken:,} of {total:,} seeds, examples and cases {there}; `make test-all` adds the other {total - taken:,}"


def _taken(count: int, least: int, share: int) -> int:
    by_default = min(count, max(least, count // share))
    _ask(count, by_default, depth=3)
    return count if all_seeds() else by_default


def _ask(count: int, by_default: int, depth: int = 2) -> None:
    caller = sys._getframe(depth)
    _asked.add((caller.f_code.co_filename, caller.f_lineno, by_default, count))
