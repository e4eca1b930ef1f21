"""Algorithms of collectives by hand, with protocols and switches that reduce, and what must hold for any link."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.communication.algorithms import QUICK_HOP_IN_NODE_S
from estimator.communication.collectives import describe_group, time_collective
from estimator.communication.levels import torus_steps
from profiles.cluster import Cluster, NodeGroup, Site
from profiles.hardware import link_names, load_device, load_link
from profiles.vocabulary import CollectiveOp, Link

DEVICE = load_device("h100")
ISLAND = Link(name="island", kind="nvlink", bandwidth_bytes_per_s=100e9, latency_s=4e-6, efficiency=0.8, source="test")
NIC = Link(name="nic", kind="infiniband", bandwidth_bytes_per_s=10e9, latency_s=10e-6, source="test")
HOST = Link(name="host", kind="pcie", bandwidth_bytes_per_s=60e9, latency_s=5e-6, source="test")


def cluster_of(nodes: int, devices: int, *, island: Link = ISLAND, nic: Link = NIC, nics: int | None = None) -> Cluster:
    group = NodeGroup(
        count=nodes,
        device=DEVICE,
        devices=devices,
        island_link=island,
        island_size=devices,
        host_link=HOST,
        nic_link=nic,
        nics=devices if nics is None else nics,
    )
    return Cluster(text="test", sites=(Site(name="here", nodes=(group,), fabric_link=nic),))


def timed(op: CollectiveOp, size: float, cluster: Cluster, ranks: int | None = None) -> tuple[float, str]:
    group = describe_group(cluster, cluster.slots[:ranks])
    time = time_collective(op, size, group)
    return time.seconds, time.how


def test_small_messages_take_the_quick_protocol() -> None:
    island = replace(ISLAND, startup_s=10e-6, quick_latency_s=1e-6, quick_efficiency=0.4)
    cluster = cluster_of(1, 8, island=island)
    seconds, how = timed("all_gather", 1000, cluster)
    assert seconds == pytest.approx(10e-6 + 7 * 1e-6 + 0.875 * 1000 / 40e9)
    assert how == "model: quick ring over island"
    seconds, how = timed("all_gather", 1e9, cluster)
    assert seconds == pytest.approx(10e-6 + 7 * 4e-6 + 0.875 * 1e9 / 80e9)
    assert how == "model: ring over island"
    assert timed("send_recv", 10, cluster, 2)[0] == pytest.approx(10e-6 + 1e-6, rel=1e-3)


def test_the_quick_protocol_needs_every_link_on_the_way() -> None:
    island = replace(ISLAND, quick_latency_s=1e-6, quick_efficiency=0.4)
    assert timed("all_gather", 10, cluster_of(2, 4, island=island))[0] == pytest.approx(6 * 4e-6 + 10e-6, rel=1e-3)
    nic = replace(NIC, quick_latency_s=3e-6, quick_efficiency=0.5)
    assert timed("all_gather", 10, cluster_of(2, 4, island=island, nic=nic))[0] == pytest.approx(
        6 * QUICK_HOP_IN_NODE_S + 3e-6, rel=1e-3
    )
    assert timed("all_gather", 10, cluster_of(1, 4, island=island, nic=nic))[0] == pytest.approx(3 * 1e-6, rel=1e-3)


def test_a_switch_that_reduces_passes_a_share_more_than_all_bytes() -> None:
    island = replace(ISLAND, in_network_efficiency=0.7)
    cluster, size = cluster_of(1, 8, island=island), 1e9
    seconds, how = timed("all_reduce", size, cluster)
    assert seconds == pytest.approx(14 * 4e-6 + 9 / 8 * size / 70e9)
    assert how == "model: in-network over island"
    assert timed("all_gather", size, cluster)[0] == timed("all_gather", size, cluster_of(1, 8))[0]
    # Two ranks send each other all bytes once in a ring: nothing to win.
    assert timed("all_reduce", size, cluster, 2)[1] == "model: ring over island"


def test_islands_that_reduce_are_joined_by_a_tree() -> None:
    island = replace(ISLAND, in_network_efficiency=0.7)
    two, four = (cluster_of(nodes, 8, island=island) for nodes in (2, 4))
    size, node_rate = 1e9, 80e9
    over_two = 14 * 4e-6 + 2 * 10e-6 + max(9 / 8 * size / 70e9, size / 0.92 / node_rate)
    assert timed("all_reduce", size, two)[0] == pytest.approx(over_two)
    assert timed("all_reduce", size, two)[1] == "model: in-network islands + tree over island + nic"
    over_four = 14 * 4e-6 + 4 * 10e-6 + 2 / 0.92 * size / node_rate
    ring = 2 * 28 * 4e-6 + 2 * 3 * 10e-6 + 2 * 31 / 32 * size / node_rate
    assert timed("all_reduce", size, four)[0] == pytest.approx(min(over_four, ring))


def test_a_fabric_that_reduces_carries_every_byte_once() -> None:
    nic = replace(NIC, in_network_efficiency=0.9)
    cluster, size = cluster_of(16, 8, nic=nic), 1e9
    seconds, how = timed("all_reduce", size, cluster)
    assert seconds == pytest.approx(14 * 4e-6 + 2 * 10e-6 + max(1.75 * size / 80e9, size / 72e9))
    assert how == "model: in-network fabric over island + nic"
    assert timed("all_gather", size, cluster)[1] == "model: ring over island + nic"


def test_a_large_group_rings_slowly_and_grows_by_the_log_in_a_tree() -> None:
    """1 KiB on 8 to 1,024 ranks: a ring's steps are the ranks, a tree's the node's and the log of the nodes."""
    for nodes in (2, 16, 128):
        cluster = cluster_of(nodes, 8)
        gather, reduce = timed("all_gather", 1024, cluster)[0], timed("all_reduce", 1024, cluster)[0]
        assert gather == pytest.approx(7 * nodes * 4e-6 + (nodes - 1) * 10e-6, rel=1e-3)
        tree = 14 * 4e-6 + 2 * ceil(log2(nodes)) * 10e-6
        assert reduce == pytest.approx(tree, rel=1e-2)


