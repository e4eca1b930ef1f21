"""Titan's problem with its bandwidth constraint (NIMP, section III, eq. 1): ranks on nodes so that no phase of the
all-reduce asks more of a link than is there.

The constraint as printed compares bytes with bytes per second. A phase gets a time here: what the job may spend on
traffic between nodes in an iteration, divided over the phases by the bytes that a rank sends in each. It is for pairs
of machines as printed (`pairs`), or for every NIC and uplink (`links`), which pairs share; never inside a node.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from estimator.communication.phases import Phase
from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.records import Available
from profiles.records import dataclass

Reading = Literal["pairs", "links"]
MOST_STEPS, MOST_IN_ALL = 1_000, 3_000
"""Ranks that are seated and taken back in the search for one number of nodes, and for all."""
MOST_NODES = 24
"""So many nodes of each kind, idle or not, are looked at: those with most bandwidth and those with most free."""
ABOUT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The phases of a job's all-reduce, and the seconds of an iteration that they may take between nodes."""

    phases: tuple[Phase, ...]
    allowed_s: float

    @property
    def rates(self) -> tuple[tuple[tuple[int, int, float], ...], ...]:
        """By phase the flows with the bytes/s that each needs; one that the phase repeats is the same."""
        largest = [max((size for *_, size in phase.flows), default=0.0) for phase in self.phases]
        in_all = sum(size * phase.repeats for size, phase in zip(largest, self.phases, strict=True))
        return tuple(
            tuple((a, b, size / most * in_all / self.allowed_s) for a, b, size in phase.flows) if most else ()
            for most, phase in zip(largest, self.phases, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """The node of each rank. `proved`: no way has fewer idle nodes, or as many and fewer nodes."""

    nodes: tuple[int, ...]
    proved: bool

    @property
    def counts(self) -> NodeCounts:
        """Nodes with how many devices of each, in the order of the first rank on each."""
        return tuple(Counter(self.nodes).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSeating:
    """No way was found: `proved` that there is none; else the work was used up."""

    proved: bool


def worst_share(seats: Sequence[int], traffic: Traffic, available: Available, reading: Reading) -> float:
    """Return by how much the busiest pair or link is used: within the constraint where that is at most 1."""
    worst = 0.0
    for flows in traffic.rates:
        sent: defaultdict[tuple[object, ...], float] = defaultdict(float)
        for a, b, rate in flows:
            for link in _passed(seats[a], seats[b], available, reading):
                sent[link] += rate
        for link, rate in sent.items():
            there = _there(link, available)
            worst = max(worst, rate / there if there else math.inf)
    return worst


def _passed(here: int, there: int, available: Available, reading: Reading) -> Iterator[tuple[object, ...]]:
    """The links that a flow passes: its pair of nodes; or the NICs at its ends, and the uplinks between them."""
    if here == there:
        return
    if reading == "pairs":
        yield "pair", here, there
        return
    yield "out", here
    yield "in", there
    for level, (part_of, _) in enumerate(available.uplinks):
        if part_of[here] != part_of[there]:
            yield "up", level, part_of[here]
            yield "down", level, part_of[there]


def _there(link: tuple[object, ...], available: Available) -> float:
    """Bytes/s of a link of `_passed`; between two nodes of the least on the way."""
    match link:
        case ("out" | "in", int(node)):
            return available.nics_bytes_per_s[node]
        case ("up" | "down", int(level), int(part)):
            return available.uplinks[level][1][part]
        case ("pair", int(here), int(there)):
            ways = [available.nics_bytes_per_s[here], available.nics_bytes_per_s[there]]
            for part_of, rates in available.uplinks:
                if part_of[here] != part_of[there]:
                    ways += [rates[part_of[here]], rates[part_of[there]]]
            return min(ways)
    raise ValueError(f"{link!r} is no link")


def seat_within(
    free: Sequence[int], size: int, traffic: Traffic, available: Available, reading: Reading, ranks: int
) -> Seating | NoSeating:
    """Return ranks on nodes with so many devices `free`, of `size` in all: as few idle nodes as may be, of these as few
    nodes, and of these the way that sends least between nodes that the search finds, with every pair in every phase and
    every node's devices checked (section IV-B, whose algorithm 1 checks neither).

    Ranks are seated one after another, each on a node that is used or the first of those that are alike, and taken back
    where no more can follow; for each number of idle nodes and of nodes so many steps, the least first.
    """
    nodes, whole = _candidates(free, size, available)
    search = _Search(free, size, traffic, available, reading, ranks)
    proved = whole
    for idle in range(ranks + 1):
        for number in range(max(1, idle), ranks + 1):
            if not _holds(free, size, nodes, ranks, idle, number):
                continue
            if search.steps_in_all >= MOST_IN_ALL:
                return NoSeating(proved=False)
            seats, complete = search.run(nodes, idle, number)
            if seats is not None:
                return Seating(nodes=seats, proved=proved)
            proved &= complete
    return NoSeating(proved=proved)


def _candidates(free: Sequence[int], size: int, available: Available) -> tuple[list[int], bool]:
    """The nodes that are looked at, and whether these are all that have devices free."""
    kept: list[int] = []
    whole = True
    for idle in (False, True):
        nodes = [node for node, count in enumerate(free) if count and (count == size) == idle]
        by_rate = sorted(nodes, key=lambda node: (-available.nics_bytes_per_s[node], -free[node], node))
        by_free = sorted(nodes, key=lambda node: (-free[node], -available.nics_bytes_per_s[node], node))
        chosen = dict.fromkeys(node for pair in zip(by_free, by_rate, strict=True) for node in pair)
        whole &= len(nodes) <= MOST_NODES
        kept += list(chosen)[:MOST_NODES]
    return sorted(kept, key=lambda node: (-free[node], -available.nics_bytes_per_s[node], node)), whole


def _holds(free: Sequence[int], size: int, nodes: Sequence[int], ranks: int, idle: int, number: int) -> bool:
    """Whether so many nodes, so many of them idle, can hold the ranks, and there are so many."""
    parts = [free[node] for node in nodes if free[node] < size]
    if idle > len(nodes) - len(parts) or number - idle > len(parts):
        return False
    return idle * size + sum(parts[: number - idle]) >= ranks


class _Search:
    """A depth-first search for one number of nodes; what has been seated is its only state."""

    def __init__(
        self,
        free: Sequence[int],
        size: int,
        traffic: Traffic,
        available: Available,
        reading: Reading,
        ranks: int,
    ) -> None:
        self.free, self.size, self.available, self.reading = free, size, available, reading
        weights = _weights(traffic)
        self.order = _by_weight(weights, ranks)
        self.exchanged: list[dict[int, float]] = [{} for _ in range(ranks)]
        for (one, other), weight in weights.items():
            self.exchanged[one][other] = self.exchanged[other][one] = weight
        place = {rank: number for number, rank in enumerate(self.order)}
        self.with_earlier: list[list[tuple[int, int, int, float]]] = [[] for _ in range(ranks)]
        for phase, flows in enumerate(traffic.rates):
            for a, b, rate in flows:
                self.with_earlier[max(a, b, key=place.__getitem__)].append((phase, a, b, rate))
        self.kinds: dict[int, object] = {}
        self.known_links: dict[tuple[int, int, int], tuple[tuple[tuple[object, ...], float], ...]] = {}
        self.steps_in_all = 0

    def run(self, nodes: Sequence[int], idle: int, number: int) -> tuple[tuple[int, ...] | None, bool]:
        """Return the best seats found on so many nodes, and whether the search went through all ways."""
        self.left = {node: self.free[node] for node in nodes}
        self.seats: dict[int, int] = {}
        self.sent: defaultdict[tuple[object, ...], float] = defaultdict(float)
        self.best: tuple[float, tuple[int, ...]] | None = None
        self.steps, self.idle, self.number = 0, idle, number
        self._go_on(0.0)
        self.steps_in_all += self.steps
        return None if self.best is None else self.best[1], self.steps < MOST_STEPS

    def _go_on(self, across: float) -> None:
        if self.best is not None and across >= self.best[0] - ABOUT:
            return
        used = dict.fromkeys(self.seats.values())
        ranks = len(self.order)
        if self.number - len(used) > ranks - len(self.seats):
            return
        if len(self.seats) == ranks:
            self.best = (across, tuple(self.seats[rank] for rank in range(ranks)))
            return
        rank = self.order[len(self.seats)]
        for node, more in sorted(self._next(used, rank), key=lambda pair: pair[1]):
            if self.steps >= MOST_STEPS:
                return
            self.steps += 1
            added = self._add(rank, node)
            if added is not None:
                self.seats[rank] = node
                self.left[node] -= 1
                self._go_on(across + more)
                self.left[node] += 1
                del self.seats[rank]
                self._take_back(added)

    def _next(self, used: Mapping[int, None], rank: int) -> Iterator[tuple[int, float]]:
        """The nodes where the next rank may sit, with the bytes that it then exchanges with other nodes."""
        opened = sum(self.free[node] == self.size for node in used)
        beside = self.number - self.idle - (len(used) - opened)
        seen: set[object] = set()
        exchanged = self.exchanged[rank]
        for node, left in self.left.items():
            if not left:
                continue
            if node not in used:
                kind = self._kind(node)
                if kind in seen or (opened >= self.idle if self.free[node] == self.size else beside <= 0):
                    continue
                seen.add(kind)
            yield node, sum(exchanged.get(other, 0.0) for other, there in self.seats.items() if there != node)

    def _kind(self, node: int) -> object:
        """What nodes that have nobody yet have in common that may change places."""
        if node not in self.kinds:
            parts = tuple(part_of[node] for part_of, _ in self.available.uplinks)
            self.kinds[node] = (self.free[node], self.available.nics_bytes_per_s[node], parts)
        return self.kinds[node]

    def _add(self, rank: int, node: int) -> list[tuple[tuple[object, ...], float]] | None:
        """Put what the rank exchanges with earlier ones on the links; None, with nothing changed, where one is full."""
        added: list[tuple[tuple[object, ...], float]] = []
        for phase, a, b, rate in self.with_earlier[rank]:
            here = node if a == rank else self.seats[a]
            there = node if b == rank else self.seats[b]
            if here == there:
                continue
            for key, room in self._links(phase, here, there):
                self.sent[key] += rate
                added.append((key, rate))
                if self.sent[key] > room:
                    self._take_back(added)
                    return None
        return added

    def _links(self, phase: int, here: int, there: int) -> tuple[tuple[tuple[object, ...], float], ...]:
        """The links that a flow between two nodes passes in a phase, and what each may carry."""
        between = (phase, here, there)
        if between not in self.known_links:
            self.known_links[between] = tuple(
                ((phase, *link), _there(link, self.available) * (1 + ABOUT))
                for link in _passed(here, there, self.available, self.reading)
            )
        return self.known_links[between]

    def _take_back(self, added: Sequence[tuple[tuple[object, ...], float]]) -> None:
        for key, rate in added:
            self.sent[key] -= rate


def _by_weight(weights: Mapping[tuple[int, int], float], ranks: int) -> list[int]:
    """The ranks so that each exchanges most with those before it."""
    order, left = [0], set(range(1, ranks))
    sums = dict.fromkeys(left, 0.0)
    while left:
        for rank in left:
            pair = (min(order[-1], rank), max(order[-1], rank))
            sums[rank] += weights.get(pair, 0.0)
        order.append(max(left, key=lambda rank: (sums[rank], -rank)))
        left.discard(order[-1])
    return order


def _weights(traffic: Traffic) -> Mapping[tuple[int, int], float]:
    """Bytes between two ranks, both ways, by the lower and the higher one."""
    weights: defaultdict[tuple[int, int], float] = defaultdict(float)
    for phase in traffic.phases:
        for a, b, size in phase.flows:
            weights[min(a, b), max(a, b)] += size * phase.repeats
    return dict(weights)
