"""Which links connections take, and what share of their bytes on each: many connections at once.

Hop by hop, as switches do it: a packet goes on to any neighbour that is nearer to where it goes, and a rule chooses
among the cables that lead there (`profiles.routing.Routing`). What is down is not among them, so that what is left is
chosen from anew: a hash of as many ways as there still are. A torus is walked by `estimator.network.torus`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from estimator.network.hashes import HASHES, packet_bytes, switch_seeds
from estimator.network.known_paths import KnownWays
from estimator.network.links import Links
from estimator.network.missing_ways import NoWayError, no_way
from estimator.network.reach import NO_WAY, Graph, Hops, hops_to, switch_graph, ways_on
from estimator.network.torus import torus_steps
from estimator.network.turns import Loads, Turn, loads_on, summed_by_turn
from estimator.network.wires import Floats, Integers
from profiles.records import dataclass
from profiles.routing import Routing

__all__ = ["Flow", "Flows", "Loads", "NoWayError", "Routing", "Turn", "load_links", "route", "turns_taken"]

MOST_DISTANCES = 1 << 26
"""So many distances are held at once, an eighth of packets that are sprayed, which are at many switches each; of more
destinations some come after the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A connection from a NIC of a node to a NIC of another, with its UDP source port."""

    source: int
    destination: int
    source_nic: int = 0
    destination_nic: int = 0
    port: int = 0xC000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """Connections: NICs numbered through the network (`Links.nic_begins`), and UDP source ports, (flows,) each."""

    sources: Integers
    destinations: Integers
    ports: Integers

    def __len__(self) -> int:
        return len(self.sources)

    def at(self, places: Integers) -> Flows:
        """Return some of them."""
        return Flows(sources=self.sources[places], destinations=self.destinations[places], ports=self.ports[places])


def route(links: Links, routing: Routing, flow: Flow) -> tuple[tuple[int, float], ...]:
    """Return the links that a connection takes and the share of its bytes on each, by number. Raise NoWayError where
    none leads; ValueError for a NIC that the node has not, or two of one node."""
    numbers = []
    for node, nic in ((flow.source, flow.source_nic), (flow.destination, flow.destination_nic)):
        if not 0 <= node < links.nodes or not 0 <= nic < links.nic_begins[node + 1] - links.nic_begins[node]:
            raise ValueError(f"NIC {nic} of node {node}; expected one of {links.nodes} nodes, and of its NICs")
        numbers.append(np.array([links.nic_begins[node] + nic]))
    flows = Flows(sources=numbers[0], destinations=numbers[1], ports=np.array([flow.port]))
    loads = load_links(links, routing, flows, amounts=np.ones(1), owners=np.zeros(1, dtype=np.int64))
    return tuple(zip(loads.links.tolist(), loads.amounts.tolist(), strict=True))


def load_links(
    links: Links,
    routing: Routing,
    flows: Flows,
    *,
    amounts: Floats,
    owners: Integers,
    inside: Sequence[tuple[Integers, Integers]] = (),
) -> Loads:
    """Return what `owners` of connections, which send so many bytes (or bytes/s) each, put on links together.
    `inside`: connections, by number, and links inside nodes that they take as well.

    Raises:
        NoWayError: a connection that no way leads for, with the link that lacks.
        ValueError: a connection inside one node.
    """
    if routing.kind != "spray" or links.dimensions:
        turns = turns_taken(links, routing, flows)
        return loads_on(turns, links.count, amounts=amounts, owners=owners, inside=inside)
    _check_apart(links, flows)
    known, left = _told(links, routing, flows)
    own = ((owners[of], link, amounts[of]) for of, link in (*inside, *known))
    hops = _sprayed(links, routing, flows.at(left), amounts[left], owners[left])
    return summed_by_turn(own, hops, links.count)


def turns_taken(links: Links, routing: Routing, flows: Flows) -> list[Turn]:
    """Return the links that connections take one after the other, where none is sprayed: a connection's links in the
    order in which it takes them, turn after turn. Raise as `load_links`."""
    _check_apart(links, flows)
    turns, left = _told(links, routing, flows)
    if links.dimensions:
        rest = torus_steps(links, flows.sources[left], flows.destinations[left])
    else:
        rest = (turn for walk in _walks(links, routing, flows.at(left)) for turn in walk.single())
    return [*turns, *((left[of], link) for of, link in rest)]


def _check_apart(links: Links, flows: Flows) -> None:
    stay = links.node_of_nic[flows.sources] == links.node_of_nic[flows.destinations]
    if stay.any():
        raise ValueError(f"{stay.sum()} connections inside a node; expected those between nodes alone")


def _told(links: Links, routing: Routing, flows: Flows) -> tuple[list[Turn], Integers]:
    """The ways that somebody told, as one turn (of none, no turn), and the connections of which nobody did."""
    known, taken_already = KnownWays(links, routing).taken(flows.sources, flows.destinations, flows.ports)
    left = np.flatnonzero(~taken_already)
    if not known:
        return [], left
    of = np.repeat([flow for flow, _ in known], [len(way) for _, way in known])
    return [(of, np.concatenate([way for _, way in known]))], left


def _sprayed(
    links: Links, routing: Routing, flows: Flows, amounts: Floats, owners: Integers
) -> Iterator[tuple[Integers, Integers, Floats]]:
    """Owners, links and amounts of each hop."""
    for walk in _walks(links, routing, flows):
        yield from walk.sprayed(amounts[walk.flows], owners[walk.flows])


def _walks(links: Links, routing: Routing, flows: Flows) -> Iterator[_Walk]:
    """Connections to some destinations after the others, so that distances are few at once."""
    graph = switch_graph(links, up_down=routing.kind == "infiniband")
    ends = Destinations(links, flows.destinations)
    most = max(1, (MOST_DISTANCES >> (3 if routing.kind == "spray" else 0)) // max(graph.states, 1))
    for start in range(0, len(ends.switches), most):
        hops = hops_to(graph, ends.switches[start : start + most])
        here = np.flatnonzero((ends.keys >= start) & (ends.keys < start + most))
        yield _Walk(links, routing, graph, hops, flows, here, ends.keys[here] - start)


class Destinations:
    """The switches that packets go to: those at the destination's cables that are up. Connections whose destinations
    are at the same switches have the same key."""

    def __init__(self, links: Links, nics: Integers) -> None:
        each, places = np.unique(nics, return_inverse=True)
        counts, out = ports_of(links, each)
        of = np.repeat(np.arange(len(each)), counts)
        up = links.bytes_per_s[out ^ 1] > 0
        of, switch = of[up], links.ends[out[up], 1]
        if (np.bincount(of, minlength=len(each)) == 1).all():
            switches, key = np.unique(switch, return_inverse=True)
            self.switches = [np.array([number]) for number in switches]
        else:
            sets: dict[tuple[int, ...], int] = {}
            begins = np.searchsorted(of, np.arange(len(each) + 1))
            key = np.array(
                [
                    sets.setdefault(tuple(sorted(set(switch[begins[i] : begins[i + 1]].tolist()))), len(sets))
                    for i in range(len(each))
                ],
                dtype=np.int64,
            )
            self.switches = [np.array(numbers, dtype=np.int64) for numbers in sets]
        self.keys: Integers = key[places] if len(each) else np.empty(0, np.int64)


def ports_of(links: Links, nics: Integers) -> tuple[Integers, Integers]:
    """How many links each NIC sends on, and these, one NIC's after the other's."""
    first, counts = links.port_begins[nics], links.port_begins[nics + 1] - links.port_begins[nics]
    begins = np.cumsum(counts) - counts
    return counts, links.ports[np.arange(counts.sum()) + np.repeat(first - begins, counts)]


class _Walk:
    """Packets of the connections `here` on their way to `keys`, the rows of `hops`."""

    def __init__(
        self,
        links: Links,
        routing: Routing,
        graph: Graph,
        hops: Hops,
        flows: Flows,
        here: Integers,
        keys: Integers,
    ) -> None:
        self._links, self._routing, self._graph, self._hops = links, routing, graph, hops
        self.flows, self._flows, self._keys = here, flows.at(here), keys
        self._packets = packet_bytes(self._flows.sources, self._flows.destinations, self._flows.ports)
        self._spacing = up_spacing(links) if routing.kind == "infiniband" else np.ones(0, np.int64)

    def single(self) -> Iterator[Turn]:
        """Yield connections and the link that each of them takes next, until all have arrived."""
        every = np.arange(len(self._flows))
        choices, begins = self._first_choices(every)
        link = self._choose(every, self._links.node_of_nic[self._flows.sources], choices, begins[:-1], np.diff(begins))
        yield self.flows, link
        state = self._links.ends[link, 1]
        moving = np.flatnonzero(self._hops[self._keys, state] > 0)
        while len(moving):
            edges, firsts, counts = self._onward(self._keys[moving], state[moving])
            edge = self._choose(moving, state[moving] % self._graph.vertices, edges, firsts, counts)
            yield self.flows[moving], self._graph.links[edge]
            state[moving] = self._graph.heads[edge]
            moving = moving[self._hops[self._keys[moving], state[moving]] > 0]
        switch = state % self._graph.vertices
        choices, begins = self._last_choices(every, switch)
        yield self.flows, self._choose(every, switch, choices, begins[:-1], np.diff(begins))

    def sprayed(self, amounts: Floats, owners: Integers) -> Iterator[tuple[Integers, Integers, Floats]]:
        """Yield owners, links and amounts, hop by hop: in equal shares over all cables that lead nearer. What is at
        one switch for one destination goes on together."""
        every = np.arange(len(self._flows))
        choices, begins = self._first_choices(every)
        of, amount = _shared_out(begins, amounts)
        yield owners[of], choices, amount
        at = _Held.of(owners[of], self._keys[of], self._links.ends[choices, 1], amount)
        rest: list[_Held] = []
        while len(at.amounts):
            arrived = self._hops[at.keys, at.states] == 0
            rest.append(at.where(arrived))
            at = at.where(~arrived)
            edges, begins = self._edges(at.keys, at.states)
            of, amount = _shared_out(begins, at.amounts)
            yield at.owners[of], self._graph.links[edges], amount
            at = _Held.of(at.owners[of], at.keys[of], self._graph.heads[edges], amount)
        yield from self._delivered(amounts, owners, rest)

    def _delivered(
        self, amounts: Floats, owners: Integers, held: list[_Held]
    ) -> Iterator[tuple[Integers, Integers, Floats]]:
        """The last cables. Connections of one owner to one set of switches arrive at these in the same shares."""
        at = _Held.of(*(np.concatenate([getattr(part, name) for part in held]) for name in _HELD))
        total = np.bincount(_pair_places(owners, self._keys, at)[0], amounts)
        flow_group, group_of_held = _pair_places(owners, self._keys, at)
        share = at.amounts / total[group_of_held]
        order = np.argsort(group_of_held, kind="stable")
        begins = np.searchsorted(group_of_held[order], np.arange(len(total) + 1))
        counts = np.diff(begins)[flow_group]
        flow = np.repeat(np.arange(len(amounts)), counts)
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        held_at = order[begins[flow_group[flow]] + place]
        choices, choice_begins = self._last_choices(flow, at.states[held_at] % self._graph.vertices)
        of, amount = _shared_out(choice_begins, amounts[flow] * share[held_at])
        yield owners[flow[of]], choices, amount

    def _first_choices(self, flows: Integers) -> tuple[Integers, Integers]:
        """The links that lead out of the NIC to a switch from which a way leads on."""
        counts, out = ports_of(self._links, self._flows.sources[flows])
        of = np.repeat(flows, counts)
        reach = self._hops[self._keys[of], self._links.ends[out, 1]] != NO_WAY
        return self._kept(flows, of, out, (self._links.bytes_per_s[out] > 0) & reach)

    def _last_choices(self, flows: Integers, switches: Integers) -> tuple[Integers, Integers]:
        counts, out = ports_of(self._links, self._flows.destinations[flows])
        of = np.repeat(np.arange(len(flows)), counts)
        kept = (self._links.bytes_per_s[out ^ 1] > 0) & (self._links.ends[out, 1] == switches[of])
        return (out ^ 1)[kept], np.searchsorted(of[kept], np.arange(len(flows) + 1))

    def _kept(self, flows: Integers, of: Integers, choices: Integers, kept: Integers) -> tuple[Integers, Integers]:
        begins = np.searchsorted(of[kept], np.arange(len(flows) + 1))
        stuck = np.flatnonzero(np.diff(begins) == 0)
        if len(stuck):
            flow = flows[stuck[0]]
            raise no_way(self._links, int(self._flows.sources[flow]), int(self._flows.destinations[flow]))
        return choices[kept], begins

    def _edges(self, keys: Integers, states: Integers) -> tuple[Integers, Integers]:
        """The edges that lead each packet nearer, one packet's after the other's, and where each one's begin."""
        edges, firsts, counts = self._onward(keys, states)
        begins = np.concatenate([[0], np.cumsum(counts)])
        return edges[np.arange(begins[-1]) + np.repeat(firsts - begins[:-1], counts)], begins

    def _onward(self, keys: Integers, states: Integers) -> tuple[Integers, Integers, Integers]:
        """The same, with the edges written once for packets at one switch with one destination: where each packet's
        begin, and how many it has."""
        pairs, places = np.unique(keys * self._graph.states + states, return_inverse=True)
        edges, begins = ways_on(self._graph, self._hops, pairs // self._graph.states, pairs % self._graph.states)
        return edges, begins[places], np.diff(begins)[places]

    def _choose(
        self, flows: Integers, switches: Integers, choices: Integers, firsts: Integers, counts: Integers
    ) -> Integers:
        """One of the choices of each connection, by the rule of the switch that it is at."""
        if (counts == 1).all():
            alone: Integers = choices[firsts]
            return alone
        if self._routing.kind == "infiniband":
            number = self._flows.destinations[flows] // self._spacing[switches]
        else:
            seeds = switch_seeds(self._routing.seed, switches)
            number = HASHES[self._routing.hash](self._packets[flows], seeds).astype(np.int64)
        chosen: Integers = choices[firsts + number % counts]
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Held:
    """Bytes of owners for destinations at switches, each combination once."""

    owners: Integers
    keys: Integers
    states: Integers
    amounts: Floats

    @staticmethod
    def of(owners: Integers, keys: Integers, states: Integers, amounts: Floats) -> _Held:
        """Bring together what is the same."""
        if not len(owners):
            return _Held(owners=owners, keys=keys, states=states, amounts=amounts)
        key_count, state_count = int(keys.max()) + 1, int(states.max()) + 1
        code = (owners * key_count + keys) * state_count + states
        codes, places = np.unique(code, return_inverse=True)
        return _Held(
            owners=codes // state_count // key_count,
            keys=codes // state_count % key_count,
            states=codes % state_count,
            amounts=np.bincount(places, amounts).astype(np.float64),
        )

    def where(self, kept: Integers) -> _Held:
        """Return some of it."""
        return _Held(
            owners=self.owners[kept], keys=self.keys[kept], states=self.states[kept], amounts=self.amounts[kept]
        )


_HELD = ("owners", "keys", "states", "amounts")


def _pair_places(owners: Integers, keys: Integers, held: _Held) -> tuple[Integers, Integers]:
    """Numbers of the pairs of owner and destination: of each connection, and of what arrived."""
    span = int(keys.max(initial=0)) + 1
    _, places = np.unique(np.concatenate([owners * span + keys, held.owners * span + held.keys]), return_inverse=True)
    return places[: len(owners)], places[len(owners) :]


def _shared_out(begins: Integers, amounts: Floats) -> tuple[Integers, Floats]:
    """Whose each choice is, and the equal share of its amount."""
    counts = np.diff(begins)
    of = np.repeat(np.arange(len(counts)), counts)
    return of, (amounts / counts)[of]


def up_spacing(links: Links) -> Integers:
    """Return, of each vertex, by what the number of a destination is divided before the ways up are counted through: in
    a fat tree every tier takes the next digit (d-mod-k: Zahavi, "D-Mod-K routing providing non-blocking traffic for
    shift permutations on real life fat trees", 2010)."""
    tails, heads = links.ends.T
    rises = (links.tier_of[heads] > links.tier_of[tails]) & (links.tier_of[tails] > 0)
    ways = np.bincount(tails[rises], minlength=len(links.names))
    spacing, tier = np.ones(len(links.names), dtype=np.int64), 1
    for number in range(1, int(links.tier_of.max(initial=0)) + 1):
        here = links.tier_of == number
        spacing[here] = tier
        tier = min(tier * max(1, int(ways[here].max(initial=1))), 2**40)
    return spacing
