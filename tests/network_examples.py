"""Networks for tests: clusters by their topology, and fabrics that are wired anyhow."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from estimator.network.links import Links, links_of
from estimator.network.wires import ALL_NICS, BETWEEN_SWITCHES, Tier, Wires
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster


def cluster_of(
    topology: dict[str, Any] | None = None, count: int = 16, *, nodes: dict[str, Any] | None = None, **fabric: Any
) -> Cluster:
    """One site of H100 nodes under a fabric of 400 Gb/s."""
    written = {"link": "ib-ndr400", **({"topology": topology} if topology else {}), **fabric}
    group = {"count": count, "device": "h100", **(nodes or {})}
    return load_cluster(name_cluster({"sites": [{"name": "north", "nodes": [group], "fabric": written}]}))


def random_links(seed: int, *, down: float = 0.0) -> Links:
    """Some nodes with a NIC or two, each on a leaf or on two, and switches of two tiers joined anyhow; each cable is
    down with a probability."""
    rng = random.Random(seed)
    nodes, leaves, tops = rng.randint(2, 5), rng.randint(1, 4), rng.randint(1, 3)
    nics = [rng.randint(1, 2) for _ in range(nodes)]
    rows: list[tuple[int, int, int, int]] = []
    for node in range(nodes):
        if rng.random() < 0.5:
            rows += [(node, nodes + rng.randrange(leaves), 1, nic) for nic in range(nics[node])]
        else:
            under = rng.sample(range(leaves), min(leaves, rng.randint(1, 2)))
            rows += [(node, nodes + leaf, rng.randint(1, 2), ALL_NICS) for leaf in under]
    for leaf in range(leaves):
        for top in range(tops):
            if rng.random() < 0.8:
                rows.append((nodes + leaf, nodes + leaves + top, rng.randint(1, 3), BETWEEN_SWITCHES))
    if leaves > 1 and rng.random() < 0.3:
        rows.append((nodes, nodes + 1, 1, BETWEEN_SWITCHES))
    wires = Wires(
        nodes=nodes,
        tiers=(Tier(name="leaf", switches=leaves), Tier(name="top", switches=tops)),
        names=tuple(
            [f"node{n}" for n in range(nodes)] + [f"leaf{n}" for n in range(leaves)] + [f"top{n}" for n in range(tops)]
        ),
        ends=np.array([row[:2] for row in rows]),
        counts=np.array([row[2] for row in rows]),
        bytes_per_s=np.ones(len(rows)),
        nics=np.array([row[3] for row in rows]),
        node_nics=np.array(nics),
    )
    links = links_of(wires)
    return links.without([link for link in range(0, links.count, 2) if rng.random() < down])
