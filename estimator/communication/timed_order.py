"""Which rank goes on which node of a group so that a collective takes least: by its walked time, not by its bytes.

Of up to 16 ranks on nodes of one island each all ways to seat them count: node by node, the sets of ranks that a node
can have, those first that keep the phases short, as long as what is seated so far takes less than the best way
known (branch and bound; what two ways have seated alike is gone on with once, from the better one).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import cast

import numpy as np
from numpy.typing import NDArray

from estimator.communication.phases import Algorithm, Flow, Phase, PhasedOp, collective_phases
from estimator.communication.rank_order import MOST_EXACT, best_order, node_order, partners_together
from estimator.communication.walking import Ground, Line, Seats, walk
from profiles.records import dataclass

MOST_OPENED = 100_000
"""Sets of ranks that are tried on a node before the best way so far is taken."""
EQUAL = 1e-9
"""By so small a part two ways may differ and are equally good: what sums were rounded to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """A way to seat the ranks, and what it takes: seconds that do not grow with bytes, and those for a byte."""

    seats: Seats
    line: Line

    def seconds(self, size_bytes: float) -> float:
        """Return the seconds for that many bytes."""
        return self.line[0] + size_bytes * self.line[1]


@lru_cache(maxsize=4096)
def fastest_orders(algorithm: Algorithm, op: PhasedOp, ground: Ground) -> tuple[Ordered, ...]:
    """Return the ways to seat the ranks of a group of which, for every number of bytes, one takes least: of all ways
    for up to 16 ranks whose nodes have one level inside, beyond of a few, the order of the nodes among them.

    Raises:
        ValueError: an algorithm that has no form of `op`.
    """
    ranks = sum(node.ranks for node in ground.nodes)
    phases = collective_phases(algorithm, op, ranks)

    def ordered(seats: Seats) -> Ordered:
        return Ordered(seats=seats, line=walk(phases, seats, ground, _turns(algorithm, ranks)))

    tried = [ordered(seats) for seats in _candidates(algorithm, op, ground)]
    if len(ground.nodes) == 1 or not phases:
        return tuple(tried[:1])
    if ranks > MOST_EXACT or len(ground.inside) > 1:
        return _hull(lambda size: min(tried, key=lambda way: (way.seconds(size), way.line[1])))
    search = _Search(phases, ground)

    def least(size_bytes: float) -> Ordered:
        known = min(tried, key=lambda way: way.seconds(size_bytes))
        found = search.least(size_bytes, known.seconds(size_bytes))
        return known if found is None else ordered(found)

    return _hull(least)


def _turns(algorithm: Algorithm, ranks: int) -> Seats:
    """In which order the ranks of a node fill its parts."""
    return partners_together(ranks) if algorithm == "halving-doubling" else tuple(range(ranks))


def _candidates(algorithm: Algorithm, op: PhasedOp, ground: Ground) -> Iterator[Seats]:
    """Orders that are good, or simple: of the nodes, that of fewest bytes, partners next to each other."""
    counts = [node.ranks for node in ground.nodes]
    plain = node_order(counts)
    yield plain
    yield best_order(algorithm, counts, op)
    if algorithm == "halving-doubling":
        fullest_first = sorted(range(len(counts)), key=lambda node: -counts[node])
        for nodes in (fullest_first, fullest_first[::-1]):
            seats = [0] * len(plain)
            seated = (node for node in nodes for _ in range(counts[node]))
            for rank, node in zip(partners_together(len(plain)), seated, strict=True):
                seats[rank] = node
            yield tuple(seats)


LARGE, SMALL = 1e18, 1e-3
"""Bytes beside which latencies, and which beside latencies, count only between equals."""


