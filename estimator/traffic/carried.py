"""What a job's traffic puts on every link of a fabric in an iteration, and on what joins devices inside their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from estimator.network.connections import loads_of
from estimator.network.fabric import Fabric, Seat
from estimator.network.queue_pairs import box_edges, connections_of
from estimator.network.traffic import Exchange, Traffic
from estimator.network.wires import Floats
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Carried:
    """Bytes of an iteration: on each link by its number, (links,), and what each device, numbered through the network,
    sends to others in its box, (devices,)."""

    links: Floats
    inside: Floats


def carried_by(traffic: Traffic, seats: Sequence[Seat], fabric: Fabric) -> Carried:
    """Return what an iteration's exchanges put on links where rank r sits on `seats[r]`, whatever hides them.

    Between boxes as `estimator.network.queue_pairs` opens connections, inside as rings over all ranks of a group, or
    from rank to rank. Raise NoWayError for nodes that no way joins, ValueError as `connections_of`.
    """
    on_links = np.zeros(fabric.links.count)
    inside = np.zeros(int(fabric.device_begins[-1]))
    boxes = fabric.box_of_node[[seat.node for seat in seats]]
    devices = np.array([fabric.device(seat) for seat in seats])
    for number, (exchange, times) in enumerate(_counted(traffic).items()):
        queue_pairs = connections_of(exchange, seats, fabric, seed=number)
        if len(queue_pairs):
            owners = np.zeros(len(queue_pairs), dtype=np.int64)
            loads = loads_of(queue_pairs, fabric, amounts=queue_pairs.sizes, owners=owners)
            on_links += times * np.bincount(loads.links, loads.amounts, minlength=len(on_links))
        for group in exchange.groups:
            ranks = np.array(group)
            for sends, receives, size in _steps(exchange, len(group)):
                near = boxes[ranks[sends]] == boxes[ranks[receives]]
                np.add.at(inside, devices[ranks[sends[near]]], times * size)
    return Carried(links=on_links, inside=inside)


def _counted(traffic: Traffic) -> dict[Exchange, float]:
    """Every exchange with how often an iteration has it, those that are sent beside others by themselves."""
    counted: dict[Exchange, float] = {}

    def count(exchange: Exchange, times: float) -> None:
        counted[exchange] = counted.get(exchange, 0.0) + times * exchange.times
        for other in exchange.beside:
            count(other, times * exchange.times)

    for span in traffic.spans:
        for exchange in span.exchanges:
            count(exchange, span.times)
    return counted


def _steps(exchange: Exchange, ranks: int) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """Who of a group sends to whom, by place, and how many bytes each."""
    turn = np.arange(ranks)
    if exchange.op == "send_recv":
        yield turn[:1], turn[1:2], exchange.size_bytes
    elif exchange.op == "all_to_all":
        for step in range(1, ranks):
            yield turn, (turn + step) % ranks, exchange.size_bytes / ranks
    else:
        _, shares = box_edges("ring", exchange.op, ranks, ranks)
        yield turn, (turn + 1) % ranks, float(shares[0]) * exchange.size_bytes
