"""The state table, its paths, and the bandwidth monitor."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import networkx as nx  # type: ignore[import-untyped]
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bench.clusters.spin_search import take
from planner.many_jobs.sites.link_measurements import links_now
from planner.many_jobs.sites.monitor import LinkMeasurement, figures_at, measurement_of, measurements_of
from planner.many_jobs.sites.paths import joining_links, spanning_s
from planner.many_jobs.sites.records import Demand
from planner.many_jobs.sites.scoring import tree_s
from planner.many_jobs.sites.state import SiteTable, local_number, table_of_cluster
from planner.many_jobs.sites.topology import make_topology
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.vocabulary import CollectiveOp, LinkTable
from tests.oracles.sites_oracle import all_paths, tree
from tests.seeds import seeds
from tests.sites_examples import make_table, random_topology

CLUSTER = {
    "schema": "cellplan.cluster/1",
    "sites": [
        {"name": "north", "nodes": [{"count": 2, "device": "a100-80gb", "devices": 8, "free": 11}]},
        {"name": "south", "nodes": [{"count": 1, "device": "a100-80gb"}, {"count": 2, "device": "v100-32gb"}]},
        {"name": "west", "nodes": [{"count": 1, "device": "v100-32gb", "devices": 4}]},
    ],
    "links_between_sites": [
        {"between": ["north", "south"], "bandwidth_bytes_per_s": 1.25e9, "latency_s": 5.0e-3},
        {"between": ["west", "south"], "bandwidth_bytes_per_s": 2.5e8, "latency_s": 1.0e-2},
    ],
}


def make_link_table(op: CollectiveOp, ranks: int, link: str = "north--south", beta: float = 8e-10) -> LinkTable:
    return LinkTable(
        link=link,
        op=op,
        ranks=ranks,
        nodes=ranks,
        points=((1000, 0.006), (10**8, 0.085)),
        alpha_s=0.006,
        beta_s_per_byte=beta,
        fit_error=0.0,
        source="test",
    )


def test_a_cluster_file_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(CLUSTER))
    table = table_of_cluster(load_cluster(str(path)))
    assert table.topology.names == ("north", "south", "west")
    assert table.types == ("a100-80gb", "v100-32gb")
    south_a100 = load_cluster(str(path)).sites[1].nodes[0].devices
    south_v100 = 2 * load_cluster(str(path)).sites[1].nodes[1].devices
    assert table.free == [[11, south_a100, 0], [0, south_v100, 4]]
    assert table.total == [11, south_a100 + south_v100, 4]
    assert table.topology.widest(0)[2] == 2.5e8
    assert table.topology.quickest(0)[2] == pytest.approx(0.015)


@pytest.mark.parametrize("seed", seeds(150))
def test_paths_are_those_of_brute_force(seed: int) -> None:
    topology = random_topology(Random(seed), 1 + seed % 9)
    wide, far, hops = all_paths(topology)
    assert [topology.widest(site) for site in range(len(topology))] == wide
    np.testing.assert_allclose([topology.quickest(site) for site in range(len(topology))], far)
    for site in range(len(topology)):
        counted = {other: hop for hop, layer in enumerate(topology.hops(site)) for other in layer}
        assert [counted.get(other, float("inf")) for other in range(len(topology))] == hops[site]


@pytest.mark.parametrize("seed", seeds(100))
def test_trees_and_links_of_sets(seed: int) -> None:
    rng = Random(seed)
    topology = random_topology(rng, rng.randint(2, 9))
    wide, far, _ = all_paths(topology)
    sites = rng.sample(range(len(topology)), rng.randint(1, len(topology)))
    assert tree_s(topology, sites, None) == pytest.approx(tree(far, sites))
    assert spanning_s(topology.neighbours, sites) == pytest.approx(tree(far, sites))
    links = joining_links(topology.forest_neighbours, sites)
    graph = nx.Graph(links)
    bandwidth = {frozenset(edge[:2]): edge[2] for edge in topology.edges}
    for a in sites:
        for b in sites:
            if a != b and wide[a][b]:
                path = nx.shortest_path(graph, a, b)
                assert min(bandwidth[frozenset(link)] for link in pairwise(path)) == wide[a][b]


def test_devices_of_sites_are_split_by_type() -> None:
    table = make_table({"x": {"a40": 3, "a10": 2}, "y": {"a10": 4}}, {})
    held = table.split(((0, 4), (1, 4)), ())
    assert table.shares(held)[0].devices == (("a40", 2), ("a10", 2))
    take(table, held)
    assert table.total == [1, 0]
    take(table, held, times=-1)
    assert (table.total, table.free) == ([5, 4], [[3, 0], [2, 4]])
    with pytest.raises(ValueError, match="more devices"):
        table.split(((1, 5),), ("a10",))
    with pytest.raises(InputError, match="nowhere"):
        local_number(table, Demand(devices=1, local="nowhere"))


def test_wrong_tables() -> None:
    with pytest.raises(ValueError, match="finite"):
        make_topology("ab", [(0, 1, float("nan"), 0.0)])
    with pytest.raises(ValueError, match="two links"):
        make_topology("ab", [(0, 1, 1.0, 0.0), (1, 0, 2.0, 0.0)])
    with pytest.raises(ValueError, match="each link joins"):
        make_topology("ab", [(0, 2, 1.0, 0.0)])
    with pytest.raises(ValueError, match="below 0"):
        SiteTable(make_topology("ab", []), ["x"], [[1, -1]])


FILED = (1e9, 0.01)


def figures(*measured: LinkMeasurement, now_s: float) -> tuple[float, float, str]:
    return figures_at(measured, FILED, now_s, half_life_s=100.0)


def probe(
    at_s: float, width: float, far: float | None = None, between: tuple[str, str] = ("x", "y")
) -> LinkMeasurement:
    return LinkMeasurement(between=between, at_s=at_s, bandwidth_bytes_per_s=width, latency_s=far)


def test_measurements_are_smoothed_and_age() -> None:
    assert figures(now_s=0.0) == (1e9, 0.01, "file")
    first = probe(0.0, 2e9, 0.02)
    width, far, basis = figures(first, now_s=0.0)
    assert basis == "measured"
    assert (width, far) == pytest.approx(((2e9 + 1e9 / 16) / (17 / 16), 0.33 / 17))
    assert figures(first, now_s=400.0)[0] == pytest.approx(1.5e9)
    assert figures(first, now_s=1e6)[0] == pytest.approx(1e9)
    expected = (5e8 + 0.5 * 2e9 + 1e9 / 16) / (1.5 + 1 / 16)
    assert figures(first, probe(100.0, 5e8), now_s=100.0)[0] == pytest.approx(expected)
    alone = figures_at([first, probe(100.0, 5e8)], None, 1e6, half_life_s=100.0)
    assert alone[:2] == pytest.approx(((5e8 + 0.5 * 2e9) / 1.5, 0.02))


def test_a_vanished_link_is_a_link_of_zero() -> None:
    gone = [probe(20.0, 0.0), probe(10.0, 2e9)]
    assert figures(*gone, now_s=1e9) == (0.0, 0.01, "down")
    assert figures(*gone, probe(15.0, 3e9), now_s=20.0)[2] == "down"
    width, _, basis = figures(*gone, probe(15.0, 3e9), probe(30.0, 4e9), now_s=30.0)
    assert width == pytest.approx((4e9 + 1e9 / 16) / (17 / 16))
    assert basis == "measured"
    assert figures(*gone, probe(30.0, 4e9), probe(25.0, 0.0), now_s=30.0)[2] == "measured"
    table = make_table({"x": 1, "y": 1, "z": 1}, {("x", "y"): FILED})
    topology, links = links_now(table.topology, gone, now_s=1e9)
    assert (topology.widest(0)[1], topology.edges, len(topology.ends)) == (0.0, (), 1)
    assert [(link.basis, link.age_s) for link in links] == [("down", 1e9 - 20.0)]


def test_a_link_that_the_file_lacks_is_added() -> None:
    table = make_table({"x": 1, "y": 1, "z": 1}, {("x", "y"): FILED})
    topology, _ = links_now(table.topology, [probe(0.0, 7e8, 0.03, ("z", "x"))], now_s=1e6)
    assert topology.edges == ((0, 1, 1e9, 0.01), (0, 2, 7e8, 0.03))
    assert links_now(topology, [], now_s=1e6)[0] is topology
    with pytest.raises(InputError, match="at least 0"):
        probe(0.0, -1.0)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(1e6, 1e11), st.floats(0, 1)), min_size=1, max_size=12),
    st.randoms(),
)
def test_the_order_of_measurements_does_not_matter(rows: list[tuple[int, float, float]], rng: Random) -> None:
    measured = [probe(float(at), width, far) for at, width, far in rows]
    first = figures(*measured, now_s=1000.0)
    rng.shuffle(measured)
    second = figures(*measured, now_s=1000.0)
    assert first[:2] == pytest.approx(second[:2], rel=1e-9, abs=1e-12)
    widths = [1e9, *(width for _, width, _ in rows)]
    assert min(widths) * (1 - 1e-9) <= first[0] <= max(widths) * (1 + 1e-9)


def test_link_tables_are_measurements() -> None:
    sent = measurement_of(make_link_table("send_recv", 2), ("north", "south"), 3.0)
    assert (sent.bandwidth_bytes_per_s, sent.latency_s, sent.at_s) == (1.25e9, 0.006, 3.0)
    reduced = measurement_of(make_link_table("all_reduce", 4), ("north", "south"), 3.0)
    assert reduced.bandwidth_bytes_per_s == pytest.approx(1.5 * 1.25e9)
    assert reduced.latency_s == pytest.approx(0.001)
    flat = measurement_of(make_link_table("send_recv", 2, beta=0.0), ("north", "south"), 0.0)
    assert flat.bandwidth_bytes_per_s == pytest.approx(1e8 / 0.085)
    tables = [make_link_table("all_reduce", 2), make_link_table("send_recv", 2), make_link_table("send_recv", 2, "ib")]
    found = measurements_of(tables, {tables[1].id: 5.0}, ("north", "south"))
    assert [(one.at_s, one.bandwidth_bytes_per_s) for one in found] == [(0.0, 1.25e9), (5.0, 1.25e9)]
