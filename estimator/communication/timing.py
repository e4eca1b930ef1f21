"""How often a collective is called and which of its times count, whatever makes the call and joins the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

FEWEST_REPEATS = 3
SECONDS_PER_SIZE = 0.15
"""A size that would take longer than this is repeated less often, but never less than `FEWEST_REPEATS` times."""

SECONDS_PER_REPEAT = 1e-3
MOST_CALLS = 8
"""Calls follow each other until they take that long, at most so many: the ranks' uneven start counts little."""

WARM_UPS = 2
BUSY_WARM_UPS, BUSY_REPEATS = 3, 30
BUSY_SIZE, BUSY_PRODUCTS = 512, 3
"""Of `time_between_computing`: the products of such squares take about 10 ms on a CPU's core, before each call."""


class Ranks(Protocol):
    """The ranks that make a call together, as one of them sees them."""

    def barrier(self) -> None:
        """Wait for all of them."""

    def synchronize(self) -> None:
        """Wait until this rank's device has done what it was given."""

    def compute(self) -> None:
        """Do a product of squares of `BUSY_SIZE`."""

    def slowest(self, seconds: list[float]) -> list[float]:
        """Return the largest of all ranks' values, one by one."""

    def fastest(self, seconds: list[float]) -> list[float]:
        """Return the least of all ranks' values, one by one."""


def time_calls(call: Callable[[], object], repeats: int, ranks: Ranks) -> tuple[float, ...]:
    """Return the seconds of one call in each repeat, on the slowest rank. How often is agreed on, from the slowest
    warm-up."""
    warm_ups = [_time_repeat(call, 1, ranks) for _ in range(WARM_UPS)]
    expected_s = min(ranks.slowest(warm_ups))
    calls = max(1, min(MOST_CALLS, round(SECONDS_PER_REPEAT / expected_s)))
    affordable = int(SECONDS_PER_SIZE / (expected_s * calls))
    count = min(repeats, max(FEWEST_REPEATS, affordable))
    return tuple(ranks.slowest([_time_repeat(call, calls, ranks) for _ in range(count)]))


def time_between_computing(call: Callable[[], object], repeats: int, ranks: Ranks) -> float:
    """Return the seconds of one call among ranks that compute before each, as in a training: of every call those of the
    rank that came last, which waits for nobody, and of these the mean without the slowest tenth.

    A training sums over its calls, so that the mean counts: on a CPU threads that have to be woken make some calls
    several times as long as others.
    """
    seconds = []
    ranks.barrier()
    for _ in range(BUSY_WARM_UPS + max(repeats, BUSY_REPEATS)):
        for _ in range(BUSY_PRODUCTS):
            ranks.compute()
        ranks.synchronize()
        start = time.perf_counter()
        call()
        ranks.synchronize()
        seconds.append(time.perf_counter() - start)
    least = sorted(ranks.fastest(seconds[BUSY_WARM_UPS:]))
    kept = least[: max(1, len(least) * 9 // 10)]
    return sum(kept) / len(kept)


def _time_repeat(call: Callable[[], object], calls: int, ranks: Ranks) -> float:
    ranks.barrier()
    ranks.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    ranks.synchronize()
    return (time.perf_counter() - start) / calls
