"""Switches and cables in the cluster file: the levels that follow from them, back again, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimator.communication.uplinks import shares_uplinks
from estimator.network.wires import ALL_NICS, wires_of
from profiles.cluster import Cluster
from profiles.cluster_description import describe_cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.errors import InputError
from profiles.network import PLAIN
from profiles.wiring import Clos, Torus, Wired
from profiles.yaml_files import yaml_text

FOUR_LEAVES = {
    "kind": "wired",
    "switches": [{"name": "leaf[0-3]", "ports": 48}, {"name": "spine[0-1]"}],
    "cables": [
        *({"between": [f"node[{4 * leaf}-{4 * leaf + 3}]", f"leaf{leaf}"], "count": 8} for leaf in range(4)),
        {"between": ["leaf[0-3]", "spine[0-1]"], "count": 8},
    ],
}


def wired(topology: dict[str, Any], count: int = 16, names: str | None = None, **fabric: Any) -> Cluster:
    nodes = {"count": count, "device": "h100"} | ({"names": names} if names else {})
    site = {"name": "north", "nodes": [nodes], "fabric": {"link": "ib-ndr400", "topology": topology, **fabric}}
    return load_cluster(name_cluster({"sites": [site]}))


def levels(cluster: Cluster) -> list[tuple[str, list[float]]]:
    network = cluster.sites[0].network
    return [(level.name, [part.oversubscription for part in level.parts]) for level in network.levels]


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        # Four nodes of 8 NICs under a leaf of as many cables up, of half as many.
        ({"kind": "clos2", "leaves": 4, "spines": 4, "cables": 8}, [("leaf", [1.0] * 4)]),
        ({"kind": "clos2", "leaves": 4, "spines": 16}, [("leaf", [2.0] * 4)]),
        ({"kind": "clos2", "leaves": 4, "spines": 8, "cables": 4, "link": "ib-hdr200"}, [("leaf", [2.0] * 4)]),
        ({"kind": "clos2", "leaves": 1, "spines": 4}, []),
        ({"kind": "clos2", "leaves": 2, "spines": 16, "nodes_per_leaf": 12}, [("leaf", [6.0, 2.0])]),
        # 32 cables up from a leaf, 64 from a pod of two, in which 128 NICs are.
        (
            {"kind": "clos3", "pods": 2, "leaves": 2, "aggregations": 4, "cores": 32, "cables": 4, "core_cables": 2},
            [("leaf", [2.0] * 4), ("pod", [1.0] * 2)],
        ),
        (
            {"kind": "clos3", "pods": 2, "leaves": 2, "aggregations": 4, "cores": 32, "cables": 8},
            [("leaf", [1.0] * 4), ("pod", [2.0] * 2)],
        ),
        ({"kind": "clos3", "pods": 1, "leaves": 4, "aggregations": 4, "cores": 8, "cables": 4}, [("leaf", [2.0] * 4)]),
        ({"kind": "fat-tree", "k": 32}, [("leaf", [1.0] * 8)]),
        ({"kind": "fat-tree", "k": 16}, [("leaf", [1.0] * 16), ("pod", [1.0] * 2)]),
        ({"kind": "rail", "nodes_per_pod": 16}, []),
        ({"kind": "rail", "nodes_per_pod": 4, "spines": 2}, [("pod", [2.0] * 4)]),
        ({"kind": "double-sided", "leaves": 4, "spines": 8}, [("leaf", [4.0] * 2)]),
        ({"kind": "torus", "dimensions": [4, 2, 2]}, []),
        (FOUR_LEAVES, [("leaf", [2.0] * 4)]),
    ],
)
def test_levels_follow_from_cables(topology: dict[str, Any], expected: list[tuple[str, list[float]]]) -> None:
    cluster = wired(topology)
    assert levels(cluster) == expected
    again = load_cluster(name_cluster(describe_cluster(cluster)))
    assert again.sites == cluster.sites, "described and read again it is the same"


def test_a_clos_costs_what_its_levels_cost() -> None:
    """The same tree by hand: estimates read nothing else."""
    site = {
        "name": "north",
        "nodes": [{"count": 16, "device": "h100"}],
        "fabric": {
            "link": "ib-ndr400",
            "levels": [{"name": "leaf", "oversubscription": 2, "parts": [{"count": 4, "nodes": 4}]}],
        },
    }
    by_hand = load_cluster(name_cluster({"sites": [site]}))
    by_cables = wired({"kind": "clos2", "leaves": 4, "spines": 16})
    assert by_cables.sites[0].network.levels == by_hand.sites[0].network.levels
    assert shares_uplinks(by_cables)


def test_records() -> None:
    assert isinstance(wired({"kind": "fat-tree", "k": 16}).sites[0].network.wiring, Clos)
    assert wired({"kind": "torus", "dimensions": [16]}).sites[0].network.wiring == Torus(
        dimensions=(16,), bytes_per_s=50e9
    )
    by_name = wired(
        {
            "kind": "wired",
            "switches": [{"name": "top"}],
            "cables": [{"between": ["gpu[01-15]", "top"], "count": 8}, {"between": ["top", "gpu16"], "count": 8}],
        },
        names="gpu[01-16]",
    ).sites[0]
    assert isinstance(by_name.network.wiring, Wired)
    assert by_name.network.levels == ()
    assert by_name.network != PLAIN, "one switch, and the nodes' names"


@pytest.mark.parametrize(
    "topology",
    [
        {"kind": "clos2", "leaves": 4, "spines": 3, "cables": 4},
        {"kind": "clos3", "pods": 2, "leaves": 2, "aggregations": 4, "cores": 8, "cables": 2, "core_cables": 3},
        {"kind": "clos3", "pods": 4, "leaves": 1, "aggregations": 2, "cores": 2, "cables": 8},
        {"kind": "fat-tree", "k": 16},
        {"kind": "rail", "nodes_per_pod": 4, "spines": 2},
        {"kind": "rail", "nodes_per_pod": 16},
        {"kind": "double-sided", "leaves": 4, "spines": 8},
    ],
)
def test_cable_by_cable_it_is_the_same_tree(topology: dict[str, Any]) -> None:
    site = wired(topology).sites[0]
    wires = wires_of(site)
    ends = zip(wires.ends.tolist(), wires.counts.tolist(), strict=True)
    one_by_one = {
        "kind": "wired",
        "switches": [{"name": name} for name in wires.names[16:]],
        "cables": [
            {"between": [wires.names[low], wires.names[high]], "count": count * (8 if nic == ALL_NICS else 1)}
            for ((low, high), count), nic in zip(ends, wires.nics, strict=True)
        ],
    }
    again = wired(one_by_one).sites[0].network
    parts = [
        (len(level.parts), level.part_of, [part.oversubscription for part in level.parts]) for level in again.levels
    ]
    expected = [
        (len(level.parts), level.part_of, pytest.approx([part.oversubscription for part in level.parts]))
        for level in site.network.levels
    ]
    assert parts == _met(expected, one_leaf_a_pod=topology.get("leaves") == 1)


def _met(levels: list[Any], *, one_leaf_a_pod: bool) -> list[Any]:
    """Pods of one leaf each are the same nodes twice: of cables one by one they are one level, the thinner."""
    return [(*levels[0][:2], levels[1][2])] if one_leaf_a_pod else levels


def test_stated_as_well_it_must_agree() -> None:
    topology = {"kind": "clos3", "pods": 2, "leaves": 2, "aggregations": 4, "cores": 32, "cables": 8}
    assert levels(wired(topology, oversubscription=2.0, pods=2)) == levels(wired(topology))
    with pytest.raises(InputError, match="which the cables make"):
        wired(topology, oversubscription=1.5)
    with pytest.raises(InputError, match="which the switches make"):
        wired(topology, pods=4)


def _with(**changes: Any) -> dict[str, Any]:
    return FOUR_LEAVES | changes


NO_PORTS = {"switches": [{"name": "leaf[0-3],spine[0-1]"}]}
CABLES: list[dict[str, Any]] = FOUR_LEAVES["cables"]  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ({"kind": "clos4"}, "topology"),
        ({"kind": "clos2", "leaves": 4}, "spines"),
        ({"kind": "clos2", "leaves": 0, "spines": 4}, "leaves"),
        ({"kind": "clos2", "leaves": 2, "spines": 4, "nodes_per_leaf": 7}, "at most 14"),
        ({"kind": "clos2", "leaves": 4, "spines": 4, "link": "ib-fast"}, "fabric.topology.link"),
        (
            {"kind": "clos2", "leaves": 4, "spines": 4, "link": {"bandwidth_bytes_per_s": 0, "latency_s": 0}},
            "bandwidth",
        ),
        ({"kind": "clos2", "leaves": 50_000, "spines": 50_000}, "cables between switches"),
        (
            _with(switches=[{"name": "leaf[0-999],spine[0-1]"}], cables=[{"between": ["leaf[0-999]", "leaf[0-999]"]}]),
            "1,000,000 cables one by one",
        ),
        ({"kind": "clos3", "pods": 2, "leaves": 2, "aggregations": 4, "cores": 6}, "a multiple of the 4"),
        ({"kind": "clos3", "pods": 50_000, "leaves": 2, "aggregations": 1, "cores": 1}, "at most 50,000 nodes"),
        ({"kind": "fat-tree", "k": 5}, "fabric.topology"),
        ({"kind": "fat-tree", "k": 8}, "at least 16"),
        ({"kind": "rail", "nodes_per_pod": 4}, "nothing else joins 4 pods"),
        ({"kind": "double-sided", "leaves": 3, "spines": 1}, "fabric.topology"),
        ({"kind": "torus", "dimensions": [4, 5]}, "20 places"),
        (_with(switches=[{"name": "leaf[0-3]", "ports": 47}, {"name": "spine[0-1]"}]), "at most its 47 ports"),
        (_with(switches=[{"name": "leaf[0-3]"}, {"name": "leaf3"}]), "a switch already"),
        (_with(switches=[{"name": "leaf[0-3]"}, {"name": "node7"}]), "a node already"),
        (_with(switches=[{"name": "leaf[0-3]"}]), "'spine0'"),
        (_with(cables=CABLES[:3]), "node 12"),
        (_with(cables=CABLES[:4]), "no way from node 0 to node 4"),
        (_with(cables=[*CABLES[:4], CABLES[4] | {"down": True}]), "no way from node 0 to node 4"),
        (_with(**NO_PORTS, cables=[*CABLES, {"between": ["node0", "leaf1"]}]), "unequal cables"),
        (_with(cables=[*CABLES, {"between": ["node0", "node1"]}]), "between two nodes"),
        (_with(cables=[*CABLES, {"between": ["leaf0", "leaf0"]}]), "to itself"),
        (_with(cables=[*CABLES, {"between": ["leaf0", "nosuch"]}]), "'nosuch'"),
        (_with(cables=[*CABLES, {"between": ["leaf0"]}]), "between"),
        (_with(cables=[*CABLES, {"between": ["leaf0", "spine0"], "count": 0}]), "count"),
    ],
)
def test_what_cannot_be(topology: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match="sites") as raised:
        wired(topology)
    assert said in str(raised.value)


def test_one_description_of_a_network(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one of them"):
        wired({"kind": "torus", "dimensions": [16]}, levels=[{"name": "leaf", "parts": [{"nodes": 16}]}])
    (tmp_path / "c.yaml").write_text(yaml_text(describe_cluster(wired({"kind": "torus", "dimensions": [16]}))))
    (tmp_path / "t.csv").write_text("host,leaf\n" + "".join(f"h{node},s{node // 4}\n" for node in range(16)))
    with pytest.raises(InputError, match="a second tree"):
        load_cluster(f"{tmp_path}/c.yaml@{tmp_path}/t.csv")
