"""The steps that rules are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.many_jobs.jobs.records import NodeCounts


def fill(free: Sequence[int], order: Iterable[int], wanted: int) -> list[tuple[int, int]]:
    """Take all that each node of `order` has free, until `wanted` are taken or there are no more.

    >>> fill((3, 0, 2, 8), (2, 1, 0, 3), 6)
    [(2, 2), (0, 3), (3, 1)]
    """
    chosen = []
    for node in order:
        count = min(free[node], wanted)
        if count:
            chosen.append((node, count))
            wanted -= count
        if not wanted:
            break
    return chosen


def best_fit(free: Sequence[int], nodes: Iterable[int], wanted: int) -> NodeCounts | None:
    """Return as few of `nodes` as may be: the one whose free devices are enough and the fewest, else the one with the
    most and so on; of equal ones the first. None where they have too few.

    >>> best_fit((3, 4, 2, 8), range(4), 2), best_fit((3, 4, 2, 8), range(4), 11)
    (((2, 2),), ((3, 8), (0, 3)))
    """
    chosen = []
    order = largest_first(free, nodes)
    for place, node in enumerate(order):
        if free[node] >= wanted:
            # The greatest is enough: of those that are, the one with the fewest.
            enough = (other for other in order[place:] if free[other] >= wanted)
            chosen.append((min(enough, key=lambda other: (free[other], other)), wanted))
            return tuple(chosen)
        chosen.append((node, free[node]))
        wanted -= free[node]
    return None


def largest_first(free: Sequence[int], nodes: Iterable[int]) -> list[int]:
    """Return the nodes with something free, those with the most first, of equal ones the first."""
    return sorted((node for node in nodes if free[node]), key=lambda node: (-free[node], node))
