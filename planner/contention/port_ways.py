"""Which ways connections between two NICs may take, and from which UDP source ports: many pairs of NICs at once.

Ports are tried, not inverted: what a switch's hash does with a port is known by asking it, of the model or of the
fabric (`cellplan network probe`). Of a pair whose ways somebody told, the ports that were told are taken, and no guess
beside them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from estimator.network.fabric import Fabric
from estimator.network.known_paths import KnownWays
from estimator.network.port_paths import Way, in_order
from estimator.network.routes import Flows, Loads, load_links, ports_of
from estimator.network.wires import Integers
from profiles.records import dataclass, replace
from profiles.routing import Routing

FIRST_PORT = 0xC000
"""RoCE's source ports begin here."""
TRIED = 64
"""So many ports are tried between two NICs that no way is told of: one of 16 equal ways is missed by 2 of 100 pairs."""
KEPT = 4
"""Ports that are kept of a way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortWay:
    """Links in the order in which they are taken, ports whose connections take them, and whether this was told."""

    way: Way
    ports: tuple[int, ...]
    known: bool


def ways_by_port(fabric: Fabric, flows: Flows, most: int) -> list[tuple[tuple[PortWay, ...], int]]:
    """Return for each connection the ways that it may take, by the numbers of their links, and which of them it takes
    from its own port; no more than `most` and its own. One alone where no port leads elsewhere, and no way where its
    bytes are spread over several. Raise NoWayError where none leads."""
    if not len(flows):
        return []
    links, routing = fabric.links, fabric.routing
    if routing.kind == "spray":
        return [((), 0)] * len(flows)
    told_own = _are_told(fabric, flows)
    pairs, pair_of = np.unique(flows.sources * links.nics + flows.destinations, return_inverse=True)
    offered = _offered(fabric, pairs, most) if routing.kind == "ecmp" and not links.dimensions else {}
    order = _Order(fabric)
    with_own: dict[tuple[int, Way], tuple[tuple[PortWay, ...], int]] = {}
    result = []
    for flow, way in enumerate(ways_taken(fabric, flows)):
        pair, port = int(pair_of[flow]), int(flows.ports[flow])
        key = pair, way
        if key not in with_own:
            mine = PortWay(way=order.of(way), ports=(port,), known=bool(told_own[flow]))
            with_own[key] = _with_own(offered.get(pair, ()), mine)
        ways, place = with_own[key]
        if port not in ways[place].ports and (told_own[flow] or not ways[place].known):
            ways = (
                *ways[:place],
                replace(ways[place], ports=(port, *ways[place].ports[: KEPT - 1])),
                *ways[place + 1 :],
            )
        result.append((ways, place))
    return result


def ways_taken(fabric: Fabric, flows: Flows) -> list[Way]:
    """Return the links that each connection takes, by number, in no order. Raise NoWayError where none leads."""
    owners = np.arange(len(flows))
    loads = load_links(fabric.links, fabric.routing, flows, amounts=np.ones(len(flows)), owners=owners)
    return list(_ways(loads, len(flows)))


def _with_own(offered: Sequence[PortWay], mine: PortWay) -> tuple[tuple[PortWay, ...], int]:
    """The ways in the order of their links, with the present one among them, and its place."""
    others = [each for each in offered if each.way != mine.way]
    same = next((each for each in offered if each.way == mine.way), mine)
    ways = tuple(sorted((*others, same), key=lambda each: each.way))
    return ways, ways.index(same)


def _offered(fabric: Fabric, pairs: Integers, most: int) -> dict[int, tuple[PortWay, ...]]:
    """By the place of a pair, the ways that tried ports lead to; of pairs that have one way alone, nothing."""
    links = fabric.links
    sources, destinations = pairs // links.nics, pairs % links.nics
    told = _told_ports(fabric)
    is_told = np.array([pair in told for pair in zip(sources.tolist(), destinations.tolist(), strict=True)], dtype=bool)
    offered: dict[int, tuple[PortWay, ...]] = {}
    if is_told.any():
        places = np.flatnonzero(is_told)
        lists = [told[int(sources[place]), int(destinations[place])] for place in places]
        of = np.repeat(places, [len(ports) for ports in lists])
        ports = np.array([port for its in lists for port in its], dtype=np.int64)
        flows = Flows(sources=sources[of], destinations=destinations[of], ports=ports)
        right = np.flatnonzero(_are_told(fabric, flows))
        offered |= _by_way(fabric, fabric.routing, flows.at(right), of[right], most, known=True)
    open_places = np.flatnonzero(~is_told & _may_differ(fabric, sources, destinations))
    if len(open_places):
        of = np.repeat(open_places, TRIED)
        ports = np.tile(FIRST_PORT + np.arange(TRIED), len(open_places))
        flows = Flows(sources=sources[of], destinations=destinations[of], ports=ports)
        offered |= _by_way(fabric, replace(fabric.routing, paths=()), flows, of, most, known=False)
    return offered


def _may_differ(fabric: Fabric, sources: Integers, destinations: Integers) -> NDArray[np.bool_]:
    """Whether there may be several ways: not between NICs of one cable each to the same switch."""
    links = fabric.links
    here, there = ports_of(links, sources)[0], ports_of(links, destinations)[0]
    first, last = links.ports[links.port_begins[sources]], links.ports[links.port_begins[destinations]]
    same: NDArray[np.bool_] = (here == 1) & (there == 1) & (links.ends[first, 1] == links.ends[last, 1])
    return ~same


def _told_ports(fabric: Fabric) -> dict[tuple[int, int], list[int]]:
    """Of pairs of NICs, ports whose way the cluster's file tells: a few of each way."""
    numbers, begins = fabric.node_numbers, fabric.links.nic_begins
    ports: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for path in fabric.routing.paths:
        pair = (
            int(begins[numbers[path.source]]) + path.source_nic,
            int(begins[numbers[path.destination]]) + path.destination_nic,
        )
        every = (port for first, last in path.ports for port in range(first, last + 1))
        ports[pair] += [port for port, _ in zip(every, range(2 * KEPT), strict=False)]
    return ports


