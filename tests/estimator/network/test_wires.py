"""Wires of a site: what tiers carry, what halves send, and equal ways, by hand and against counting all there are."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from estimator.network.figures import TierFigures, equal_ways, halves_bytes_per_s, tier_figures
from estimator.network.wires import ALL_NICS, BETWEEN_SWITCHES, Tier, Wires, wires_of
from profiles.cluster import Site
from profiles.cluster_file import load_cluster, name_cluster
from tests.seeds import seeds

GB = 1e9


def site_of(topology: dict[str, Any] | None, count: int = 16, **fabric: Any) -> Site:
    written = {"link": "ib-ndr400", **({"topology": topology} if topology else {}), **fabric}
    site = {"name": "north", "nodes": [{"count": count, "device": "h100"}], "fabric": written}
    return load_cluster(name_cluster({"sites": [site]})).sites[0]


def test_the_tiers_of_a_clos() -> None:
    wires = wires_of(site_of({"kind": "clos3", "pods": 2, "leaves": 2, "aggregations": 4, "cores": 8, "cables": 4}))
    leaf, aggregation, core = tier_figures(wires)
    assert leaf == TierFigures(
        name="leaf", switches=4, ports=4 * 8 + 16, cables_up=64, below_bytes_per_s=6400 * GB, up_bytes_per_s=3200 * GB
    )
    assert (aggregation.switches, aggregation.ports, aggregation.cables_up) == (8, 8 + 2, 16)
    assert aggregation.oversubscription == 4.0
    assert (core.switches, core.ports, core.cables_up, core.oversubscription) == (8, 2, 0, None)
    assert halves_bytes_per_s(wires) == 16 * 50 * GB / 2
    assert equal_ways(wires, 0, 3) == (1, 2)
    assert equal_ways(wires, 0, 4) == (4 * 4 * 4, 4)
    assert equal_ways(wires, 0, 15) == (4 * 4 * 2 * 4, 6)


def test_what_has_no_nodes_below_is_not_counted() -> None:
    leaf, aggregation, core = tier_figures(wires_of(site_of({"kind": "fat-tree", "k": 16})))
    assert (leaf.switches, aggregation.switches, core.switches) == (128, 128, 64)
    assert (leaf.oversubscription, aggregation.oversubscription) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("topology", "halves", "ways"),
    [
        ({"kind": "clos2", "leaves": 4, "spines": 4, "cables": 8}, 64 * 50, (4 * 8 * 8, 4)),
        ({"kind": "clos2", "leaves": 4, "spines": 4, "cables": 2}, 16 * 50, (4 * 2 * 2, 4)),
        ({"kind": "rail", "nodes_per_pod": 16}, 64 * 50, (1, 2)),
        ({"kind": "rail", "nodes_per_pod": 4, "spines": 2}, 2 * 8 * 2 * 50, (2, 4)),
        ({"kind": "double-sided", "leaves": 4, "spines": 4}, 2 * 4 * 50, (4, 4)),
        # Of 4 x 4 a half is two rows: eight cables into the other at either side.
        ({"kind": "torus", "dimensions": [4, 4]}, 8 * 50, (2, 2)),
        ({"kind": "torus", "dimensions": [2, 8]}, 8 * 50, (2, 2)),
    ],
)
def test_halves_and_ways(topology: dict[str, Any], halves: float, ways: tuple[int, int]) -> None:
    wires = wires_of(site_of(topology))
    assert halves_bytes_per_s(wires) == pytest.approx(halves * GB, rel=1e-12)
    assert equal_ways(wires, 0, 15) == ways


def test_levels_are_switches_with_one_uplink() -> None:
    """The short form means the Clos that it describes: a switch for each pod, as wide as it says."""
    wires = wires_of(site_of(None, pods=4, oversubscription=4))
    pod, above = tier_figures(wires)
    assert (pod.name, pod.switches, pod.below_bytes_per_s, pod.oversubscription) == ("pod", 4, 6400 * GB, 4.0)
    assert (above.name, above.switches) == ("above", 1)
    assert halves_bytes_per_s(wires) == 2 * 4 * 8 * 50 * GB / 4
    assert [tier.name for tier in tier_figures(wires_of(site_of(None)))] == ["above"]


def test_a_node_sends_no_more_than_its_nics_whatever_is_cabled() -> None:
    """Ten cables of 50 GB/s at nodes of 8 NICs; the NICs' rate is shared out among them."""
    cables = [{"between": ["node[0-1]", f"leaf{leaf}"]} for leaf in range(10)]
    wires = wires_of(site_of({"kind": "wired", "switches": [{"name": "leaf[0-9]"}], "cables": cables}, count=2))
    assert halves_bytes_per_s(wires) == pytest.approx(8 * 50 * GB)
    (tier,) = tier_figures(wires)
    assert tier.switches == 10
    assert tier.below_bytes_per_s == pytest.approx(16 * 50 * GB)