def test_a_ramp_below_one_joins_start_and_bytes_to_more_than_their_sum() -> None:
    island = replace(ISLAND, ramp_exponent=0.5)
    start, passing = 7 * 4e-6, 0.875 * 1e6 / 80e9
    seconds, _ = timed("all_gather", 1e6, cluster_of(1, 8, island=island))
    assert seconds == pytest.approx((start**0.5 + passing**0.5) ** 2)
    # Over nodes it is the outermost links' ramp that counts.
    over = timed("all_gather", 1e6, cluster_of(2, 4, island=island))
    assert over == timed("all_gather", 1e6, cluster_of(2, 4))


def test_a_quick_sum_in_a_node_takes_the_steps_of_a_chain() -> None:
    island = replace(ISLAND, quick_latency_s=1e-6, quick_efficiency=0.4)
    assert timed("all_reduce", 1, cluster_of(1, 8, island=island))[0] == pytest.approx(14 * 1e-6, rel=1e-3)


def test_few_ranks_of_a_mesh_have_few_of_its_links() -> None:
    island = replace(ISLAND, latency_s=0.0, share_by_ranks=((2, 0.25), (4, 0.5)))
    cluster = cluster_of(1, 8, island=island)
    for ranks, share in ((2, 0.25), (3, 0.5), (4, 0.5), (5, 1.0), (8, 1.0)):
        expected = (ranks - 1) / ranks * 1e9 / (80e9 * share)
        assert timed("all_gather", 1e9, cluster, ranks)[0] == pytest.approx(expected)


def test_all_to_all_has_an_efficiency_of_its_own() -> None:
    island = replace(ISLAND, exchange_efficiency=0.5)
    seconds, how = timed("all_to_all", 1e9, cluster_of(1, 8, island=island))
    assert seconds == pytest.approx(4 * 4e-6 + 0.875 * 1e9 / 50e9)
    assert how == "model: exchange over island"


