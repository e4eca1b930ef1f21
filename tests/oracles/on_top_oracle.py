"""The most that levels by axis, and that begins and common periods, bring: by going through all of them, and a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from planner.contention.policies.records import Decision

Work = Callable[[Decision], float]


def best_axis_levels(decision: Decision, axes: Sequence[Sequence[str]], hides: str, levels: int, work: Work) -> float:
    """The most work of all ways to give each job one level, its own, or one for what blocks and a lower one for what
    hides."""

    def ways(job: int) -> Iterator[tuple[tuple[str, int], ...]]:
        yield ()
        for above, below in combinations(range(levels), 2):
            yield tuple((axis, below if axis == hides else above) for axis in axes[job])

    every = product(*(list(ways(job)) for job in range(len(axes))))
    return max(work(replace(decision, axis_levels=each)) for each in every)


def best_common_period(decision: Decision, alone_s: Sequence[float], work: Work, *, parts: int, turns: int) -> float:
    """The most work of two jobs that are held to a period, the longer one's or up to a tenth more, the second one later
    by a part of it."""
    best = work(decision)
    for part, turn in product(range(parts + 1), range(turns)):
        period_s = max(alone_s) * (1 + 0.1 * part / parts)
        held = replace(decision, periods_s=(period_s, period_s), offsets_s=(0.0, turn * period_s / turns))
        best = max(best, work(held))
    return best
