"""The ways that ports lead to between two NICs, by asking for each port by itself."""

from __future__ import annotations

from estimator.network.fabric import Fabric
from estimator.network.port_paths import Way, in_order
from estimator.network.routes import Flow, route
from planner.contention.job_connections import QueuePair
from planner.contention.port_ways import FIRST_PORT, KEPT, TRIED


def offered_ways(fabric: Fabric, pair: QueuePair, most: int) -> dict[Way, tuple[int, ...]]:
    """Return the first `most` ways that the ports which are tried find between the ends of a queue pair, with some of
    the ports of each."""
    ports: dict[Way, tuple[int, ...]] = {}
    for port in range(FIRST_PORT, FIRST_PORT + TRIED):
        flow = Flow(
            source=pair.source.node,
            destination=pair.destination.node,
            source_nic=pair.source.nic,
            destination_nic=pair.destination.nic,
            port=port,
        )
        way = in_order(fabric.links, [link for link, _ in route(fabric.links, fabric.routing, flow)])
        if way in ports or len(ports) < most:
            ports[way] = (*ports.get(way, ()), port)[:KEPT]
    return ports
