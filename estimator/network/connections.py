"""A job's exchanges as what moves over links: steps for a player."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from estimator.network.fabric import Fabric, Seat
from estimator.network.queue_pairs import Connections, connections_of
from estimator.network.routes import load_links
from estimator.network.steps import Mover, Playing, Step, Transfer
from estimator.network.together import begin_together
from estimator.network.traffic import Exchange, Traffic
from estimator.network.turns import Loads, Turn, loads_on
from estimator.network.wires import Floats, Integers

__all__ = [
    "Fabric",
    "Model",
    "Seat",
    "connection_seed",
    "eased",
    "loads_of",
    "mover_numbers",
    "playing_of",
    "steps_of",
    "transfer_of",
]

Model = Literal["collective", "flow"]
"""All flows of a group's collective in lockstep, the slowest of which sets the pace; or every connection by itself."""


def transfer_of(
    exchange: Exchange, seats: Sequence[Seat], fabric: Fabric, *, model: Model = "collective", seed: int = 0
) -> Transfer:
    """Return what an exchange of a job puts on the links of a fabric, where rank r of the job sits on `seats[r]`.

    At pace 1 every mover is done after what the exchange takes alone, by the estimate, less its latency. Where that was
    measured faster than a node's own NICs are said to be, they carry what the measurement lets through. What is sent
    beside it is not part of it (`playing_of`).

    Raises:
        NoWayError: nodes that no way joins. ValueError: as `connections_of`.
    """
    seconds = max(exchange.alone_s - exchange.latency_s, 0.0)
    latency_s = exchange.alone_s - seconds
    queue_pairs = connections_of(exchange, seats, fabric, seed=seed)
    if not len(queue_pairs) or seconds == 0:
        mover = Mover(way=(), seconds=seconds)
        return Transfer(movers=(mover,), latency_s=latency_s, times=exchange.times)
    owners = mover_numbers(queue_pairs, fabric, model)
    rates = queue_pairs.sizes / seconds
    loads = loads_of(queue_pairs, fabric, amounts=rates, owners=owners)
    amounts = loads.amounts * eased(loads, fabric)
    begins = np.searchsorted(loads.owners, np.arange(int(owners.max()) + 2))
    links, put = loads.links.tolist(), amounts.tolist()
    movers = tuple(
        Mover(way=tuple(zip(links[start:end], put[start:end], strict=True)), seconds=seconds)
        for start, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)
        if end > start
    )
    inside = len(set(queue_pairs.groups.tolist())) < len(exchange.groups)
    idle = (Mover(way=(), seconds=seconds),) if inside else ()
    return Transfer(movers=(*movers, *idle), latency_s=latency_s, times=exchange.times)


def loads_of(
    queue_pairs: Connections,
    fabric: Fabric,
    *,
    amounts: Floats,
    owners: Integers,
    turns: Sequence[Turn] | None = None,
) -> Loads:
    """Return what owners of queue pairs, which send so much each, put on the network and on PCIe. `turns` are those
    that they take (`turns_taken`), where they are known already. Raise as `load_links`."""
    flows, inside = queue_pairs.flows, []
    if fabric.pcie is not None:
        inside = [
            fabric.pcie.between(queue_pairs.senders, flows.sources, receiving=False),
            fabric.pcie.between(queue_pairs.receivers, flows.destinations, receiving=True),
        ]
    if turns is not None:
        return loads_on(turns, fabric.links.count, amounts=amounts, owners=owners, inside=inside)
    return load_links(fabric.links, fabric.routing, flows, amounts=amounts, owners=owners, inside=inside)


def mover_numbers(queue_pairs: Connections, fabric: Fabric, model: Model) -> Integers:
    """Return which mover each queue pair is part of: its group's, or its own; those that every message is cut up among
    wait for each other."""
    if model == "collective":
        return queue_pairs.groups
    return queue_pairs.connections if fabric.nccl.split_data else np.arange(len(queue_pairs))


def eased(loads: Loads, fabric: Fabric) -> Floats:
    """Return, for each entry, by how much less than its bytes its owner puts on links, so that nobody's own NICs hold
    back what was measured faster than they are."""
    links = fabric.links
    # Of the links that are used alone: there may be very many others.
    used, place = np.unique(loads.links, return_inverse=True)
    rates = links.bytes_per_s[used]
    over = np.zeros(len(used))
    np.divide(np.bincount(place, loads.amounts), rates, out=over, where=links.at_node[used] & (rates > 0))
    fullest = np.ones(int(loads.owners.max()) + 1)
    np.maximum.at(fullest, loads.owners, over[place])
    parts: Floats = (1 / fullest)[loads.owners]
    return parts


def playing_of(
    traffic: Traffic,
    seats: Sequence[Seat],
    fabric: Fabric,
    *,
    model: Model = "collective",
    seed: int = 0,
    starts_s: float = 0.0,
    iterations: int | None = None,
    level: int = 0,
) -> Playing:
    """Return a job's traffic as a player takes it. Exchanges of one axis between the same ranks go over the same
    connections. Raise as `transfer_of`, and ValueError unless there is a seat for each rank."""
    if len(seats) != traffic.devices:
        raise ValueError(f"{len(seats)} seats; expected one for each of {traffic.devices} ranks")
    steps = steps_of(
        traffic,
        lambda exchange, number: transfer_of(exchange, seats, fabric, model=model, seed=connection_seed(seed, number)),
    )
    return Playing(steps=steps, starts_s=starts_s, iterations=iterations, level=level)


def connection_seed(seed: int, number: int) -> int:
    """Return what draws the queue pairs of the connections with that number of a job (`steps_of`) with that seed."""
    return seed * 4096 + number


def steps_of(traffic: Traffic, make: Callable[[Exchange, int], Transfer]) -> tuple[Step, ...]:
    """Return a job's spans as steps, whose transfers `make` makes of an exchange and the number of the connections that
    it goes over: those of one axis between the same ranks have the same number. It is asked once for each exchange."""
    made: dict[Exchange, Transfer] = {}
    numbers: dict[object, int] = {}

    def transfer(exchange: Exchange) -> Transfer:
        if exchange not in made:
            number = numbers.setdefault((exchange.axis, exchange.groups), len(numbers))
            own = make(exchange, number)
            made[exchange] = begin_together(own, [transfer(other) for other in exchange.beside])
        return made[exchange]

    return tuple(
        Step(
            compute_s=span.compute_s,
            transfers=tuple(transfer(exchange) for exchange in span.exchanges),
            begins_s=span.begins_s,
            times=span.times,
        )
        for span in traffic.spans
    )
