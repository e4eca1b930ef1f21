"""Titan's placement: what its paper says, not what its listings do (docs/placers.md says where they part)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import get_args

from estimator.communication.phases import Algorithm
from estimator.communication.rank_order import MOST_EXACT, least_across
from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import largest_first
from planner.many_jobs.placers.records import FreeNodes, Request


class Titan:
    """As few idle nodes as may be (O1), then as few nodes (O2), then the least traffic of the `algorithm`'s all-reduce
    (NIMP, section III, eq. 1, without its bandwidth constraint, which compares bytes with bytes per second). Where F
    devices are free on nodes that are not idle, n devices need ceil((n - F) / size) idle ones, and of the others the
    fewest, those with the most free first. Traffic then decides how many devices each node gives: the least there is
    for up to 16 devices, beyond that of the fullest and the most even division."""

    name = "titan"

    def __init__(self, algorithm: str = "halving-doubling") -> None:
        if algorithm not in get_args(Algorithm) or algorithm == "exchange":
            raise ValueError(f"algorithm={algorithm}; ring, tree or halving-doubling")
        self.algorithm: Algorithm = algorithm  # type: ignore[assignment]

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
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