def _hull(least: Callable[[float], Ordered]) -> tuple[Ordered, ...]:
    """The ways that are best at some number of bytes, each a line: the best at the least and the greatest, and, where
    two lines cross, what is better there than both."""
    found = [least(SMALL), least(LARGE)]
    gaps = [(found[0], found[1])]
    while gaps:
        low, high = gaps.pop()
        fewer_s, steeper = high.line[0] - low.line[0], low.line[1] - high.line[1]
        if fewer_s <= EQUAL * high.line[0] or steeper <= EQUAL * low.line[1]:
            continue
        crossing_bytes = fewer_s / steeper
        between = least(crossing_bytes)
        if between.seconds(crossing_bytes) < low.seconds(crossing_bytes) * (1 - EQUAL):
            found.append(between)
            gaps += [(low, between), (between, high)]
    return tuple({way.line: way for way in found}.values())


Costs = NDArray[np.float64]
"""Of sets of ranks on a node: seconds a byte of each phase, then seconds of a step of each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kind:
    """Nodes that are alike: the sets of ranks, as bits, that one can have, with what the phases then take there."""

    nodes: tuple[int, ...]
    ranks: int
    sets: NDArray[np.int64]
    costs: Costs

    def at_least(self) -> Costs:
        """What the longest of these nodes takes at least, phase by phase."""
        fewest = len(self.nodes) - 1 if self.ranks == 1 else 0
        return cast("Costs", np.partition(self.costs, fewest, axis=0)[fewest])


class _Search:
    """Of one group's phases: keeps what each set of ranks costs on each kind of node."""

    def __init__(self, phases: Sequence[Phase], ground: Ground) -> None:
        self.ranks = sum(node.ranks for node in ground.nodes)
        repeats: defaultdict[tuple[Flow, ...], int] = defaultdict(int)
        for phase in phases:
            repeats[_either_way(phase)] += phase.repeats
        self.repeats = np.array(list(repeats.values()), dtype=float)
        alike: defaultdict[object, list[int]] = defaultdict(list)
        for number, node in enumerate(ground.nodes):
            alike[node].append(number)
        kinds = [_kind(tuple(nodes), self.ranks, list(repeats), ground) for nodes in alike.values()]
        # The sets that leave least open first: large nodes.
        self.kinds = sorted(kinds, key=lambda kind: -kind.ranks)
        self.order = [kind for kind in self.kinds for _ in kind.nodes]
        # Whether exchanging all ranks with those at one distance changes nothing, whatever the distance.
        distances = [1 << bit for bit in range((self.ranks - 1).bit_length())]
        self.is_cube = self.ranks & (self.ranks - 1) == 0 and all(
            tuple(sorted((sender ^ distance, receiver ^ distance, share) for sender, receiver, share in flows)) == flows
            for flows in repeats
            for distance in distances
        )

    def least(self, size_bytes: float, limit_s: float) -> Seats | None:
        """Return a way to seat the ranks that takes least, None where none takes less than `limit_s`."""
        # A byte's seconds at that size and those of a step, as they add up; no more than rounding may be gained.
        self.weights = np.concatenate([self.repeats * size_bytes, self.repeats])
        self.best_s, self.found = limit_s * (1 - EQUAL), None
        self.seen: defaultdict[tuple[int, int, int], list[Costs]] = defaultdict(list)
        self.left = MOST_OPENED
        # Whoever sits where, no phase is shorter than what some kind of node makes of it at best.
        self._seat(0, 0, 0, np.max([kind.at_least() for kind in self.kinds], axis=0), ())
        return self.found

    found: Seats | None

    def _seat(self, at: int, used: int, after: int, costs: Costs, seated: tuple[int, ...]) -> None:
        """Seat the node `at` and those behind it, where `used` are seated and a node of the same kind before it has
        `after` as its lowest rank."""
        kind = self.order[at]
        if kind.ranks == 1 and kind is self.kinds[-1]:
            self._seat_singles(kind, used, costs, seated)
            return
        fits = (kind.sets & used) == 0
        if after:
            fits &= (kind.sets & -kind.sets) > after
        if at == 0 and self.is_cube:
            fits &= (kind.sets & 1) == 1
        sets, together = kind.sets[fits], np.maximum(kind.costs[fits], costs)
        seconds = together @ self.weights
        if self._is_hopeless(at, used, costs):
            return
        for place in np.argsort(seconds, kind="stable").tolist():
            if seconds[place] >= self.best_s or not self.left:
                return
            self.left -= 1
            taken = int(sets[place])
            if at + 1 == len(self.order):
                self.best_s, self.found = float(seconds[place]) * (1 - EQUAL), self._seats((*seated, taken))
                return
            next_after = taken & -taken if self.order[at + 1] is kind else 0
            if not self._is_worse(at + 1, used | taken, next_after, together[place]):
                self._seat(at + 1, used | taken, next_after, together[place], (*seated, taken))

    def _seat_singles(self, kind: _Kind, used: int, costs: Costs, seated: tuple[int, ...]) -> None:
        """Seat the ranks that are left, each on a node of its own, all alike."""
        fits = (kind.sets & used) == 0
        seconds = float(np.maximum(kind.costs[fits].max(axis=0), costs) @ self.weights)
        if seconds < self.best_s:
            self.best_s, self.found = seconds * (1 - EQUAL), self._seats((*seated, *kind.sets[fits].tolist()))

    def _is_hopeless(self, at: int, used: int, costs: Costs) -> bool:
        """Whether some kind of node to come takes too long with every set of ranks that is left for it."""
        for kind in dict.fromkeys(self.order[at + 1 :]):
            left = kind.costs[(kind.sets & used) == 0]
            if (np.maximum(left, costs) @ self.weights).min() >= self.best_s:
                return True
        return False

    def _is_worse(self, at: int, used: int, after: int, costs: Costs) -> bool:
        """Whether a way was gone on with that has seated the same ranks and keeps every phase as short."""
        seen = self.seen[at, used, after]
        if any((other <= costs).all() for other in seen):
            return True
        seen.append(costs)
        return False

    def _seats(self, sets: Sequence[int]) -> Seats:
        nodes = [node for kind in self.kinds for node in kind.nodes]
        on_node = list(zip(nodes, sets, strict=True))
        return tuple(next(node for node, taken in on_node if taken >> rank & 1) for rank in range(self.ranks))


