"""The heaviest matching of all that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def heaviest(jobs: Sequence[int], weights: Mapping[tuple[int, int], float]) -> float:
    """The most that pairs of these jobs, each told by its kind, weigh, by trying every way to pair them; weights are by
    kinds, the lower first."""
    if len(jobs) < 2:
        return 0.0
    first, rest = jobs[0], list(jobs[1:])
    best = heaviest(rest, weights)
    for place, other in enumerate(rest):
        worth = weights[min(first, other), max(first, other)]
        if worth > 0:
            best = max(best, worth + heaviest(rest[:place] + rest[place + 1 :], weights))
    return best