def test_all_to_all_over_nodes_shares_the_nics() -> None:
    """Groups of one rank a node, eight of them busy: one NIC is shared by eight, eight NICs by none."""
    for nics, share in ((8, 1), (1, 8)):
        cluster = cluster_of(4, 8, nics=nics)
        group = describe_group(cluster, cluster.slots[::8])
        time = time_collective("all_to_all", 1e9, group, concurrent_groups=8)
        assert time.seconds == pytest.approx(2 * 10e-6 + 0.75 * 1e9 / 10e9 * share)


@given(ranks=st.integers(1, 5000), dimensions=st.integers(1, 3))
def test_steps_of_a_torus(ranks: int, dimensions: int) -> None:
    """Its sides hold all ranks; never more steps than a ring's, and as few as a cube's where it is one."""
    steps = torus_steps(ranks, dimensions)
    assert steps <= ranks - 1
    assert (steps / dimensions + 1) ** dimensions >= ranks * (1 - 1e-9)
    if dimensions == 1:
        assert steps == ranks - 1


def test_a_tpus_rings_go_along_its_dimensions() -> None:
    island = replace(ISLAND, torus_dimensions=3)
    cluster = cluster_of(1, 64, island=island)
    assert timed("all_gather", 1, cluster)[0] == pytest.approx(9 * 4e-6, rel=1e-3)


shares = st.none() | st.floats(0.05, 1)
links = st.builds(
    Link,
    name=st.just("any"),
    kind=st.just("nvlink"),
    bandwidth_bytes_per_s=st.floats(1e9, 1e12),
    latency_s=st.floats(0, 1e-4),
    efficiency=st.floats(0.05, 1),
    source=st.just("test"),
    startup_s=st.floats(0, 1e-4),
    quick_latency_s=st.none() | st.floats(0, 1e-5),
    quick_efficiency=shares,
    in_network_efficiency=shares,
    exchange_efficiency=shares,
    share_by_ranks=st.just(()) | st.just(((2, 0.3), (5, 0.6))),
    torus_dimensions=st.integers(1, 3),
    ramp_exponent=st.floats(0.3, 1),
)
ops = st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))


@given(
    op=ops,
    size=st.floats(0, 1e10),
    more=st.floats(0, 1e10),
    island=links,
    nic=links,
    nodes=st.sampled_from([1, 2, 3, 8]),
    devices=st.sampled_from([1, 2, 3, 8]),
    factors=st.tuples(st.floats(1, 100), st.floats(1, 100)),
    busy=st.integers(1, 9),
)
def test_more_bandwidth_and_fewer_bytes_are_never_slower_on_any_link(
    op: CollectiveOp,
    size: float,
    more: float,
    island: Link,
    nic: Link,
    nodes: int,
    devices: int,
    factors: tuple[float, float],
    busy: int,
) -> None:
    def seconds(island: Link, nic: Link, size: float) -> float:
        cluster = cluster_of(nodes, devices, island=island, nic=nic, nics=2)
        return time_collective(op, size, describe_group(cluster, cluster.slots), concurrent_groups=busy).seconds

    def faster(link: Link, factor: float) -> Link:
        return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)

    base = seconds(island, nic, size)
    assert seconds(faster(island, factors[0]), faster(nic, factors[1]), size) <= base * (1 + 1e-9)
    assert seconds(island, nic, size + more) >= base * (1 - 1e-9)


@given(
    op=ops,
    size=st.floats(0, 1e10),
    one=links,
    other=links,
    factor=st.floats(1, 100),
)
def test_a_faster_link_of_one_kind_of_device_never_slows_a_mixed_group(
    op: CollectiveOp, size: float, one: Link, other: Link, factor: float
) -> None:
    """Whichever is then the slower one: what one of the links lacks, the group lacks."""

    def seconds(first: Link) -> float:
        nodes = [cluster_of(1, 4, island=link).sites[0].nodes[0] for link in (first, replace(other, name="other"))]
        site = Site(name="here", nodes=tuple(nodes), fabric_link=NIC)
        cluster = Cluster(text="test", sites=(site,))
        return time_collective(op, size, describe_group(cluster, cluster.slots)).seconds

    quicker = replace(one, bandwidth_bytes_per_s=one.bandwidth_bytes_per_s * factor)
    assert seconds(quicker) <= seconds(one) * (1 + 1e-9)


