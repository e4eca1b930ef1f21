"""The connections of a job: queue pairs that may take several paths, and what is joined of those that may not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from estimator.network.connections import Model, connection_seed, eased, loads_of, mover_numbers, steps_of
from estimator.network.fabric import Fabric, Seat
from estimator.network.queue_pairs import Connections, connections_of
from estimator.network.routes import Flows
from estimator.network.steps import Mover, Transfer
from estimator.network.traffic import Exchange, Traffic
from estimator.network.wires import Floats, Integers
from planner.contention.policies.records import Choice, Path
from planner.contention.port_ways import PortWay, ways_by_port
from profiles.records import dataclass

Key = tuple[int, bytes, bytes]
"""What is equal for exchanges that go over the very same queue pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A NIC of a node, by its number in the node."""

    node: int
    nic: int


@dataclass(frozen=True, kw_only=True)
class QueuePair:
    """A connection that may take several paths: its ends, the axis of what it carries, which of those of that axis
    between these ends it is (from 0), the UDP source port that it has now, and of each of its paths the links in order,
    ports that lead there, and whether somebody told (or probed) that they do; else the model's hash says so."""

    axis: str
    source: End
    destination: End
    number: int
    port: int
    ways: tuple[PortWay, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """The queue pairs that an exchange goes over; `number` is equal for those of one axis between the same ranks."""

    axis: str
    number: int
    queue_pairs: Connections

    @property
    def key(self) -> Key:
        """What tells them from others."""
        flows = self.queue_pairs.flows
        return self.number, flows.sources.tobytes(), flows.destinations.tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Offer:
    """A queue pair, by its place in a set of them, and the ways that it may take; `now` is the one that it takes."""

    key: Key
    place: int
    ways: tuple[PortWay, ...]
    now: int


def opened_by(traffic: Traffic, seats: Sequence[Seat], fabric: Fabric, seed: int) -> dict[Exchange, Opened]:
    """Return the queue pairs of each exchange of a job. Raise ValueError as `connections_of`."""
    opened: dict[Exchange, Opened] = {}

    def open_one(exchange: Exchange, number: int) -> Transfer:
        queue_pairs = connections_of(exchange, seats, fabric, seed=connection_seed(seed, number))
        opened[exchange] = Opened(axis=exchange.axis, number=number, queue_pairs=queue_pairs)
        return Transfer(movers=())

    steps_of(traffic, open_one)
    return opened


class JobConnections:
    """A job's connections, `paths`, `now` and `axes` of each: queue pairs with a choice first, described in
    `queue_pairs`, then those that are joined, as transfers ask for them."""

    def __init__(
        self, fabric: Fabric, opened: Mapping[Exchange, Opened], most_paths: int, most_connections: int
    ) -> None:
        self._fabric, self._opened = fabric, opened
        self.paths: list[tuple[Path, ...]] = []
        self.now: list[Choice] = []
        self.axes: list[str] = []
        self.queue_pairs: list[QueuePair] = []
        self._joined: dict[tuple[str, Path], int] = {}
        self._sets = {each.key: each for each in opened.values() if len(each.queue_pairs)}
        self._numbers = {key: np.full(len(each.queue_pairs), -1) for key, each in self._sets.items()}
        offers = list(self._offers(most_paths))
        self.fixed = sum(map(len, self._numbers.values())) - len(offers)
        self.left = max(len(offers) - most_connections, 0)
        self._add(self._of_most_bytes(offers, most_connections) if self.left else offers)

    def _offers(self, most_paths: int) -> Iterator[_Offer]:
        for key, each in self._sets.items():
            for place, (ways, now) in enumerate(ways_by_port(self._fabric, each.queue_pairs.flows, most_paths)):
                if len(ways) > 1:
                    yield _Offer(key=key, place=place, ways=ways, now=now)

    def _of_most_bytes(self, offers: Sequence[_Offer], most: int) -> list[_Offer]:
        totals = {key: np.zeros(len(each.queue_pairs)) for key, each in self._sets.items()}
        for exchange, each in self._opened.items():
            if len(each.queue_pairs):
                totals[each.key] += exchange.times * each.queue_pairs.sizes
        heavy = sorted(range(len(offers)), key=lambda one: (-totals[offers[one].key][offers[one].place], one))
        return [offers[one] for one in sorted(heavy[:most])]

    def _add(self, offers: Sequence[_Offer]) -> None:
        """Make connections of queue pairs. Those between the same NICs have the very same paths."""
        lanes = {key: _lanes(self._fabric, each.queue_pairs) for key, each in self._sets.items()}
        turns: defaultdict[tuple[str, int, int], int] = defaultdict(int)
        made: dict[tuple[object, ...], tuple[Path, ...]] = {}
        for offer in offers:
            opened = self._sets[offer.key]
            flows, inside = opened.queue_pairs.flows, lanes[offer.key][offer.place] if lanes[offer.key] else ()
            pair = int(flows.sources[offer.place]), int(flows.destinations[offer.place])
            ways = tuple(each.way for each in offer.ways)
            if (ways, inside) not in made:
                made[ways, inside] = tuple(tuple((link, 1.0) for link in sorted((*way, *inside))) for way in ways)
            self._numbers[offer.key][offer.place] = len(self.paths)
            self.paths.append(made[ways, inside])
            self.now.append(offer.now)
            self.axes.append(opened.axis)
            self.queue_pairs.append(
                QueuePair(
                    axis=opened.axis,
                    source=self._end(pair[0]),
                    destination=self._end(pair[1]),
                    number=turns[opened.axis, *pair],
                    port=int(flows.ports[offer.place]),
                    ways=offer.ways,
                )
            )
            turns[opened.axis, *pair] += 1

    def _end(self, nic: int) -> End:
        node = int(self._fabric.links.node_of_nic[nic])
        return End(node=node, nic=nic - int(self._fabric.links.nic_begins[node]))

    def transfer(self, exchange: Exchange, model: Model) -> Transfer:
        """Return as `estimator.network.connections.transfer_of`, with connections in the place of links."""
        seconds = max(exchange.alone_s - exchange.latency_s, 0.0)
        latency_s, times = exchange.alone_s - seconds, exchange.times
        opened = self._opened[exchange]
        queue_pairs = opened.queue_pairs
        if not len(queue_pairs) or seconds == 0:
            return Transfer(movers=(Mover(way=(), seconds=seconds),), latency_s=latency_s, times=times)
        owners = mover_numbers(queue_pairs, self._fabric, model)
        rates = queue_pairs.sizes / seconds
        loads = loads_of(queue_pairs, self._fabric, amounts=rates, owners=owners)
        parts = np.ones(int(owners.max()) + 1)
        parts[loads.owners] = eased(loads, self._fabric)
        rates = rates * parts[owners]
        numbers = self._numbers[opened.key]
        ways: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        chosen = np.flatnonzero(numbers >= 0)
        for owner, number, rate in zip(
            owners[chosen].tolist(), numbers[chosen].tolist(), rates[chosen].tolist(), strict=True
        ):
            ways[owner].append((number, rate))
        for owner, path, rate in self._joined_paths(queue_pairs, np.flatnonzero(numbers < 0), owners, rates):
            ways[owner].append((self._join(path, opened.axis), rate))
        movers = tuple(Mover(way=tuple(sorted(ways[owner])), seconds=seconds) for owner in sorted(ways))
        idle = len(set(queue_pairs.groups.tolist())) < len(exchange.groups)
        movers += (Mover(way=(), seconds=seconds),) if idle else ()
        return Transfer(movers=movers, latency_s=latency_s, times=times)

    def _joined_paths(
        self, queue_pairs: Connections, fixed: Integers, owners: Integers, rates: Floats
    ) -> Iterator[tuple[int, Path, float]]:
        """Of each owner with queue pairs that have no choice: its number, the shares that they put on links together,
        and what they send."""
        if not len(fixed):
            return
        loads = loads_of(_some(queue_pairs, fixed), self._fabric, amounts=rates[fixed], owners=owners[fixed])
        totals = np.bincount(owners[fixed], rates[fixed])
        present = np.unique(owners[fixed])
        begins = np.searchsorted(loads.owners, np.append(present, present[-1] + 1)).tolist()
        shares = np.round(loads.amounts / totals[loads.owners], SHARE_DIGITS).tolist()
        numbers = loads.links.tolist()
        for owner, (start, end) in zip(present.tolist(), pairwise(begins), strict=True):
            yield owner, tuple(zip(numbers[start:end], shares[start:end], strict=True)), float(totals[owner])

    def _join(self, path: Path, axis: str) -> int:
        if (axis, path) not in self._joined:
            self._joined[axis, path] = len(self.paths)
            self.paths.append((path,))
            self.now.append(0)
            self.axes.append(axis)
        return self._joined[axis, path]


SHARE_DIGITS = 12
"""Shares that differ by less are the same: they were made of other sums of the same parts."""


def _lanes(fabric: Fabric, queue_pairs: Connections) -> list[tuple[int, ...]]:
    """The PCIe links of each queue pair, at both ends; nothing where nobody said how nodes are made."""
    if fabric.pcie is None:
        return []
    lanes: list[list[int]] = [[] for _ in range(len(queue_pairs))]
    flows = queue_pairs.flows
    for devices, nics, receiving in (
        (queue_pairs.senders, flows.sources, False),
        (queue_pairs.receivers, flows.destinations, True),
    ):
        for pair, link in zip(*fabric.pcie.between(devices, nics, receiving=receiving), strict=True):
            lanes[int(pair)].append(int(link))
    return [tuple(sorted(its)) for its in lanes]


def _some(queue_pairs: Connections, places: Integers) -> Connections:
    return Connections(
        flows=Flows(
            sources=queue_pairs.flows.sources[places],
            destinations=queue_pairs.flows.destinations[places],
            ports=queue_pairs.flows.ports[places],
        ),
        senders=queue_pairs.senders[places],
        receivers=queue_pairs.receivers[places],
        sizes=queue_pairs.sizes[places],
        groups=queue_pairs.groups[places],
        connections=queue_pairs.connections[places],
    )
