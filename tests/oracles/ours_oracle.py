"""What `ours` minimises, by trying every way to take a job's devices, and every time at which a job ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from planner.many_jobs.jobs.records import NodeCounts
from tests.oracles.nimp_oracle import ways

Standing = tuple[int, int, int]


def best_standing(
    free: Sequence[int], size: int, wanted: int, time_s: Callable[[NodeCounts], float], *, equal: float, more: int
) -> tuple[float, Standing]:
    """Return the least time of an iteration on the fewest nodes that hold a job, or `more` beyond (on no more than
    whole nodes would be: that of best-fit's counts), and of ways that take at most `equal` longer the best standing."""
    every = [_way(counts) for counts in ways(free, wanted)]
    fewest = min(map(len, every))
    if fewest <= -(-wanted // size):
        every = [way for way in every if len(way) == fewest]
        full = max(sorted((count for _, count in way), reverse=True) for way in every)
        every = [way for way in every if sorted((count for _, count in way), reverse=True) == full]
    every = [way for way in every if len(way) <= fewest + more]
    least_s = min(map(time_s, every))
    as_fast = (way for way in every if time_s(way) <= least_s * (1 + equal))
    return least_s, min(_standing(free, size, way) for way in as_fast)


def whole_from_s(
    free: Sequence[int], size: int, wanted: int, ends: Mapping[int, Sequence[tuple[float, int]]], now_s: float
) -> float | None:
    """Return the first time at which so many devices are free on as few nodes as whole ones would be, all but one of
    which the job fills; None: never."""
    whole, rest = divmod(wanted, size)
    for time_s in sorted({now_s, *(end_s for each in ends.values() for end_s, _ in each if end_s > now_s)}):
        then = [
            count + sum(devices for end_s, devices in ends.get(node, ()) if now_s < end_s <= time_s)
            for node, count in enumerate(free)
        ]
        idle = sum(count == size for count in then)
        roomy = sum(count >= rest for count in then)
        if idle >= whole and (not rest or roomy > whole):
            return time_s
    return None


def _way(counts: Sequence[int]) -> NodeCounts:
    return tuple((node, count) for node, count in enumerate(counts) if count)


def _standing(free: Sequence[int], size: int, way: NodeCounts) -> Standing:
    opened = sum(free[node] == size for node, _ in way)
    return len(way), opened, sum(free[node] - count for node, count in way)


def every_way(free: Sequence[int], wanted: int) -> Iterator[NodeCounts]:
    """Yield every way to take so many devices."""
    return map(_way, ways(free, wanted))
