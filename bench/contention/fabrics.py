"""The fabrics of figure 23. Of the first two Crux gives the number of switches (section 6.1), of lingjun its hosts give
where each hangs; the number of hosts, cables and their speeds are ours. A host has 8 GPUs and hangs on "eight links",
here of 100 Gbit/s, which is what the 4 x 200 Gbit/s of Crux's testbed are.

- clos: 173 leaves of 2 hosts, 16 spines, a cable of a NIC's speed between each two: as much up as down.
- thin-clos: 44 leaves of 8 hosts below the same spines: 4 times as much down as up.
- double-sided: 6 leaves in 3 pairs of 86 hosts, 4 aggregation switches a pair (12), 32 cores; 22 cables of four times a
  NIC's speed from a leaf to each aggregation switch of its pair, one from there to each core (1.3 : 1).
- lingjun: 119 leaves in 3 pods with the hosts of `lingjun_topo.csv` below them; in a pod 8 aggregation switches with 4
  cables of a NIC's speed from each leaf (a full leaf: 2 : 1); 32 cores, 8 such cables from each aggregation switch.
- rail: 4 pods of 64 hosts, NIC i of each on leaf i, under 16 spines with 4 cables each.
- spray: the same as thin-clos, with packets spread evenly over all spines.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from estimator.network.fabric import Fabric, fabric_of, routing_of
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.records import replace

GPUS = 8
NICS, NIC, FOUR_TIMES = 8, "roce100", "roce400"
PAIRS, AGGREGATIONS, CORES = 3, 12, 32


def clos(_: Path) -> Cluster:
    """Return the two-layer Clos."""
    return _cluster(346, {"kind": "clos2", "leaves": 173, "spines": 16, "nodes_per_leaf": 2})


def thin_clos(_: Path) -> Cluster:
    """Return a two-layer Clos whose leaves send up a quarter of what their hosts send."""
    return _cluster(352, {"kind": "clos2", "leaves": 44, "spines": 16, "nodes_per_leaf": 8})


def double_sided(_: Path) -> Cluster:
    """Return the three-layer fabric whose hosts hang on two leaves each."""
    hosts, per_pair = 86, AGGREGATIONS // PAIRS
    cables: list[dict[str, Any]] = []
    for pair in range(PAIRS):
        below = f"node[{pair * hosts}-{(pair + 1) * hosts - 1}]"
        leaves = f"leaf[{2 * pair}-{2 * pair + 1}]"
        above = f"aggregation[{pair * per_pair}-{(pair + 1) * per_pair - 1}]"
        cables.append({"between": [below, leaves], "count": 4, "link": NIC})
        cables.append({"between": [leaves, above], "count": 22, "link": FOUR_TIMES})
    cables.append({"between": [f"aggregation[0-{AGGREGATIONS - 1}]", f"core[0-{CORES - 1}]"], "link": FOUR_TIMES})
    names = (f"leaf[0-{2 * PAIRS - 1}]", f"aggregation[0-{AGGREGATIONS - 1}]", f"core[0-{CORES - 1}]")
    topology = {"kind": "wired", "switches": [{"name": name} for name in names], "cables": cables}
    return _cluster(PAIRS * hosts, topology)


def lingjun(data: Path) -> Cluster:
    """Return the published tree of hosts, with cables of ours."""
    hosts: Counter[tuple[str, str]] = Counter()
    with (data / "traces/lingjun_topo.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            hosts[row["PSW"], row["ASW"]] += 1
    pods = sorted({pod for pod, _ in hosts})
    cables: list[dict[str, Any]] = []
    first, leaf = 0, 0
    for number, pod in enumerate(pods):
        below = [count for (its, _), count in sorted(hosts.items()) if its == pod]
        above = f"aggregation[{8 * number}-{8 * number + 7}]"
        cables.append({"between": [f"leaf[{leaf}-{leaf + len(below) - 1}]", above], "count": 4, "link": NIC})
        for count in below:
            nodes = f"node[{first}-{first + count - 1}]" if count > 1 else f"node{first}"
            cables.append({"between": [nodes, f"leaf{leaf}"], "count": NICS, "link": NIC})
            first, leaf = first + count, leaf + 1
    aggregations = f"aggregation[0-{8 * len(pods) - 1}]"
    cables.append({"between": [aggregations, f"core[0-{CORES - 1}]"], "count": 8, "link": NIC})
    switches = [{"name": name} for name in (f"leaf[0-{leaf - 1}]", aggregations, f"core[0-{CORES - 1}]")]
    return _cluster(first, {"kind": "wired", "switches": switches, "cables": cables})


def rail(_: Path) -> Cluster:
    """Return pods of rails under spines."""
    return _cluster(256, {"kind": "rail", "nodes_per_pod": 64, "spines": 16, "cables": 4})


FABRICS: Mapping[str, Callable[[Path], Cluster]] = {
    "clos": clos,
    "thin-clos": thin_clos,
    "double-sided": double_sided,
    "lingjun": lingjun,
    "rail": rail,
    "spray": thin_clos,
}
"""By name, from the folder of data."""


def fabric_with_seed(name: str, cluster: Cluster, seed: int) -> Fabric:
    """Return the network of a cluster of `FABRICS`, its hashes by the seed."""
    routing = routing_of(cluster)
    if name == "spray":
        return fabric_of(cluster, routing=replace(routing, kind="spray"))
    return fabric_of(cluster, routing=replace(routing, kind="ecmp", seed=routing.seed + seed))


def _cluster(hosts: int, topology: dict[str, Any]) -> Cluster:
    group = {"count": hosts, "device": "a100-80gb", "devices": GPUS, "nics": {"count": NICS, "link": NIC}}
    site = {"name": "site", "nodes": [group], "fabric": {"link": NIC, "topology": topology}}
    return load_cluster(name_cluster({"sites": [site]}))
