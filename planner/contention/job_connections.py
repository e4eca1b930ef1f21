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
from estimator.network.turns import turns_at
from estimator.network.wires import Floats, Integers
from planner.contention.led_ways import Led
from planner.contention.policies.records import Choice, Path
from planner.contention.port_ways import Offer, PortWay
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
    between these ends it is (from 0), the UDP source port that it has now, and the `offer` of ways that it may take,
    path by path."""

    axis: str
    source: End
    destination: End
    number: int
    port: int
    offer: Offer

    @property
    def ways(self) -> tuple[PortWay, ...]:
        """Of each of its paths the links in order, ports that lead there, and whether somebody told (or probed) that
        they do; else the model's hash says so. Of one of them ask `offer`: it makes no others."""
        return tuple(self.offer)


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


def opened_by(traffic: Traffic, seats: Sequence[Seat], fabric: Fabric, seed: int) -> dict[Exchange, Opened]:
    """Return the queue pairs of each exchange of a job. Raise ValueError as `connections_of`."""
    opened: dict[Exchange, Opened] = {}

    def open_one(exchange: Exchange, number: int) -> Transfer:
        queue_pairs = connections_of(exchange, seats, fabric, seed=connection_seed(seed, number))
        opened[exchange] = Opened(axis=exchange.axis, number=number, queue_pairs=queue_pairs)
        return Transfer(movers=())

    steps_of(traffic, open_one)
    return opened


def sets_of(opened: Mapping[Exchange, Opened]) -> dict[Key, Opened]:
    """Return the sets of queue pairs of a job, each once."""
    return {each.key: each for each in opened.values() if len(each.queue_pairs)}


class JobConnections:
    """A job's connections, `paths`, `now` and `axes` of each: queue pairs with a choice first, described in
    `queue_pairs`, then those that are joined, as transfers ask for them. `led` says of each set of queue pairs which
    ways they take and may take."""

    def __init__(
        self, fabric: Fabric, opened: Mapping[Exchange, Opened], led: Mapping[Key, Led], most_connections: int
    ) -> None:
        self._fabric, self._opened, self._led = fabric, opened, led
        self.paths: list[tuple[Path, ...]] = []
        self.now: list[Choice] = []
        self.axes: list[str] = []
        self.queue_pairs: list[QueuePair] = []
        self._joined: dict[tuple[str, Path], int] = {}
        self._sets = sets_of(opened)
        self._numbers = {key: np.full(len(each.queue_pairs), -1) for key, each in self._sets.items()}
        offers = [(key, place) for key in self._sets for place, offer in enumerate(led[key].offers) if len(offer) > 1]
        self.fixed = sum(map(len, self._numbers.values())) - len(offers)
        self.left = max(len(offers) - most_connections, 0)
        self._add(self._of_most_bytes(offers, most_connections) if self.left else offers)

    def _of_most_bytes(self, offers: Sequence[tuple[Key, int]], most: int) -> list[tuple[Key, int]]:
        totals = {key: np.zeros(len(each.queue_pairs)) for key, each in self._sets.items()}
        for exchange, each in self._opened.items():
            if len(each.queue_pairs):
                totals[each.key] += exchange.times * each.queue_pairs.sizes
        heavy = sorted(range(len(offers)), key=lambda one: (-totals[offers[one][0]][offers[one][1]], one))
        return [offers[one] for one in sorted(heavy[:most])]

    def _add(self, offers: Sequence[tuple[Key, int]]) -> None:
        """Make connections of queue pairs, by set and place in it. Those between the same NICs have the very same
        paths."""
        lanes = {key: _lanes(self._fabric, each.queue_pairs) for key, each in self._sets.items()}
        ends = {key: _ends(each.queue_pairs.flows) for key, each in self._sets.items()}
        turns: defaultdict[tuple[str, int, int], int] = defaultdict(int)
        for key, place in offers:
            axis, led = self._sets[key].axis, self._led[key]
            source, destination, port = ends[key][place]
            self._numbers[key][place] = len(self.paths)
            self.paths.append(led.paths(place, lanes[key][place] if lanes[key] else ()))
            self.now.append(led.offers[place].place)
            self.axes.append(axis)
            self.queue_pairs.append(
                QueuePair(
                    axis=axis,
                    source=self._end(source),
                    destination=self._end(destination),
                    number=turns[axis, source, destination],
                    port=port,
                    offer=led.offers[place],
                )
            )
            turns[axis, source, destination] += 1

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
        turns = self._led[opened.key].turns
        loads = loads_of(queue_pairs, self._fabric, amounts=rates, owners=owners, turns=turns)
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
        for owner, path, rate in self._joined_paths(opened, np.flatnonzero(numbers < 0), owners, rates):
            ways[owner].append((self._join(path, opened.axis), rate))
        movers = tuple(Mover(way=tuple(sorted(ways[owner])), seconds=seconds) for owner in sorted(ways))
        idle = len(set(queue_pairs.groups.tolist())) < len(exchange.groups)
        movers += (Mover(way=(), seconds=seconds),) if idle else ()
        return Transfer(movers=movers, latency_s=latency_s, times=times)

    def _joined_paths(
        self, opened: Opened, fixed: Integers, owners: Integers, rates: Floats
    ) -> Iterator[tuple[int, Path, float]]:
        """Of each owner with queue pairs that have no choice: its number, the shares that they put on links together,
        and what they send."""
        if not len(fixed):
            return
        queue_pairs, turns = opened.queue_pairs, self._led[opened.key].turns
        loads = loads_of(
            _some(queue_pairs, fixed),
            self._fabric,
            amounts=rates[fixed],
            owners=owners[fixed],
            turns=None if turns is None else turns_at(turns, fixed, len(queue_pairs)),
        )
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


def _ends(flows: Flows) -> list[tuple[int, int, int]]:
    """Of each connection both NICs and the port."""
    return list(zip(flows.sources.tolist(), flows.destinations.tolist(), flows.ports.tolist(), strict=True))


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