@pytest.mark.parametrize("name", link_names())
def test_every_link_of_the_catalogue_is_sane(name: str) -> None:
    link = load_link(name)
    assert 0 < link.latency_s < 1e-3
    assert (link.quick_latency_s is None) == (link.quick_efficiency is None)
    if link.quick_latency_s is not None and link.quick_efficiency is not None:
        assert link.quick_latency_s < link.latency_s
        assert link.quick_efficiency < link.efficiency
    assert list(link.share_by_ranks) == sorted(link.share_by_ranks)
    assert all(0 < share <= 1 for _, share in link.share_by_ranks)
    assert 0.3 <= link.ramp_exponent <= 1


@given(
    op=ops,
    size=st.floats(1, 1e10),
    ranks=st.integers(4, 64),
    more=st.integers(1, 64),
    name=st.sampled_from(["nvswitch3", "nvswitch4", "nvswitch5", "nvswitch5-nvl72"]),
)
def test_more_ranks_of_a_switch_are_never_faster(
    op: CollectiveOp, size: float, ranks: int, more: int, name: str
) -> None:
    """Beyond the few that cannot use all links; a switch that reduces passes less the more ranks share in it."""
    link = replace(load_link(name), in_network_efficiency=None, share_by_ranks=())
    few, many = (timed(op, size, cluster_of(1, count, island=link))[0] for count in (ranks, ranks + more))
    assert many >= few * (1 - 1e-9)


def by_name(op: CollectiveOp, size: float, cluster: Cluster, algorithm: str) -> float:
    group = describe_group(cluster, cluster.slots)
    return time_collective(op, size, group, algorithm=algorithm).seconds


def test_halving_and_doubling_by_name_walks_its_phases() -> None:
    # Eight ranks on two nodes: halves and quarters stay inside, the last eighth goes through the NICs, four at once.
    cluster = cluster_of(2, 4)
    inside, beyond = 80e9, 4 * 10e9
    size = 1e9
    expected = 2 * (size / 2 / inside + size / 4 / inside + 4 * size / 8 / beyond) + 2 * (4e-6 + 4e-6 + 10e-6)
    assert by_name("all_reduce", size, cluster, "halving-doubling") == pytest.approx(expected)
    assert by_name("all_gather", size, cluster, "halving-doubling") == pytest.approx(expected / 2)
    assert by_name("reduce_scatter", size, cluster, "halving-doubling") == pytest.approx(expected / 2)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
def test_halving_and_doubling_carries_no_less_than_must_pass(nodes: int, devices: int) -> None:
    cluster = cluster_of(nodes, devices)
    ranks = nodes * devices
    least = 2 * (ranks - 1) / ranks * 1e9 / 80e9 if nodes == 1 else 2 * (nodes - 1) / nodes * 1e9 / (devices * 10e9)
    assert by_name("all_reduce", 1e9, cluster, "halving-doubling") >= least * (1 - 1e-12)


def test_an_algorithm_by_name_is_the_only_one_and_nobody_gets_it_unasked() -> None:
    cluster = cluster_of(4, 8)
    group = describe_group(cluster, cluster.slots)
    times = {name: time_collective("all_reduce", 1e6, group, algorithm=name) for name in ("ring", "tree")}
    assert min(time.seconds for time in times.values()) == time_collective("all_reduce", 1e6, group).seconds
    assert [time.how.split(" over")[0] for time in times.values()] == ["model: ring", "model: tree"]
    with pytest.raises(ValueError, match="all_gather by tree; expected one of ring, halving-doubling"):
        time_collective("all_gather", 1e6, group, algorithm="tree")
    with pytest.raises(ValueError, match="halving-doubling of all_to_all"):
        time_collective("all_to_all", 1e6, group, algorithm="halving-doubling")
