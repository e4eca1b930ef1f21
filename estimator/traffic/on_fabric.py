"""A job's traffic on the links of a fabric with nobody beside it: what its own flows do to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.network.connections import Model, playing_of
from estimator.network.fabric import Fabric, Seat
from estimator.network.rates import fair_paces, make_ways
from estimator.network.steps import Transfer
from estimator.network.traffic import Exchange, Traffic
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class OnFabric:
    """Seconds of an iteration, and of each of its exchanges once: (exchange, how often an iteration has it, seconds),
    those beside others with these."""

    iteration_time_s: float
    exchanges: tuple[tuple[Exchange, int, float], ...]


def alone_on_fabric(
    traffic: Traffic, seats: Sequence[Seat], fabric: Fabric, *, model: Model = "collective"
) -> OnFabric:
    """Return what an iteration takes on a fabric, alone, where rank r sits on `seats[r]`: each exchange as long as its
    slowest flows, which share links max-min fairly, in lockstep (`collective`) or each for itself (`flow`).

    Exchanges take by themselves what the traffic says; give it as on a network that holds nothing back
    (`nothing_held_back`). Raise NoWayError for nodes that no way joins.
    """
    playing = playing_of(traffic, seats, fabric, model=model)
    known: dict[Transfer, float] = {}
    whole_s: list[float] = []
    found: dict[Exchange, tuple[int, float]] = {}
    for span, step in zip(traffic.spans, playing.steps, strict=True):
        sending_s = 0.0
        for exchange, transfer in zip(span.exchanges, step.transfers, strict=True):
            if transfer not in known:
                known[transfer] = _transfer_s(transfer, fabric)
            sending_s += transfer.times * known[transfer]
            times = found.get(exchange, (0, 0.0))[0] + span.times * exchange.times
            found[exchange] = times, known[transfer]
        whole_s.append(step.times * max(step.compute_s, step.begins_s + sending_s if step.transfers else 0.0))
    return OnFabric(
        iteration_time_s=float(np.sum(whole_s)),
        exchanges=tuple((exchange, times, seconds) for exchange, (times, seconds) in found.items()),
    )


def _transfer_s(transfer: Transfer, fabric: Fabric) -> float:
    """Seconds of one turn of a transfer: when one of its movers has arrived, the others share what it leaves."""
    left = np.array([mover.seconds for mover in transfer.movers])
    most = np.array([mover.most for mover in transfer.movers])
    clock_s = transfer.latency_s
    moving = np.flatnonzero(left > 0)
    while len(moving):
        ways = make_ways([transfer.movers[mover].way for mover in moving], fabric.links.count)
        paces = fair_paces(ways, fabric.links.bytes_per_s, most=most[moving])
        took_s = left[moving] / paces
        step_s = float(took_s.min())
        left[moving] -= paces * step_s
        clock_s += step_s
        moving = moving[took_s > step_s * (1 + 1e-12)]
    return clock_s


def nothing_held_back(cluster: Cluster) -> Cluster:
    """Return `cluster` with uplinks above its nodes that carry all that NICs send; hops take what they take."""
    sites = []
    for site in cluster.sites:
        network = site.network
        levels = tuple(
            replace(level, parts=tuple(replace(part, oversubscription=1.0) for part in level.parts))
            for level in network.levels
        )
        sites.append(replace(site, network=replace(network, levels=levels, wiring=None)))
    return replace(cluster, sites=tuple(sites))


def seats_on(cluster: Cluster, slots: Sequence[DeviceSlot]) -> tuple[Seat, ...]:
    """Return the seats of devices, their nodes numbered through all sites."""
    first: dict[str, int] = {}
    nodes = 0
    for site in cluster.sites:
        first[site.name] = nodes
        nodes += sum(group.count for group in site.nodes)
    return tuple(Seat(node=first[slot.site] + slot.node, device=slot.index) for slot in slots)
