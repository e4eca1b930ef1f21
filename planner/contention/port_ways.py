"""Which ways connections between two NICs may take, and from which UDP source ports: many pairs of NICs at once.

Ports are tried, not inverted: what a switch's hash does with a port is known by asking it, of the model or of the
fabric (`cellplan network probe`). Of a pair whose ways somebody told, the ports that were told are taken, and no guess
beside them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.network.fabric import Fabric
from estimator.network.known_paths import KnownWays
from estimator.network.port_paths import Way
from estimator.network.routes import Flows, ports_of, turns_taken
from estimator.network.turns import NO_LINK, Turn, way_rows
from estimator.network.wires import Integers
from profiles.records import dataclass, replace
from profiles.routing import Routing

FIRST_PORT = 0xC000
"""RoCE's source ports begin here."""
TRIED = 64
"""So many ports are tried between two NICs that no way is told of: one of 16 equal ways is missed by 2 of 100 pairs."""
KEPT = 4
"""Ports that are kept of a way."""
NO_PORT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PortWay:
    """Links in the order in which they are taken, ports whose connections take them, and whether this was told."""

    way: Way
    ports: tuple[int, ...]
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairWays:
    """The ways that ports lead to, of many pairs of NICs: of pair p the rows from `begins[p]` to `begins[p + 1]`, in
    the order of their links. Of each row the links, in the order in which they are taken and `NO_LINK` after them, some
    of its ports with `NO_PORT` after them, and whether this was told."""

    begins: Sequence[int]
    links: Integers
    ports: Integers
    known: NDArray[np.bool_]

    def row(self, number: int) -> PortWay:
        """Return a row by itself."""
        links, ports = self.links[number], self.ports[number]
        return PortWay(
            way=tuple(links[links != NO_LINK].tolist()),
            ports=tuple(ports[ports != NO_PORT].tolist()),
            known=bool(self.known[number]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """The ways that a connection may take: those of its pair in a table, and its `own`, the one that it takes now, at
    `place`, which `is_there` among them or comes between them."""

    table: PairWays
    pair: int
    own: PortWay
    place: int
    is_there: bool

    def __len__(self) -> int:
        return self.table.begins[self.pair + 1] - self.table.begins[self.pair] + (not self.is_there)

    def __iter__(self) -> Iterator[PortWay]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> PortWay:
        if not 0 <= number < len(self):
            raise IndexError(f"way {number} of {len(self)}")
        if number == self.place:
            return self.own
        return self.table.row(self.table.begins[self.pair] + number - (number > self.place and not self.is_there))


def ways_by_port(fabric: Fabric, flows: Flows, turns: Sequence[Turn], most: int, sets: Sequence[int]) -> list[Offer]:
    """Return for each connection, which takes its links by `turns`, the ways that it may take by other ports and its
    own; no more than `most` and that. One alone where no port leads elsewhere. A way that is nobody's but their own has
    the port of the first of those that take it of the same of `sets`, too."""
    links, routing = fabric.links, fabric.routing
    told_own = _are_told(fabric, flows).tolist()
    pairs, pair_of = np.unique(flows.sources * links.nics + flows.destinations, return_inverse=True)
    chosen = routing.kind == "ecmp" and not links.dimensions
    table = _offered(fabric, pairs, most) if chosen else _table([], len(pairs))
    own_rows = way_rows(turns, len(flows))
    longest = max(table.links.shape[1], own_rows.shape[1])
    ways = list(map(tuple, _padded(table.links, longest).tolist()))
    own_ways = map(tuple, _padded(own_rows, longest).tolist())
    offers: dict[tuple[int, int, Way], Offer] = {}
    result = []
    every = zip(sets, pair_of.tolist(), flows.ports.tolist(), own_ways, strict=True)
    for flow, (its_set, pair, port, way) in enumerate(every):
        offer = offers.get((its_set, pair, way))
        if offer is None:
            offer = offers[its_set, pair, way] = _offer(table, ways, pair, way, port, told_own[flow])
        own = offer.own
        if port not in own.ports and (told_own[flow] or not own.known):
            offer = replace(offer, own=replace(own, ports=(port, *own.ports[: KEPT - 1])))
        result.append(offer)
    return result


def ways_taken(fabric: Fabric, flows: Flows) -> list[Way]:
    """Return the links that each connection takes, in their order, where none is sprayed. Raise NoWayError where none
    leads."""
    rows = way_rows(turns_taken(fabric.links, fabric.routing, flows), len(flows)).tolist()
    return [tuple(link for link in row if link != NO_LINK) for row in rows]


def _offer(table: PairWays, ways: Sequence[Way], pair: int, way: Way, port: int, told: bool) -> Offer:
    """What a pair's connections are offered that take a way now, the first of them from a port."""
    begin, end = table.begins[pair], table.begins[pair + 1]
    row = bisect_left(ways, way, begin, end)
    is_there = row < end and ways[row] == way
    if is_there:
        own = table.row(row)
    else:
        own = PortWay(way=tuple(link for link in way if link != NO_LINK), ports=(port,), known=told)
    return Offer(table=table, pair=pair, own=own, place=row - begin, is_there=is_there)


def _offered(fabric: Fabric, pairs: Integers, most: int) -> PairWays:
    """The ways that tried ports lead to, of pairs of NICs; none of pairs that have one way alone."""
    links = fabric.links
    sources, destinations = pairs // links.nics, pairs % links.nics
    told = _told_ports(fabric)
    is_told = np.array([pair in told for pair in zip(sources.tolist(), destinations.tolist(), strict=True)], dtype=bool)
    parts: list[_Rows] = []
    if is_told.any():
        places = np.flatnonzero(is_told)
        lists = [told[int(sources[place]), int(destinations[place])] for place in places]
        of = np.repeat(places, [len(ports) for ports in lists])
        ports = np.array([port for its in lists for port in its], dtype=np.int64)
        flows = Flows(sources=sources[of], destinations=destinations[of], ports=ports)
        right = np.flatnonzero(_are_told(fabric, flows))
        if len(right):
            parts.append(_by_way(fabric, fabric.routing, flows.at(right), of[right], most, known=True))
    open_places = np.flatnonzero(~is_told & _may_differ(fabric, sources, destinations))
    if len(open_places):
        of = np.repeat(open_places, TRIED)
        ports = np.tile(FIRST_PORT + np.arange(TRIED), len(open_places))
        flows = Flows(sources=sources[of], destinations=destinations[of], ports=ports)
        parts.append(_by_way(fabric, replace(fabric.routing, paths=()), flows, of, most, known=False))
    return _table(parts, len(pairs))


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Ways of pairs as rows of a table, in any order."""

    pairs: Integers
    links: Integers
    ports: Integers
    known: bool


def _by_way(fabric: Fabric, routing: Routing, flows: Flows, of: Integers, most: int, *, known: bool) -> _Rows:
    """The ways that connections take, by what each is of, in growing order; the first `most` ways of each."""
    rows = way_rows(turns_taken(fabric.links, routing, flows), len(flows))
    marks = _mixed(rows).sum(axis=1, dtype=np.uint64)
    # The connections of one way of a pair stand together, in their order.
    by_mark = np.lexsort((marks, of))
    new = np.ones(len(flows), dtype=bool)
    new[1:] = (np.diff(of[by_mark]) != 0) | (np.diff(marks[by_mark]) != 0)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(flows))
    # Of each pair those ways stay whose first ports come first.
    order = np.argsort(by_mark[starts], kind="stable")
    owners = of[by_mark[starts[order]]]
    order = order[np.arange(len(order)) - np.searchsorted(owners, owners) < most]
    starts, ends = starts[order], ends[order]
    ports = starts[:, None] + np.arange(KEPT)
    return _Rows(
        pairs=of[by_mark[starts]],
        links=rows[by_mark[starts]],
        ports=np.where(ports < ends[:, None], flows.ports[by_mark[np.minimum(ports, len(flows) - 1)]], NO_PORT),
        known=known,
    )


def _table(parts: Sequence[_Rows], pairs: int) -> PairWays:
    """Rows of ways in the order of pairs, then of links."""
    longest = max((part.links.shape[1] for part in parts), default=0)
    padded = [_padded(part.links, longest) for part in parts]
    of = np.concatenate([np.empty(0, np.int64), *(part.pairs for part in parts)])
    links = np.concatenate([np.empty((0, longest), np.int64), *padded])
    order = np.lexsort((*links.T[::-1], of))
    ports = np.concatenate([np.empty((0, KEPT), np.int64), *(part.ports for part in parts)])
    known = np.repeat([part.known for part in parts], [len(part.pairs) for part in parts]).astype(bool)
    return PairWays(
        begins=np.searchsorted(of[order], np.arange(pairs + 1)).tolist(),
        links=links[order].astype(np.int32),
        ports=ports[order].astype(np.int32),
        known=known[order],
    )


def _padded(rows: Integers, longest: int) -> Integers:
    return np.pad(rows, ((0, 0), (0, longest - rows.shape[1])), constant_values=NO_LINK)


def _mixed(numbers: Integers) -> NDArray[np.uint64]:
    """64 bits of each number, so that sums of few of them tell sets apart (splitmix64: Steele, Lea, Flood, 2014)."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
