"""What a plan puts on each link of its cluster in an iteration: bytes, and the share of the time that these take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from estimator.network.fabric import Fabric, fabric_of
from estimator.network.missing_ways import NoWayError
from estimator.pricing.parts import PricedSetup, price_setup
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from estimator.traffic.carried import Carried, carried_by
from estimator.traffic.of_plan import traffic_of
from planner.one_job.explicit.figures import count_setup_flops
from planner.one_job.explicit.on_fabric import seats_of
from profiles.cluster import Cluster, NodeGroup

MOST_DEVICES = 1024
"""Of a setup: of more, connections take longer to follow than a plan to find."""
MOST_LINKS = 2000
"""That are told of, the fullest."""

Document = dict[str, Any]


def describe_link_loads(setup: Setup, pricing: Pricing | None, *, iteration_time_s: float) -> Document | None:
    """Return what links carry in an iteration of so long, as a value that `json.dumps` takes; None where no way joins
    two of the nodes, or it has more than `MOST_DEVICES`.

    `links`: of each two vertices of the network that exchange anything, in this direction, the `bytes` of all cables
    between them, their rate `bytes_per_s` as training reaches it (None where nothing bounds it), and how `busy` the
    fullest of them is: the time that its bytes take over the iteration's. `nodes`: what the busiest device of each
    sends to others in its node (or island of nodes).
    """
    if setup.devices > MOST_DEVICES:
        return None
    priced = price_setup(setup, pricing)
    if not isinstance(priced, PricedSetup):
        return None
    traffic = traffic_of(priced, float(count_setup_flops(setup).model))
    fabric, seats = fabric_of(setup.cluster), seats_of(setup)
    try:
        carried = carried_by(traffic, seats, fabric)
    except (NoWayError, ValueError):
        return None
    links = sorted(_links(fabric, carried, iteration_time_s), key=lambda link: (-link["busy"], link["from"]))
    return {
        "iteration_time_s": iteration_time_s,
        "links": links[:MOST_LINKS],
        "left_out": len(links[MOST_LINKS:]),
        "nodes": list(_nodes(setup.cluster, fabric, carried, iteration_time_s)),
        "provenance": "modelled",
    }


def _links(fabric: Fabric, carried: Carried, iteration_time_s: float) -> Iterator[Document]:
    """Of each pair of vertices that any cable joins and anything passes, in that direction."""
    links = fabric.links
    pairs, of_pair = np.unique(links.ends, axis=0, return_inverse=True)
    of_pair = of_pair.reshape(-1)
    cables = np.bincount(of_pair)
    sums = np.bincount(of_pair, carried.links)
    rates = np.bincount(of_pair, links.bytes_per_s)
    busy = np.zeros(len(pairs))
    shares = np.divide(carried.links, links.bytes_per_s, out=np.zeros(links.count), where=links.bytes_per_s > 0)
    np.maximum.at(busy, of_pair, shares / iteration_time_s)
    for pair in np.flatnonzero(sums > 0).tolist():
        start, end = pairs[pair].tolist()
        yield {
            "from": links.names[start],
            "to": links.names[end],
            "cables": int(cables[pair]),
            "bytes": float(sums[pair]),
            "bytes_per_s": float(rates[pair]) if np.isfinite(rates[pair]) else None,
            "busy": float(busy[pair]),
        }


def _nodes(cluster: Cluster, fabric: Fabric, carried: Carried, iteration_time_s: float) -> Iterator[Document]:
    """Of each node, in the order of the network's, what its busiest device sends inside."""
    number = 0
    for site in cluster.sites:
        for node, group in enumerate(each for each in site.nodes for _ in range(each.count)):
            first, end = fabric.device_begins[number : number + 2].tolist()
            sent = float(carried.inside[first:end].max(initial=0.0))
            link = inside_link(group)
            rate = link.bandwidth_bytes_per_s * link.efficiency
            yield {
                "site": site.name,
                "node": node,
                "name": fabric.links.names[number],
                "inside_link": link.name,
                "inside_bytes": sent,
                "inside_busy": sent / rate / iteration_time_s,
            }
            number += 1


def inside_link(group: NodeGroup) -> Any:
    """Return the link that joins devices of a node: the island's, or the host's where an island is one device."""
    return group.host_link if group.island_size == 1 else group.island_link
