"""Which nodes of a pool are kept for a job that will come: its zone.

The job is a matrix of nodes (`planner.one_job.pods`), of one column where nothing is known of its stages. A zone costs,
in device-seconds,

- what would stand idle there until the job comes: devices that are free, and those of jobs that end before;
- for every job that sits there and is expected to outlast that: its devices times what stopping one is held to cost;
- what the job's own devices lose by its spread: so much for every pod that eq. 2's value is above one.

`least_spread_zone` is the paper's: the placement of least spread on all nodes that are not kept for others, free ones
first. `cheapest_zone` weighs the three. Sources: Arnold, sections 5.2 and 5.3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from random import Random

from planner.one_job.pods.baselines import FIXED_RULES, NODE_ORDERS, handed_out
from planner.one_job.pods.consolidation import METHOD as ARNOLD
from planner.one_job.pods.consolidation import closed_form
from planner.one_job.pods.methods import place_into_pods
from planner.one_job.pods.records import Placement, PodRequest
from planner.one_job.pods.seating import in_megatrons_order, seat
from profiles.records import dataclass

WIDER = (1.0, 1.05, 1.1, 1.25, 1.5, 2.0)
"""`cheapest_zone` looks at the cheapest nodes, so many times as many as are wanted, and at all."""
MOST_SPARED, STOPS_TRIED = 3, 32
"""Of the cheapest few zones it is asked, for so many of the jobs that each would stop, whether nodes of others in their
place cost less."""
MOST_MOVED = 128
"""In larger zones nodes are exchanged inside their pods alone, where the spread stays what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A job that the zone stops if it takes any of these nodes, and what that is held to cost, device-seconds."""

    nodes: frozenset[int]
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneRequest:
    """`rows` times `columns` nodes wanted out of `pods`, the usable nodes of each in the order in which they are near
    each other. `idle`: device-seconds by node; `pod_cost`: device-seconds for a pod more of eq. 2's value, in which
    `alpha` weighs DP groups. `method` is one of `planner.one_job.pods.methods`."""

    rows: int
    columns: int
    pods: tuple[tuple[int, ...], ...]
    idle: Mapping[int, float]
    stops: tuple[Stop, ...] = ()
    alpha: float = 0.5
    pod_cost: float = 0.0
    method: str = ARNOLD

    @property
    def wanted(self) -> int:
        """Nodes of the zone."""
        return self.rows * self.columns

    @property
    def fits(self) -> bool:
        """Whether there are so many nodes."""
        return sum(map(len, self.pods)) >= self.wanted


def zone_cost(request: ZoneRequest, nodes: Collection[int]) -> float:
    """Return what a zone of these nodes costs, in device-seconds."""
    idle = sum(request.idle[node] for node in nodes)
    stopped = sum(stop.cost for stop in request.stops if not stop.nodes.isdisjoint(nodes))
    if request.pod_cost == 0.0:
        return idle + stopped
    counts = tuple(sum(node in nodes for node in pod) for pod in request.pods)
    return idle + stopped + request.pod_cost * (_placed(request, counts).value - 1.0)


def least_spread_zone(request: ZoneRequest, busy: Collection[int]) -> tuple[int, ...]:
    """Return the nodes of the placement of least spread, in the order of the ranks; of a pod those that are not `busy`
    first, then in their order. Raise ValueError where there are too few."""
    _require(request)
    taken = _placed(request, tuple(map(len, request.pods))).taken
    chosen = [
        sorted(pod, key=lambda node: node in busy)[:count] for pod, count in zip(request.pods, taken, strict=True)
    ]
    return in_order_of_ranks(request, {node for nodes in chosen for node in nodes})


def cheapest_zone(request: ZoneRequest) -> tuple[int, ...]:
    """Return the nodes of the cheapest zone that is tried, in the order of the ranks. Raise ValueError where there are
    too few.

    Tried are the least spread placements on the cheapest nodes, few and many, and those without regard to spread; in
    each pod a node is taken after the other by what it adds to the cost, and jobs are spared where other nodes of the
    same pods, or of any, cost less.
    """
    _require(request)
    price = _shared_prices(request)
    ranked = sorted(price, key=lambda node: (price[node], node))
    takes: dict[tuple[int, ...], None] = {}
    for factor in WIDER:
        usable = frozenset(ranked[: max(request.wanted, round(factor * request.wanted))])
        counts = tuple(sum(node in usable for node in pod) for pod in request.pods)
        takes[_placed(request, counts).taken] = None
        if factor == 1.0:
            takes[counts] = None
    takes[_placed(request, tuple(map(len, request.pods))).taken] = None
    zones = [_filled(request, dict(zip(range(len(take)), take, strict=True))) for take in takes]
    zones.append(_greedy(request, [node for pod in request.pods for node in pod], request.wanted, frozenset()))
    ranked_zones = sorted(set(zones), key=lambda zone: (zone_cost(request, zone), sorted(zone)))
    spared = [_spared(request, zone) for zone in ranked_zones[:MOST_SPARED]]
    best = min(spared, key=lambda zone: (zone_cost(request, zone), sorted(zone)))
    return in_order_of_ranks(request, best)


def in_order_of_ranks(request: ZoneRequest, nodes: Collection[int]) -> tuple[int, ...]:
    """Return the zone's nodes so that the n-th one is the n-th of Megatron's ranks."""
    by_pod = [[node for node in pod if node in nodes] for pod in request.pods]
    return in_megatrons_order(seat(_placed(request, tuple(map(len, by_pod))), by_pod))


def _require(request: ZoneRequest) -> None:
    if not request.fits:
        raise ValueError(f"{request.wanted} nodes wanted of {sum(map(len, request.pods))}")


def _placed(request: ZoneRequest, counts: tuple[int, ...]) -> Placement:
    return _placement(request.rows, request.columns, counts, request.alpha, request.method)


@lru_cache(maxsize=1024)
def _placement(rows: int, columns: int, free: tuple[int, ...], alpha: float, method: str) -> Placement:
    """The placement by a method. Arnold's without a solver: where its closed form has no proof, the best of the rules
    that schedulers follow, so that no decision takes longer than another."""
    request = PodRequest(rows=rows, columns=columns, free=free, alpha=alpha)
    if method == ARNOLD:
        layout = closed_form(request)
        if layout is not None:
            return Placement(method=method, request=request, cells=layout.cells)
        placements = [
            handed_out(ARNOLD, rule, request, order, Random(0)) for rule in FIXED_RULES for order in NODE_ORDERS
        ]
        return min((one for one in placements if isinstance(one, Placement)), key=lambda one: one.value)
    placement = place_into_pods(method, request)
    if not isinstance(placement, Placement):
        raise ValueError(placement.reason)
    return placement


def _shared_prices(request: ZoneRequest) -> dict[int, float]:
    """What each node costs if a job that is stopped is shared out among all of its nodes."""
    price = {node: request.idle[node] for pod in request.pods for node in pod}
    for stop in request.stops:
        here = [node for node in stop.nodes if node in price]
        for node in here:
            price[node] += stop.cost / len(here)
    return price


def _filled(request: ZoneRequest, take: Mapping[int, int]) -> frozenset[int]:
    """A zone of so many nodes of each pod."""
    zone: frozenset[int] = frozenset()
    for pod, count in take.items():
        zone |= _greedy(request, request.pods[pod], count, zone)
    return zone


def _greedy(request: ZoneRequest, nodes: Iterable[int], count: int, zone: frozenset[int]) -> frozenset[int]:
    """So many of `nodes`, one after the other by what each adds to the cost of `zone`; a job that is stopped counts for
    a node as its cost shared out among as many of its nodes as can still be used."""
    usable = {node for node in nodes if node not in zone}
    stops_on: dict[int, list[int]] = {}
    for number, stop in enumerate(request.stops):
        if stop.nodes.isdisjoint(zone):
            for node in stop.nodes & usable:
                stops_on.setdefault(node, []).append(number)
    share = [stop.cost / max(1, min(count, len(stop.nodes & usable))) for stop in request.stops]
    stopped: set[int] = set()

    def added(node: int) -> float:
        return request.idle[node] + sum(share[number] for number in stops_on.get(node, ()) if number not in stopped)

    heap = [(added(node), node) for node in usable]
    heapify(heap)
    chosen: set[int] = set()
    while len(chosen) < count:
        cost, node = heappop(heap)
        if node in chosen or cost > added(node):
            continue
        chosen.add(node)
        for number in stops_on.get(node, ()):
            if number not in stopped:
                stopped.add(number)
                for other in (request.stops[number].nodes & usable) - chosen:
                    heappush(heap, (added(other), other))
    return frozenset(chosen)


def _spared(request: ZoneRequest, zone: frozenset[int]) -> frozenset[int]:
    """The zone with jobs spared, the dearest first, as long as others' nodes in their place cost less; and with single
    nodes exchanged for cheaper ones of the same pod."""
    cost = zone_cost(request, zone)
    everything = [node for pod in request.pods for node in pod]
    hit = sorted((stop for stop in request.stops if not stop.nodes.isdisjoint(zone)), key=lambda stop: -stop.cost)
    for stop in hit[:STOPS_TRIED]:
        kept = zone - stop.nodes
        if len(kept) == len(zone):
            continue
        for other in _without(request, zone, kept, stop.nodes, everything):
            new_cost = zone_cost(request, other)
            if new_cost < cost * (1 - 1e-12):
                zone, cost = other, new_cost
                break
    return zone


def _without(
    request: ZoneRequest, zone: frozenset[int], kept: frozenset[int], barred: frozenset[int], everything: Sequence[int]
) -> Iterable[frozenset[int]]:
    """Zones that keep `kept` and fill up without `barred`: pod by pod, and from anywhere."""
    outside = [node for node in everything if node not in zone and node not in barred]
    filled: frozenset[int] | None = kept
    for pod in request.pods:
        lacking = sum(node in zone and node not in kept for node in pod)
        usable = [node for node in pod if node not in zone and node not in barred]
        if lacking > len(usable):
            filled = None
            break
        if filled is not None:
            filled |= _greedy(request, usable, lacking, filled)
    if filled is not None:
        yield filled
    if request.wanted <= MOST_MOVED and len(outside) >= len(zone) - len(kept):
        yield kept | _greedy(request, outside, len(zone) - len(kept), kept)