def _are_told(fabric: Fabric, flows: Flows) -> NDArray[np.bool_]:
    taken = KnownWays(fabric.links, fabric.routing).taken(flows.sources, flows.destinations, flows.ports)[1]
    return np.asarray(taken, dtype=bool)


def _by_way(
    fabric: Fabric, routing: Routing, flows: Flows, of: Integers, most: int, *, known: bool
) -> dict[int, tuple[PortWay, ...]]:
    """The ways that connections take, by what each is of; the first `most` ways of each."""
    loads = load_links(fabric.links, routing, flows, amounts=np.ones(len(flows)), owners=np.arange(len(flows)))
    begins = np.searchsorted(loads.owners, np.arange(len(flows) + 1))
    marks = np.add.reduceat(_mixed(loads.links), begins[:-1])
    # The connections of one way of a pair stand together, each way where its first port stands.
    by_mark = np.lexsort((np.arange(len(flows)), marks, of))
    new = np.ones(len(flows), dtype=bool)
    new[1:] = (np.diff(of[by_mark]) != 0) | (marks[by_mark][1:] != marks[by_mark][:-1])
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(flows))
    order = _Order(fabric)
    taken: defaultdict[int, list[PortWay]] = defaultdict(list)
    numbers, its_ports, owner = loads.links, flows.ports, of[by_mark]
    first_flow = by_mark[starts]
    for turn in np.argsort(first_flow, kind="stable").tolist():
        pair = int(owner[starts[turn]])
        if len(taken[pair]) < most:
            flow = int(first_flow[turn])
            way = tuple(numbers[begins[flow] : begins[flow + 1]].tolist())
            ports = its_ports[by_mark[starts[turn] : min(ends[turn], starts[turn] + KEPT)]]
            taken[pair].append(PortWay(way=order.of(way), ports=tuple(ports.tolist()), known=known))
    return {pair: tuple(ways) for pair, ways in taken.items()}


def _mixed(numbers: Integers) -> NDArray[np.uint64]:
    """64 bits of each number, so that sums of few of them tell sets apart (splitmix64: Steele, Lea, Flood, 2014)."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _ways(loads: Loads, flows: int) -> Iterator[Way]:
    begins = np.searchsorted(loads.owners, np.arange(flows + 1)).tolist()
    numbers = loads.links.tolist()
    for start, end in pairwise(begins):
        yield tuple(numbers[start:end])


class _Order:
    """Brings the links of ways into their order; between the same leaves it is looked for once."""

    def __init__(self, fabric: Fabric) -> None:
        self._links = fabric.links
        self._at_node = np.zeros(fabric.links.count, dtype=bool)
        self._at_node[fabric.links.ports] = True
        self._middle = lru_cache(maxsize=None)(self._ordered)

    def of(self, way: Way) -> Way:
        """Return the links in order."""
        first = [link for link in way if self._at_node[link]]
        last = [link for link in way if self._at_node[link ^ 1]]
        if len(first) != 1 or len(last) != 1 or first == last:
            return in_order(self._links, way)
        middle = tuple(link for link in way if link not in (first[0], last[0]))
        return (first[0], *self._middle(middle), last[0])

    def _ordered(self, middle: Way) -> Way:
        return in_order(self._links, middle) if middle else ()
