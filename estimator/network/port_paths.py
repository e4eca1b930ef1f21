"""The ways between two NICs, each with the UDP source ports whose connections take it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from estimator.network.known_paths import KnownWays
from estimator.network.links import Links
from estimator.network.routes import Flows, load_links
from estimator.network.wires import Integers
from profiles.records import dataclass, replace
from profiles.routing import Routing

Way = tuple[int, ...]
"""Links, in the order in which they are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPath:
    """A way, the ports whose connections take it, and what share of a connection's bytes does; `known`: it was told,
    for all of these ports."""

    way: Way
    ports: tuple[int, ...]
    share: float = 1.0
    known: bool = False


def port_paths(
    links: Links, routing: Routing, source: int, destination: int, ports: Sequence[int], *, most: int
) -> tuple[PortPath, ...]:
    """Return the ways from a NIC to a NIC that connections from these ports take, known ones first, then those of most
    ports; of ways that every connection is sprayed over no more than `most`. Raise NoWayError where none leads."""
    every = np.array(ports, dtype=np.int64)
    flows = Flows(sources=np.full(len(every), source), destinations=np.full(len(every), destination), ports=every)
    told, is_told = KnownWays(links, routing).taken(flows.sources, flows.destinations, flows.ports)
    of_way: defaultdict[tuple[Way, bool], list[int]] = defaultdict(list)
    for flow, way in told:
        of_way[in_order(links, way.tolist()), True].append(int(every[flow]))
    rest = np.flatnonzero(~is_told)
    sprayed = routing.kind == "spray"
    if len(rest):
        some = rest[:1] if sprayed or routing.kind == "infiniband" or links.dimensions else rest
        loads = load_links(
            links,
            replace(routing, paths=()),
            flows.at(some),
            amounts=np.ones(len(some)),
            owners=np.arange(len(some)),
        )
        if sprayed:
            ways = islice(_all_ways(links, loads.links, source), most)
            shared = [PortPath(way=way, ports=tuple(every[rest].tolist()), share=share) for way, share in ways]
            return (*_in_turn(of_way), *shared)
        begins = np.searchsorted(loads.owners, np.arange(len(some) + 1)).tolist()
        by_links: defaultdict[Way, list[int]] = defaultdict(list)
        numbers = loads.links.tolist()
        for place, port in enumerate(every[some].tolist()):
            by_links[tuple(numbers[begins[place] : begins[place + 1]])].append(port)
        if len(some) < len(rest):
            by_links = defaultdict(list, {way: every[rest].tolist() for way in by_links})
        for links_of_way, own in by_links.items():
            of_way[in_order(links, links_of_way), False] += own
    return tuple(_in_turn(of_way))


def _in_turn(of_way: dict[tuple[Way, bool], list[int]]) -> list[PortPath]:
    paths = [PortPath(way=way, ports=tuple(sorted(own)), known=known) for (way, known), own in of_way.items()]
    return sorted(paths, key=lambda path: (not path.known, -len(path.ports), path.way))


def in_order(links: Links, way: Sequence[int]) -> Way:
    """Return the links of a way one after the other: the first is the one that nothing leads to."""
    after = {int(links.ends[link, 0]): link for link in way}
    reached = {int(links.ends[link, 1]) for link in way}
    at = next(vertex for vertex in after if vertex not in reached)
    ordered: list[int] = []
    while at in after and len(ordered) < len(way):
        ordered.append(after[at])
        at = int(links.ends[after[at], 1])
    return tuple(ordered)


def equal_way_count(links: Links, routing: Routing, source: int, destination: int) -> int:
    """Return how many equal ways lead from a NIC to a NIC, parallel cables counted apart; where the rule takes one
    alone, 1. Raise NoWayError where none leads."""
    if links.dimensions or routing.kind == "infiniband":
        return 1
    onward = _onward(links, _sprayed_links(links, source, destination))
    counts: dict[int, int] = {}

    def count(at: int) -> int:
        if at not in onward:
            return 1
        if at not in counts:
            counts[at] = sum(count(int(links.ends[link, 1])) for link in onward[at])
        return counts[at]

    return count(int(links.node_of_nic[source]))


def switch_ways(links: Links, source: int, destination: int) -> dict[tuple[str, ...], float]:
    """Return the equal ways by the switches that they pass, as a trace of hops tells them apart, with the share of
    ports that a good hash gives each. Raise NoWayError where none leads."""
    shares: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for way, share in _all_ways(links, _sprayed_links(links, source, destination), source, parallel=False):
        shares[tuple(links.names[links.ends[link, 1]] for link in way[:-1])] += share
    return dict(shares)


def _sprayed_links(links: Links, source: int, destination: int) -> Integers:
    flow = Flows(sources=np.array([source]), destinations=np.array([destination]), ports=np.array([0xC000]))
    return load_links(links, Routing(kind="spray"), flow, amounts=np.ones(1), owners=np.zeros(1, np.int64)).links


def _onward(links: Links, taken: Integers) -> dict[int, list[int]]:
    onward: defaultdict[int, list[int]] = defaultdict(list)
    for link in taken.tolist():
        onward[int(links.ends[link, 0])].append(link)
    return dict(onward)


def _all_ways(links: Links, taken: Integers, source: int, *, parallel: bool = True) -> Iterator[tuple[Way, float]]:
    """All ways over these links from a NIC on, and the share of bytes of each; parallel cables as one where they are
    not asked for."""
    onward = _onward(links, taken)

    def go(at: int, way: Way, share: float) -> Iterator[tuple[Way, float]]:
        if at not in onward:
            yield way, share
            return
        by_end: defaultdict[int, list[int]] = defaultdict(list)
        for link in onward[at]:
            by_end[link if parallel else int(links.ends[link, 1])].append(link)
        for cables in by_end.values():
            part = share * len(cables) / len(onward[at])
            yield from go(int(links.ends[cables[0], 1]), (*way, cables[0]), part)

    yield from go(int(links.node_of_nic[source]), (), 1.0)
