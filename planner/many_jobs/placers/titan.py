"""Titan's placement: what its paper says, not what its listings do (docs/placers.md says where they part)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import get_args

from estimator.communication.phases import Algorithm, collective_phases
from estimator.communication.rank_order import MOST_EXACT, best_order, least_across
from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import largest_first
from planner.many_jobs.placers.records import FreeNodes, Request
from planner.many_jobs.placers.within_bandwidth import Reading, Seating, Traffic, seat_within, worst_share


class Titan:
    """As few idle nodes as may be (O1), then as few nodes (O2), then the least traffic of the `algorithm`'s all-reduce
    (NIMP, section III, eq. 1). Where F devices are free on nodes that are not idle, n devices need ceil((n - F) / size)
    idle ones, and of the others the fewest, those with the most free first. Traffic then decides how many devices each
    node gives: the least there is for up to 16 devices, beyond that of the fullest and the most even division.

    With a `share` above 0 all that within the bandwidth constraint: the phases of an all-reduce may take that share of
    an iteration's time on one node between nodes, on each pair of nodes or each link (`reading`), beside what the jobs
    that run send (`planner.many_jobs.placers.within_bandwidth`). Where no way is found the job sits as without it."""

    name = "titan"

    def __init__(self, algorithm: str = "halving-doubling", share: float = 0.0, reading: str | None = None) -> None:
        if algorithm not in get_args(Algorithm) or algorithm == "exchange":
            raise ValueError(f"algorithm={algorithm}; ring, tree or halving-doubling")
        if not (0 <= share < math.inf and reading in (None, *get_args(Reading))):
            raise ValueError(f"share={share:g}, reading={reading}; a share of 0 or more, links or pairs")
        if reading is not None and not share:
            raise ValueError(f"reading={reading} without a share; share=S beside it")
        self.algorithm: Algorithm = algorithm  # type: ignore[assignment]
        self.share = share
        self.reading: Reading = reading or "links"  # type: ignore[assignment]
        self.asks_network = share > 0

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`. Raise ValueError for a share where seats have no price."""
        chosen = self._without_constraint(nodes, request)
        if not self.share or len(chosen) == 1:
            return chosen
        if request.budget is None:
            raise ValueError(f"share={self.share:g} where nobody says what the network has left: --placement-cost none")
        budget = request.budget()
        if budget is None:
            return chosen
        phases = collective_phases(self.algorithm, "all_reduce", request.devices, budget.gradient_bytes)
        traffic = Traffic(phases=phases, allowed_s=self.share * budget.iteration_s)
        order = best_order(self.algorithm, [count for _, count in chosen])
        seats = [chosen[place][0] for place in order]
        if worst_share(seats, traffic, budget.available, self.reading) <= 1:
            return chosen
        told = seat_within(nodes.free, request.size, traffic, budget.available, self.reading, request.devices)
        return told.counts if isinstance(told, Seating) else chosen

    def _without_constraint(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        free, size, wanted = nodes.free, request.size, request.devices
        parts = largest_first(free, (node for node, count in enumerate(free) if count < size))
        beside = sum(free[node] for node in parts)
        opened = -(-max(0, wanted - beside) // size)
        idle = [node for node, count in enumerate(free) if count == size][:opened]
        limits = [size] * opened
        for node in parts:
            if sum(limits) >= wanted:
                break
            limits.append(free[node])
        counts = least_traffic(self.algorithm, wanted, tuple(limits))
        return _seat(free, idle, parts, counts)


def _seat(free: Sequence[int], idle: Sequence[int], parts: Sequence[int], counts: Sequence[int]) -> NodeCounts:
    """The largest counts on the idle nodes, each of the others on the node with the fewest free devices that are
    enough; in the order of the ranks."""
    left, chosen = list(parts), list(zip(idle, counts, strict=False))
    for count in counts[len(idle) :]:
        node = min((node for node in left if free[node] >= count), key=lambda node: (free[node], node))
        left.remove(node)
        chosen.append((node, count))
    return tuple(chosen)


@lru_cache(maxsize=65536)
def least_traffic(algorithm: Algorithm, wanted: int, limits: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many devices each of some nodes gives, the largest count first, at most `limits` (the greatest first)
    and at least one, so that a job on them all sends least between them; of equals the fullest."""
    if len(limits) == 1:
        return (wanted,)
    shapes = (
        divisions(wanted, limits) if wanted <= MOST_EXACT else iter((_fullest(wanted, limits), _even(wanted, limits)))
    )
    return min(shapes, key=lambda counts: round(least_across(algorithm, counts), 9))


def divisions(wanted: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all ways to take `wanted` devices of nodes with at most `limits` each, one at least, as counts that do not
    grow; the fullest first."""
    yield from _divided(wanted, tuple(limits), wanted)


def _divided(wanted: int, limits: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    if len(limits) == 1:
        if wanted <= min(limits[0], most):
            yield (wanted,)
        return
    for count in range(min(limits[0], most, wanted - len(limits) + 1), 0, -1):
        if count * len(limits) < wanted:
            return
        for rest in _divided(wanted - count, limits[1:], count):
            yield (count, *rest)


def _fullest(wanted: int, limits: Sequence[int]) -> tuple[int, ...]:
    counts: list[int] = []
    for place, limit in enumerate(limits):
        counts.append(min(limit, wanted - sum(counts) - (len(limits) - place - 1)))
    return tuple(sorted(counts, reverse=True))


def _even(wanted: int, limits: Sequence[int]) -> tuple[int, ...]:
    counts = [0] * len(limits)
    while sum(counts) < wanted:
        low = min(range(len(limits)), key=lambda place: (counts[place] >= limits[place], counts[place], place))
        counts[low] += 1
    return tuple(sorted(counts, reverse=True))
