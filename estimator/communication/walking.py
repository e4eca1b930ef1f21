"""The seconds of a collective whose ranks are seated: its phases one behind the other, each as long as its busiest
part takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from estimator.communication.phases import Flow, Phase
from profiles.records import dataclass

Seats = tuple[int, ...]
"""For each rank the place in a list of nodes of the one that it sits on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a group has of a node, or of what else has NICs of its own: ranks, and bytes/s out of it, and into it."""

    ranks: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A level: ranks in one of its parts, seconds of a step, bytes/s out of a part."""

    ranks_inside: int
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where a group sits: nodes, seconds of a step between two of them, and the levels inside one, from inside out,
    which a node's ranks fill part by part; without one, what stays inside takes no time."""

    nodes: tuple[Node, ...]
    latency_s: float = 0.0
    inside: tuple[Step, ...] = ()


def walk(phases: Sequence[Phase], seats: Seats, ground: Ground, turns: Sequence[int] | None = None) -> Line:
    """Return what a collective of one byte, with these phases, takes where rank r sits on node `seats[r]`. A phase ends
    when the busiest node or part of one is through, out or in; its latency is the longest of the levels that it has
    flows over. On their nodes ranks sit in the order of `turns`, by default in their own.

    >>> from estimator.communication.phases import collective_phases
    >>> two = Ground(nodes=(Node(ranks=3, bytes_per_s=1.0), Node(ranks=1, bytes_per_s=1.0)))
    >>> walk(collective_phases("halving-doubling", "all_reduce", 4), (0, 0, 0, 1), two)
    (0.0, 1.5)
    """
    place = _places(seats, turns)
    latency_s = seconds_per_byte = 0.0
    for phase in phases:
        step_s, passing_s = _phase(phase.flows, seats, place, ground)
        latency_s += phase.repeats * step_s
        seconds_per_byte += phase.repeats * passing_s
    return latency_s, seconds_per_byte


Line = tuple[float, float]
"""Seconds that do not grow with bytes, and those for a byte."""


def _places(seats: Seats, turns: Sequence[int] | None) -> Mapping[int, int]:
    """Of each rank, the how manieth of its node it is."""
    seated: defaultdict[int, int] = defaultdict(int)
    place = {}
    for rank in range(len(seats)) if turns is None else turns:
        place[rank] = seated[seats[rank]]
        seated[seats[rank]] += 1
    return place


def _phase(flows: Sequence[Flow], seats: Seats, place: Mapping[int, int], ground: Ground) -> Line:
    sent: defaultdict[tuple[str, int, int, int], float] = defaultdict(float)
    latency_s = 0.0
    top = len(ground.inside)
    for sender, receiver, share in flows:
        a, b = seats[sender], seats[receiver]
        level, parts = top, (0, 0)
        if a == b and not ground.inside:
            continue
        if a == b:
            level, parts = _inside(place[sender], place[receiver], ground.inside)
        latency_s = max(latency_s, ground.latency_s if level == top else ground.inside[level].latency_s)
        sent["out", level, a, parts[0]] += share
        sent["in", level, b, parts[1]] += share
    busy_s = (size / _rate(ground, level, node) for (_, level, node, _), size in sent.items())
    return latency_s, max(busy_s, default=0.0)


def _inside(first: int, second: int, levels: Sequence[Step]) -> tuple[int, tuple[int, int]]:
    """The outermost level of a node that two of its places are apart on, and the parts of it that they are in."""
    for number in reversed(range(len(levels))):
        inside = levels[number].ranks_inside
        if first // inside != second // inside:
            return number, (first // inside, second // inside)
    raise ValueError(f"places {first} and {second} of a node; expected a level that has them apart")


def _rate(ground: Ground, level: int, node: int) -> float:
    return ground.nodes[node].bytes_per_s if level == len(ground.inside) else ground.inside[level].bytes_per_s