def _either_way(phase: Phase) -> tuple[Flow, ...]:
    """Flows that are alike, forth or back: a phase of all flows turned round takes as long."""
    forth = tuple(sorted(phase.flows))
    back = tuple(sorted((receiver, sender, size) for sender, receiver, size in phase.flows))
    return min(forth, back)


def _kind(nodes: tuple[int, ...], ranks: int, phases: Sequence[tuple[Flow, ...]], ground: Ground) -> _Kind:
    node = ground.nodes[nodes[0]]
    members = np.array(list(combinations(range(ranks), node.ranks)))
    inside = np.zeros((len(members), ranks), dtype=bool)
    np.put_along_axis(inside, members, values=True, axis=1)
    passing, steps = [], []
    for flows in phases:
        sent, received = np.zeros((2, len(members)))
        kept, leaves = np.zeros((2 * ranks, len(members))), np.zeros(len(members), dtype=bool)
        for sender, receiver, share in flows:
            out, into = inside[:, sender], inside[:, receiver]
            sent += share * (out & ~into)
            received += share * (into & ~out)
            leaves |= out != into
            kept[[sender, ranks + receiver]] += share * (out & into)
        across = np.maximum(sent, received) / node.bytes_per_s
        stays = kept.max(axis=0)
        passing.append(np.maximum(across, stays / ground.inside[0].bytes_per_s if ground.inside else 0.0))
        step_s = ground.inside[0].latency_s if ground.inside else 0.0
        steps.append(np.maximum(np.where(leaves, ground.latency_s, 0.0), np.where(stays > 0, step_s, 0.0)))
    return _Kind(
        nodes=nodes,
        ranks=node.ranks,
        sets=(np.int64(1) << members).sum(axis=1),
        costs=np.stack([*passing, *steps], axis=1),
    )