def test_one_node() -> None:
    wires = wires_of(site_of(None, count=1))
    assert halves_bytes_per_s(wires) == 0.0
    assert equal_ways(wires, 0, 0) == (0, 0)


def random_wires(seed: int) -> Wires:
    """Some nodes under leaves, and switches joined anyhow; rates of a few kinds, some cables down."""
    rng = random.Random(seed)
    nodes, leaves, tops = rng.randint(2, 5), rng.randint(1, 3), rng.randint(1, 3)
    rows = [(node, nodes + rng.randrange(leaves), 1, ALL_NICS) for node in range(nodes)]
    switches = range(nodes, nodes + leaves + tops)
    for _ in range(rng.randint(leaves, 8)):
        low, high = sorted(rng.sample(switches, 2)) if len(switches) > 1 else (nodes, nodes)
        if low != high:
            rows.append((low, high, rng.randint(1, 3), BETWEEN_SWITCHES))
    return Wires(
        nodes=nodes,
        tiers=(Tier(name="leaf", switches=leaves), Tier(name="top", switches=tops)),
        names=tuple(f"v{number}" for number in range(nodes + leaves + tops)),
        ends=np.array([row[:2] for row in rows]),
        counts=np.array([row[2] for row in rows]),
        bytes_per_s=np.array([rng.choice([0.0, 1.0, 2.5, 10.0, 10.0, rng.uniform(0.5, 3)]) for _ in rows]),
        nics=np.array([row[3] for row in rows]),
        node_nics=np.ones(nodes, np.int64),
    )


def least_cut(wires: Wires) -> float:
    """Of all ways to put the switches on either side, the least that passes from one half of the nodes to the other."""
    half, free = wires.nodes // 2, wires.vertices - wires.nodes
    rates, least = wires.counts * wires.bytes_per_s, np.inf
    for sides in product((False, True), repeat=free):
        side = np.array([node >= half for node in range(wires.nodes)] + list(sides))
        least = min(least, float(rates[side[wires.ends[:, 0]] != side[wires.ends[:, 1]]].sum()))
    return least


def all_ways(wires: Wires, first: int, second: int) -> tuple[int, int]:
    """Every way that passes no other node and no switch twice; of the shortest how many."""
    found: dict[int, int] = {}

    def go(at: int, seen: tuple[int, ...], times: int) -> None:
        if at == second:
            found[len(seen) - 1] = found.get(len(seen) - 1, 0) + times
            return
        for (low, high), count, rate in zip(wires.ends, wires.counts, wires.bytes_per_s, strict=True):
            if at in (low, high) and rate > 0:
                to = int(low + high - at)
                if to not in seen and (to >= wires.nodes or to == second):
                    go(to, (*seen, to), times * int(count))

    go(first, (first,), 1)
    return (found[min(found)], min(found)) if found and first != second else (0, 0)


@pytest.mark.parametrize("seed", seeds(400))
def test_halves_and_ways_against_all_there_are(seed: int) -> None:
    wires = random_wires(seed)
    assert halves_bytes_per_s(wires) == pytest.approx(least_cut(wires), abs=1e-4)
    for first, second in product(range(wires.nodes), repeat=2):
        assert equal_ways(wires, first, second) == all_ways(wires, first, second)
