"""Groups of devices, the time of a collective on them, and transfers between stages."""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.communication.collectives import (
    Group,
    StageTransfer,
    describe_group,
    overlaps,
    time_collective,
    time_stage_transfer,
)
from estimator.communication.fit import make_table
from estimator.communication.groups import pair_key
from profiles.cluster import Cluster, DeviceSlot, NodeGroup, Site, SiteLink
from profiles.errors import InputError
from profiles.network import equal_pods
from profiles.vocabulary import CollectiveOp, Device, Link, LinkTable, ReferenceNode

GROUP_OPS: tuple[CollectiveOp, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
MIB = 2**20


def link(
    name: str,
    gigabytes_per_s: float,
    microseconds: float,
    *,
    efficiency: float = 1.0,
    kind: Literal["nvlink", "pcie", "infiniband"] = "nvlink",
) -> Link:
    return Link(
        name=name,
        kind=kind,
        bandwidth_bytes_per_s=gigabytes_per_s * 1e9,
        latency_s=microseconds * 1e-6,
        efficiency=efficiency,
        source="test",
    )


ISLAND = link("island", 200, 2)
HOST = link("host", 25, 4, kind="pcie")
NIC = link("nic", 20, 10, kind="infiniband")
DEVICE = Device(
    name="chip",
    memory_bytes=10**9,
    memory_bandwidth_bytes_per_s=1e12,
    peak_flops_per_s=(("fp32", 1e13),),
    power_w=None,
    flash_attention=False,
    reference_node=ReferenceNode(
        devices=8, island_link="island", island_size=8, host_link="host", nic_link="nic", nics=8
    ),
    source="test",
)


def nodes_of(
    count: int,
    devices: int,
    *,
    island: Link = ISLAND,
    island_size: int | None = None,
    host: Link = HOST,
    nic: Link = NIC,
    nics: int | None = None,
) -> NodeGroup:
    return NodeGroup(
        count=count,
        device=DEVICE,
        devices=devices,
        island_link=island,
        island_size=devices if island_size is None else island_size,
        host_link=host,
        nic_link=nic,
        nics=devices if nics is None else nics,
    )


def cluster_of(*groups: NodeGroup, oversubscription: float = 1.0, pods: int = 1) -> Cluster:
    network = equal_pods(sum(group.count for group in groups), pods=pods, oversubscription=oversubscription)
    site = Site(name="here", nodes=groups, fabric_link=groups[0].nic_link, network=network)
    return Cluster(text="test", sites=(site,))


def two_sites(*, nodes: int = 1, devices: int = 4, gigabytes_per_s: float = 1.25) -> Cluster:
    sites = tuple(Site(name=name, nodes=(nodes_of(nodes, devices),), fabric_link=NIC) for name in ("north", "south"))
    wan = SiteLink(between=("south", "north"), bandwidth_bytes_per_s=gigabytes_per_s * 1e9, latency_s=5e-3)
    return Cluster(text="test", sites=sites, site_links=(wan,))


def seconds(op: CollectiveOp, size: float, cluster: Cluster, slots: tuple[DeviceSlot, ...], groups: int = 1) -> float:
    return time_collective(op, size, describe_group(cluster, slots), concurrent_groups=groups).seconds


# Where a group sits


def test_a_group_knows_where_it_sits() -> None:
    cluster = cluster_of(nodes_of(4, 8, island_size=2))
    slots = cluster.slots

    def facts(*numbers: int) -> tuple[int, int, bool, tuple[str, ...]]:
        group = describe_group(cluster, [slots[number] for number in numbers])
        kinds = tuple(level.kind for level in group.levels)
        return group.ranks, group.nodes, group.even, kinds

    assert facts(3) == (1, 1, True, ())
    assert facts(2, 3) == (2, 1, True, ("island",))
    assert facts(1, 2) == (2, 1, True, ("host",))
    assert facts(0, 1, 2, 3) == (4, 1, True, ("island", "host"))
    assert facts(0, 8, 16, 24) == (4, 4, True, ("fabric",))
    assert facts(*range(16)) == (16, 2, True, ("island", "host", "fabric"))
    assert facts(0, 1, 8) == (3, 2, False, ("island", "fabric"))


def test_levels_count_members_and_ring_hops() -> None:
    cluster = cluster_of(nodes_of(4, 8, island_size=2))
    levels = describe_group(cluster, cluster.slots).levels
    assert [(level.members, level.ranks_inside, level.crossings) for level in levels] == [
        (2, 1, 16),
        (4, 2, 12),
        (4, 8, 3),
    ]


def test_order_of_the_ranks_does_not_matter() -> None:
    cluster = two_sites(nodes=2)
    slots = cluster.slots[2:14:3]
    assert len({describe_group(cluster, order) for order in permutations(slots)}) == 1


def test_an_island_may_span_nodes() -> None:
    cluster = cluster_of(nodes_of(1, 8), nodes_of(8, 4, island_size=16, nics=4))
    slots = cluster.slots[8:]
    rack, racks = describe_group(cluster, slots[:16]), describe_group(cluster, slots)
    assert (rack.nodes, [level.kind for level in rack.levels]) == (4, ["island"])
    assert (racks.nodes, [level.kind for level in racks.levels]) == (8, ["island", "fabric"])
    assert racks.levels[1].bandwidth_bytes_per_s == pytest.approx(16 * 20e9)


def test_groups_that_cannot_be() -> None:
    cluster = cluster_of(nodes_of(2, 2, nics=0))
    with pytest.raises(ValueError, match="0 slots"):
        describe_group(cluster, ())
    with pytest.raises(ValueError, match="no slot twice"):
        describe_group(cluster, [cluster.slots[0]] * 2)
    with pytest.raises(InputError, match="test: nics of the chip nodes in site here: found 0"):
        describe_group(cluster, cluster.slots)
    assert describe_group(cluster, cluster.slots[:2]).nodes == 1
    apart = replace(two_sites(), site_links=())
    with pytest.raises(InputError, match="links_between_sites: found no way between north and south"):
        describe_group(apart, apart.slots)


def test_pairs_of_equal_key_have_equal_groups() -> None:
    """The shortcut that transfers between large stages take, on nodes of two kinds, racks, pods and sites."""
    groups = (nodes_of(2, 4, island_size=2), nodes_of(4, 2, island_size=4, nics=1))
    north = Site(
        name="north",
        nodes=groups,
        fabric_link=NIC,
        network=equal_pods(sum(group.count for group in groups), pods=3, oversubscription=2.0),
    )
    cluster = replace(two_sites(), sites=(north, Site(name="south", nodes=groups[:1], fabric_link=NIC)))
    by_key: dict[object, set[Group]] = {}
    for pair in permutations(cluster.slots, 2):
        by_key.setdefault(pair_key(cluster, *pair), set()).add(describe_group(cluster, pair))
    assert len(by_key) > 10
    assert {len(found) for found in by_key.values()} == {1}


# Times by hand


def test_one_rank_takes_no_time() -> None:
    cluster = cluster_of(nodes_of(1, 8))
    for op in get_args(CollectiveOp):
        assert seconds(op, 10**9, cluster, cluster.slots[:1]) == 0


def test_inside_an_island_by_hand() -> None:
    cluster = cluster_of(nodes_of(1, 8, island=replace(ISLAND, efficiency=0.5)))
    slots = cluster.slots
    size, rate, step = 10**8, 100e9, 2e-6
    assert seconds("all_reduce", size, cluster, slots) == pytest.approx(14 * step + 1.75 * size / rate)
    assert seconds("all_gather", size, cluster, slots) == pytest.approx(7 * step + 0.875 * size / rate)
    assert seconds("reduce_scatter", size, cluster, slots[:4]) == pytest.approx(3 * step + 0.75 * size / rate)
    assert seconds("all_to_all", size, cluster, slots) == pytest.approx(4 * step + 0.875 * size / rate)
    assert seconds("send_recv", size, cluster, slots[:2]) == pytest.approx(step + size / rate)


def test_islands_of_a_node_meet_over_one_host_link() -> None:
    cluster = cluster_of(nodes_of(1, 8, island_size=2))
    size = 10**8
    ring = 0.875 * size / 25e9 + 4 * 2e-6 + 3 * 4e-6
    assert seconds("all_gather", size, cluster, cluster.slots) == pytest.approx(ring)


def test_over_nodes_the_faster_of_ring_and_tree() -> None:
    cluster = cluster_of(nodes_of(8, 8, nics=4))
    group = describe_group(cluster, cluster.slots)
    found = {}
    for size in (1000, 10**7, 10**10):
        ring = 2 * 56 * 2e-6 + 2 * 7 * 10e-6 + 2 * 63 / 64 * size / 80e9
        tree = 14 * 2e-6 + 6 * 10e-6 + 2 / 0.92 * size / 80e9
        time = time_collective("all_reduce", size, group)
        assert time.seconds == pytest.approx(min(ring, tree))
        assert time.provenance == "modelled"
        found[size] = time.how
    assert found[1000] == "model: tree over island + nic"
    assert found[10**10] == "model: ring over island + nic"


def test_the_group_uses_as_many_nics_as_it_has_ranks_and_shares_them() -> None:
    size = 10**9
    cluster = cluster_of(nodes_of(2, 8, nics=4))
    one_per_node = cluster.slots[::8]
    assert seconds("all_gather", size, cluster, one_per_node) == pytest.approx(10e-6 + 0.5 * size / 20e9)
    assert seconds("all_gather", size, cluster, one_per_node, 4) == pytest.approx(10e-6 + 0.5 * size / 20e9)
    assert seconds("all_gather", size, cluster, one_per_node, 8) == pytest.approx(10e-6 + 0.5 * size / 10e9)
    # A node of 8 hosts no more than 8 groups of one rank each, or one group of 8.
    assert seconds("all_gather", size, cluster, one_per_node, 64) == seconds(
        "all_gather", size, cluster, one_per_node, 8
    )
    assert seconds("all_gather", size, cluster, cluster.slots, 8) == seconds("all_gather", size, cluster, cluster.slots)


def test_nics_behind_a_slow_host_link() -> None:
    cluster = cluster_of(nodes_of(2, 1, host=link("host", 5, 4)))
    assert seconds("send_recv", 10**9, cluster, cluster.slots) == pytest.approx(10e-6 + 0.2)


def test_oversubscription_thins_the_fabric_between_pods() -> None:
    size = 10**9
    even = cluster_of(nodes_of(4, 1), oversubscription=2.0)
    assert seconds("send_recv", size, even, even.slots[:2]) == pytest.approx(10e-6 + size / 10e9)
    pods = cluster_of(nodes_of(4, 1), oversubscription=2.0, pods=2)
    assert seconds("send_recv", size, pods, pods.slots[:2]) == pytest.approx(10e-6 + size / 20e9)
    # One message alone has the pod's uplinks, as wide as one of its two NICs, to itself; two share them.
    assert seconds("send_recv", size, pods, pods.slots[1:3]) == pytest.approx(10e-6 + size / 20e9)
    both = time_stage_transfer(pods, pods.slots[:2], pods.slots[2:], 2 * size, to_tp=1)
    assert both.send_s == pytest.approx(10e-6 + size / 10e9)


def test_over_sites_the_thin_link_rules_and_is_shared() -> None:
    cluster = two_sites()
    pair = (cluster.slots[0], cluster.slots[4])
    assert seconds("send_recv", 10**9, cluster, pair) == pytest.approx(5e-3 + 0.8)
    assert seconds("send_recv", 10**9, cluster, pair, 4) == pytest.approx(5e-3 + 3.2)
    wide = two_sites(gigabytes_per_s=1000)
    assert seconds("send_recv", 10**9, wide, pair) == pytest.approx(5e-3 + 1 / 20)


def test_a_ring_through_three_sites_passes_the_links_that_it_has() -> None:
    """In the order of its ranks; and where two sites have no link of their own, twice over that of the third."""
    sites = tuple(Site(name=name, nodes=(nodes_of(1, 1),), fabric_link=NIC) for name in "abc")

    def wan(one: str, other: str, rate: float) -> SiteLink:
        return SiteLink(between=(one, other), bandwidth_bytes_per_s=rate, latency_s=1e-3)

    links = (wan("a", "b", 1e9), wan("b", "c", 2e9), wan("c", "a", 4e9))
    cluster = Cluster(text="test", sites=sites, site_links=links)
    (level,) = describe_group(cluster, cluster.slots).levels
    assert (level.kind, level.link, level.bandwidth_bytes_per_s, level.members) == ("site", "a-b", 1e9, 3)
    chain = replace(cluster, site_links=links[1:])
    (level,) = describe_group(chain, chain.slots).levels
    assert (level.link, level.bandwidth_bytes_per_s, level.latency_s) == ("b-c", 2e9, 2e-3)
    (level,) = describe_group(chain, chain.slots[:2]).levels
    assert (level.link, level.bandwidth_bytes_per_s, level.latency_s) == ("b-c", 2e9, 2e-3)


def test_mixed_devices_go_at_the_slowest_links_pace() -> None:
    slow = nodes_of(1, 4, island=link("slow", 50, 3), nic=link("slow nic", 5, 30))
    cluster = cluster_of(nodes_of(1, 4), slow)
    levels = describe_group(cluster, cluster.slots).levels
    assert [(level.link, level.bandwidth_bytes_per_s) for level in levels] == [("slow", 50e9), ("slow nic", 20e9)]
    assert levels[1].latency_s == pytest.approx(30e-6)


def test_misuse() -> None:
    cluster = cluster_of(nodes_of(1, 4))
    group = describe_group(cluster, cluster.slots)
    with pytest.raises(ValueError, match="4 ranks, expected 2"):
        time_collective("send_recv", 1, group)
    with pytest.raises(ValueError, match="-1 bytes"):
        time_collective("all_reduce", -1, group)
    with pytest.raises(ValueError, match="0 groups"):
        time_collective("all_reduce", 1, group, concurrent_groups=0)


@pytest.mark.parametrize(("nodes", "devices", "island_size", "nics"), [(1, 8, 2, 8), (4, 4, 4, 2), (3, 8, 4, 8)])
def test_all_to_all_carries_what_counting_every_message_gives(
    nodes: int, devices: int, island_size: int, nics: int
) -> None:
    """Bytes out of each device, island and node by enumeration of all pairs, over that level's bandwidth."""
    cluster = cluster_of(nodes_of(nodes, devices, island_size=island_size, nics=nics))
    slots, size = cluster.slots, 10**12
    out: Counter[tuple[object, ...]] = Counter()
    for a, b in permutations(slots, 2):
        if a.node != b.node:
            out["fabric", a.node] += 1
        elif a.index // island_size != b.index // island_size:
            out["host", a.node, a.index // island_size] += 1
        else:
            out["island", a.node, a.index] += 1
    rates = {"island": 200e9, "host": 25e9, "fabric": min(nics * 20e9, devices * 25e9)}
    busiest = {kind: max((n for key, n in out.items() if key[0] == kind), default=0) for kind in rates}
    expected = sum(busiest[kind] * size / len(slots) / rate for kind, rate in rates.items())
    assert seconds("all_to_all", size, cluster, slots) == pytest.approx(expected, rel=1e-3)


# Properties

sizes = st.floats(0, 1e11)
counts = st.sampled_from([1, 2, 3, 4, 8, 16])
rates = st.floats(0.1, 1000)
ops = st.sampled_from(GROUP_OPS)


@given(op=ops, small=sizes, more=sizes, nodes=counts, devices=counts, nics=counts, groups=st.integers(1, 20))
def test_more_bytes_are_never_faster_and_time_is_continuous(
    op: CollectiveOp, small: float, more: float, nodes: int, devices: int, nics: int, groups: int
) -> None:
    cluster = cluster_of(nodes_of(nodes, devices, island_size=devices // 2 if devices % 2 == 0 else devices, nics=nics))
    less = seconds(op, small, cluster, cluster.slots, groups)
    assert seconds(op, small + more, cluster, cluster.slots, groups) >= less
    assert seconds(op, small * (1 + 1e-9), cluster, cluster.slots, groups) == pytest.approx(less, rel=1e-8)


@given(op=ops, size=sizes, nodes=counts, devices=counts, factor=st.floats(1, 100), which=st.integers(0, 4), start=rates)
def test_more_bandwidth_is_never_slower(
    op: CollectiveOp, size: float, nodes: int, devices: int, factor: float, which: int, start: float
) -> None:
    def cluster(by: float) -> Cluster:
        faster = [link(name, start * (by if which == i else 1), i) for i, name in enumerate(("island", "host", "nic"))]
        return cluster_of(
            nodes_of(
                nodes,
                devices,
                island=faster[0],
                host=faster[1],
                nic=faster[2],
                island_size=devices // 2 if devices % 2 == 0 else devices,
                nics=max(1, devices // 2) * (2 if which == 3 and by > 1 else 1),
            ),
            oversubscription=200 / (by if which == 4 else 1),
        )

    before, after = cluster(1), cluster(factor)
    assert seconds(op, size, after, after.slots) <= seconds(op, size, before, before.slots) * (1 + 1e-9)


@given(
    op=ops,
    size=sizes,
    nodes=st.sampled_from([2, 3, 4, 8]),
    devices=counts,
    island_rate=rates,
    share=st.floats(0.01, 1),
    latency=st.floats(0, 20),
    extra_latency=st.floats(0, 20),
    nics=counts,
)
def test_a_group_in_one_island_is_never_slower_than_over_nodes(
    op: CollectiveOp,
    size: float,
    nodes: int,
    devices: int,
    island_rate: float,
    share: float,
    latency: float,
    extra_latency: float,
    nics: int,
) -> None:
    """For NICs that are neither faster per rank nor quicker than the island's links."""
    island = link("island", island_rate, latency)
    nic = link("nic", island_rate * share, latency + extra_latency)
    apart = cluster_of(nodes_of(nodes, devices, island=island, nic=nic, nics=nics))
    together = cluster_of(nodes_of(1, nodes * devices, island=island, nic=nic))
    inside = seconds(op, size, together, together.slots)
    assert inside <= seconds(op, size, apart, apart.slots) * (1 + 1e-9)


@given(op=ops, size=sizes, groups=st.integers(1, 64), more=st.integers(0, 64))
def test_more_groups_are_never_faster(op: CollectiveOp, size: float, groups: int, more: int) -> None:
    cluster = cluster_of(nodes_of(4, 8, nics=2))
    slots = cluster.slots[::4]
    assert seconds(op, size, cluster, slots, groups + more) >= seconds(op, size, cluster, slots, groups)


# Tables

CLUSTER = cluster_of(nodes_of(4, 8))


def table_of(
    op: CollectiveOp,
    ranks: int,
    times: dict[int, float],
    *,
    name: str = "island",
    nodes: int = 1,
    provenance: Literal["measured", "modelled"] = "measured",
) -> LinkTable:
    return make_table(
        link=name,
        op=op,
        ranks=ranks,
        nodes=nodes,
        samples={size: [t] for size, t in times.items()},
        source="test",
        provenance=provenance,
    )


def island_group(ranks: int) -> Group:
    return describe_group(CLUSTER, CLUSTER.slots[:ranks])


def test_the_table_of_the_group_wins_exactly() -> None:
    table = table_of("all_reduce", 8, {1000: 1e-3, 10_000: 2e-3})
    others = (table_of("all_reduce", 4, {1000: 5.0}), table_of("all_gather", 8, {1000: 6.0}))
    time = time_collective("all_reduce", 1000, island_group(8), tables=(*others, table))
    assert (time.seconds, time.provenance) == (1e-3, "measured")
    assert "all_reduce over island, 8 ranks" in time.how
    line = time_collective("all_reduce", 5000, island_group(8), tables=(table,), method="alpha-beta")
    assert line.seconds == table.alpha_s + 5000 * table.beta_s_per_byte
    derived = replace(table, provenance="modelled")
    assert time_collective("all_reduce", 1000, island_group(8), tables=(derived,)).provenance == "modelled"
    both = time_collective("all_reduce", 1000, island_group(8), tables=(replace(derived, points=((9, 9.0),)), table))
    assert both.seconds == 1e-3


@pytest.mark.parametrize(
    ("size", "provenance"),
    [
        (4095, "modelled"),
        (4096, "measured"),
        (5000, "measured"),
        (8192, "measured"),
        (8193, "modelled"),
        (2**34, "modelled"),
    ],
)
def test_what_a_table_extrapolates_is_not_measured(size: int, provenance: str) -> None:
    table = table_of("all_reduce", 8, {4096: 1e-5, 8192: 2e-5})
    time = time_collective("all_reduce", size, island_group(8), tables=(table,))
    assert time.provenance == provenance
    assert ("extrapolated" in time.how) == (provenance == "modelled")
    assert time.table_ids == (table.id,)


def test_other_ranks_are_rescaled_by_the_ring_formula() -> None:
    alpha, beta = 1e-5, 1e-9
    table = table_of("all_reduce", 4, {size: alpha + beta * size for size in (10**4, 10**6, 10**8)})
    time = time_collective("all_reduce", 10**8, island_group(8), tables=(table,))
    assert time.seconds == pytest.approx(7 / 3 * alpha + 1.75 / 1.5 * beta * 10**8, rel=1e-6)
    assert time.provenance == "modelled"
    assert "4 ranks" in time.how
    assert "rescaled by the ring formula" in time.how
    nearer = table_of("all_reduce", 6, {1000: 1.0})
    assert "6 ranks" in time_collective("all_reduce", 9, island_group(8), tables=(table, nearer)).how


def test_another_ring_op_is_rescaled_where_the_op_has_no_table() -> None:
    table = table_of("all_reduce", 8, {size: 1e-5 + 1e-9 * size for size in (10**4, 10**6, 10**8)})
    halves: tuple[CollectiveOp, ...] = ("all_gather", "reduce_scatter")
    for op in halves:
        time = time_collective(op, 10**6, island_group(8), tables=(table,))
        assert time.seconds == pytest.approx((1e-5 + 1e-3) / 2, rel=1e-6)
        assert time.provenance == "modelled"
    others: tuple[tuple[CollectiveOp, int], ...] = (("all_to_all", 8), ("send_recv", 2))
    for op, ranks in others:
        time = time_collective(op, 10**6, island_group(ranks), tables=(table,))
        assert time == time_collective(op, 10**6, island_group(ranks))


def test_tables_of_other_places_are_left_alone() -> None:
    group = describe_group(CLUSTER, CLUSTER.slots[:16])
    elsewhere = (
        table_of("all_reduce", 16, {1000: 1.0}, name="other"),
        table_of("all_reduce", 16, {1000: 1.0}),  # inside an island
        table_of("all_reduce", 16, {1000: 1.0}, name="nic", nodes=16),  # one rank a node has one NIC, not eight
    )
    assert time_collective("all_reduce", 1000, group, tables=elsewhere) == time_collective("all_reduce", 1000, group)


def test_tables_over_nodes() -> None:
    group = describe_group(CLUSTER, CLUSTER.slots)
    table = table_of("all_reduce", 32, {1000: 1e-3, 10**9: 1.0}, name="nic", nodes=4)
    assert time_collective("all_reduce", 1000, group, tables=(table,)).provenance == "measured"
    two = table_of("all_reduce", 16, {1000: 1e-3, 10**9: 1.0}, name="nic", nodes=2)
    time = time_collective("all_reduce", 10**9, group, tables=(two,))
    assert time.provenance == "modelled"
    assert time.seconds == pytest.approx(31 / 32 / (15 / 16), rel=0.01)
    # Eight groups of one rank per node share eight NICs and lose nothing; with four NICs each has half as much.
    strided, few = CLUSTER.slots[::8], cluster_of(nodes_of(4, 8, nics=4))
    lone = table_of("all_gather", 4, {1000: 1e-5, 10**9: 1.0}, name="nic", nodes=4)
    whole = time_collective("all_gather", 10**9, describe_group(CLUSTER, strided), tables=(lone,), concurrent_groups=8)
    half = time_collective("all_gather", 10**9, describe_group(few, strided), tables=(lone,), concurrent_groups=8)
    assert (whole.seconds, whole.provenance) == (1.0, "measured")
    assert half.seconds == pytest.approx(2.0, rel=1e-3)
    assert half.provenance == "modelled"


def test_nodes_with_different_numbers_of_ranks_take_the_table_of_as_many() -> None:
    """12 ranks as 8 and 4: the table of 12 on two nodes counts, but is not said to be measured; no other does."""
    group = describe_group(CLUSTER, CLUSTER.slots[:12])
    assert not group.even
    table = table_of("all_reduce", 12, {1000: 1e-3, 10**9: 7.0}, name="nic", nodes=2)
    time = time_collective("all_reduce", 10**9, group, tables=(table,))
    assert time.seconds == pytest.approx(7.0)
    assert (time.provenance, time.table_ids) == ("modelled", (table.id,))
    for ranks, nodes in ((16, 2), (12, 3), (8, 2)):
        other = table_of("all_reduce", ranks, {1000: 1e-3, 10**9: 7.0}, name="nic", nodes=nodes)
        assert not time_collective("all_reduce", 10**9, group, tables=(other,)).table_ids


@given(
    times=st.dictionaries(st.integers(1, 2**32), st.floats(1e-6, 1), min_size=1, max_size=6),
    small=sizes,
    more=sizes,
    ranks=st.integers(2, 8),
    op=st.sampled_from(("all_reduce", "all_gather")),
)
def test_rescaled_tables_never_fall_with_bytes(
    times: dict[int, float], small: float, more: float, ranks: int, op: CollectiveOp
) -> None:
    tables = (table_of("all_reduce", 4, times),)
    less = time_collective(op, small, island_group(ranks), tables=tables).seconds
    assert time_collective(op, small + more, island_group(ranks), tables=tables).seconds >= less * (1 - 1e-9)


# Stages


@given(senders=st.integers(1, 24), receivers=st.integers(1, 24))
def test_overlaps_of_equal_intervals(senders: int, receivers: int) -> None:
    def interval(index: int, count: int) -> tuple[Fraction, Fraction]:
        return Fraction(index, count), Fraction(index + 1, count)

    expected = {}
    for i in range(senders):
        for j in range(receivers):
            (a, b), (c, d) = interval(i, senders), interval(j, receivers)
            if min(b, d) > max(a, c):
                expected[i, j] = float(min(b, d) - max(a, c))
    assert {(i, j): share for i, j, share in overlaps(senders, receivers)} == pytest.approx(expected)


def transfer(cluster: Cluster, senders: slice, receivers: slice, size: float, to_tp: int) -> StageTransfer:
    return time_stage_transfer(cluster, cluster.slots[senders], cluster.slots[receivers], size, to_tp=to_tp)


def test_replicas_of_equal_number_send_their_samples_to_each_other() -> None:
    found = transfer(CLUSTER, slice(0, 4), slice(4, 8), 4e9, 1)
    assert found.send_s == pytest.approx(2e-6 + 1e9 / 200e9)
    assert (found.gather_s, found.total_s, found.provenance) == (0, found.send_s, "modelled")


def test_tensor_parallel_ranks_each_send_a_part_and_the_receivers_gather() -> None:
    """8 to 8 over nodes: each rank has its own NIC and sends an eighth; the gather stays on the island."""
    found = transfer(CLUSTER, slice(0, 8), slice(8, 16), 8e9, 8)
    assert found.send_s == pytest.approx(10e-6 + 1e9 / 20e9)
    assert found.gather_s == pytest.approx(7 * 2e-6 + 7e9 / 200e9)
    assert found.total_s == found.send_s + found.gather_s
    assert "message over nic" in found.how
    halves = transfer(CLUSTER, slice(0, 8), slice(8, 16), 8e9, 4)  # two replicas gather half of it each
    assert halves.gather_s == pytest.approx(3 * 2e-6 + 0.75 * 4e9 / 200e9)


def test_a_sequence_parallel_receiver_does_not_gather_here() -> None:
    found = time_stage_transfer(CLUSTER, CLUSTER.slots[:8], CLUSTER.slots[8:16], 8e9, to_tp=8, gather=False)
    assert (found.gather_s, found.send_s) == (0, transfer(CLUSTER, slice(0, 8), slice(8, 16), 8e9, 8).send_s)


def test_unequal_stages_cut_the_samples_again() -> None:
    """Two senders, three receivers: the middle one hears from both, and each sender has two messages."""
    found = transfer(CLUSTER, slice(0, 2), slice(2, 5), 6e9, 1)
    assert found.send_s == pytest.approx(2 * 2e-6 + (2e9 + 1e9) / 200e9)
    one = transfer(CLUSTER, slice(0, 1), slice(1, 5), 4e9, 4)
    assert one.send_s == pytest.approx(4 * 2e-6 + 4e9 / 200e9)


def test_senders_of_a_node_share_its_nics() -> None:
    cluster = cluster_of(nodes_of(4, 8, nics=2))
    assert transfer(cluster, slice(0, 8), slice(8, 16), 8e9, 1).send_s == pytest.approx(10e-6 + 1e9 / 5e9)
    assert transfer(cluster, slice(0, 2), slice(8, 10), 2e9, 1).send_s == pytest.approx(10e-6 + 1e9 / 20e9)
    # Both NICs of the receiving node are shared by what comes from two nodes.
    slots = cluster.slots
    fan_in = time_stage_transfer(cluster, slots[6:10], slots[16:20], 4e9, to_tp=1)
    assert fan_in.send_s == pytest.approx(10e-6 + 1e9 / 10e9)


def test_many_that_send_to_few_take_as_long_as_the_bytes_through_the_fullest_nic() -> None:
    """Four ranks of a node to one of another, one NIC a node: the bytes pass it once, whoever sends them."""
    cluster = cluster_of(nodes_of(2, 4, nics=1))
    fan_in = transfer(cluster, slice(0, 4), slice(4, 5), 220e6, 1)
    assert fan_in.send_s == pytest.approx(4 * 10e-6 + 220e6 / 20e9)
    fan_out = transfer(cluster, slice(0, 1), slice(4, 8), 220e6, 1)
    assert fan_out.send_s == pytest.approx(4 * 10e-6 + 220e6 / 20e9)
    across = transfer(cluster, slice(0, 4), slice(4, 8), 220e6, 1)
    assert across.send_s == pytest.approx(10e-6 + 220e6 / 20e9)
    assert "4 messages share what they pass" in across.how


def test_messages_inside_an_island_that_spans_nodes_pass_no_nic() -> None:
    cluster = cluster_of(nodes_of(4, 4, island_size=16, nics=1))
    found = transfer(cluster, slice(0, 4), slice(4, 8), 4e9, 1)
    assert found.send_s == pytest.approx(2e-6 + 1e9 / 200e9)


def test_messages_to_another_site_share_their_nodes_nics_too() -> None:
    wide = two_sites(gigabytes_per_s=1000)
    thin = tuple(replace(site, nodes=(replace(site.nodes[0], nics=1),)) for site in wide.sites)
    found = transfer(replace(wide, sites=thin), slice(0, 4), slice(4, 8), 4e9, 1)
    assert found.send_s == pytest.approx(5e-3 + 4e9 / 20e9)


def test_sites_share_the_link_between_them() -> None:
    cluster = two_sites()
    found = transfer(cluster, slice(0, 4), slice(4, 8), 4e9, 1)
    assert found.send_s == pytest.approx(5e-3 + 1e9 / (1.25e9 / 4))


def test_transfers_take_measured_tables() -> None:
    tables = (table_of("send_recv", 2, {10**5: 0.125, 10**6: 0.25}), table_of("all_gather", 2, {10**6: 0.5}))
    slots = CLUSTER.slots
    found = time_stage_transfer(CLUSTER, slots[:2], slots[2:4], 2e6, to_tp=1, tables=tables)
    assert (found.total_s, found.provenance) == (0.25, "measured")
    found = time_stage_transfer(CLUSTER, slots[:1], slots[1:3], 1e6, to_tp=2, tables=tables)
    assert found.gather_s == 0.5
    assert found.provenance == "measured"
    assert time_stage_transfer(CLUSTER, slots[:2], slots[2:4], 2e6, to_tp=2, tables=tables[:1]).provenance == "mixed"


def test_a_stage_on_the_same_devices_sends_nothing() -> None:
    assert transfer(CLUSTER, slice(0, 4), slice(0, 4), 4e9, 1).total_s == 0
    with pytest.raises(ValueError, match="expected to_tp to divide the receivers"):
        transfer(CLUSTER, slice(0, 4), slice(4, 8), 4e9, 3)


@given(
    size=sizes,
    senders=st.sampled_from([1, 2, 4, 6, 8, 16]),
    dp=st.sampled_from([1, 2, 3, 4]),
    tp=st.sampled_from([1, 2, 4]),
    factor=st.floats(1, 50),
)
def test_faster_links_and_fewer_bytes_never_slow_a_transfer(
    size: float, senders: int, dp: int, tp: int, factor: float
) -> None:
    def total(by: float, amount: float) -> float:
        quick = [link(name, rate * by, 5) for name, rate in (("island", 100), ("host", 20), ("nic", 10))]
        cluster = cluster_of(nodes_of(4, 8, island=quick[0], host=quick[1], nic=quick[2], island_size=4, nics=2))
        slots = cluster.slots
        end = senders + dp * tp
        return time_stage_transfer(cluster, slots[:senders], slots[senders:end], amount, to_tp=tp).total_s

    assert total(factor, size) <= total(1, size) * (1 + 1e-9)
    assert total(1, size / 2) <= total(1, size)


# Published measurements

COMM = Path(__file__).parents[4] / "shared" / "data" / "comm.csv"
BIG = 64 * MIB

published = pytest.mark.skipif(not COMM.exists(), reason="the published measurements are not beside the project")


def rows_of(**wanted: str) -> list[dict[str, str]]:
    with COMM.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())]


def relative_errors(rows: list[dict[str, str]], cluster: Cluster) -> list[float]:
    """(modelled - published) / published bus time of the rows' all-reduce on the first ranks of `cluster`."""
    errors = []
    for row in rows:
        ranks, size = int(row["gpus"]), float(row["bytes"] or 2**32)
        measured_s = 2 * (ranks - 1) / ranks * size / (float(row["busbw_gbps"]) * 1e9)
        errors.append(seconds("all_reduce", size, cluster, cluster.slots[:ranks]) / measured_s - 1)
    return errors


@published
def test_eight_a100_under_nvswitch() -> None:
    """2 to 8 ranks: large messages (64 MiB and more) within 25% each, all sizes within 15% on average."""
    cluster = cluster_of(nodes_of(1, 8, island=link("nvswitch3", 300, 11, efficiency=0.78)))
    rows = [row for row in rows_of(gpu="A100", nodes="1", op="all_reduce") if row["bytes"] and row["time_us"]]
    assert len(rows) > 150
    big = relative_errors([row for row in rows if int(row["bytes"]) >= BIG], cluster)
    assert max(map(abs, big)) < 0.25
    assert statistics.mean(map(abs, relative_errors(rows, cluster))) < 0.15


@published
@pytest.mark.parametrize(
    ("identity", "nodes", "nics", "nic_rate", "island_rate"),
    [
        ("issues/175", 2, 4, 25, 300),  # A100, 4 x HDR
        ("issues/119", 3, 4, 25, 300),
        ("issues/100", 2, 4, 25, 300),
        ("issues/29", 4, 1, 12.5, 150),  # V100, one EDR
    ],
)
def test_all_reduce_over_nodes(identity: str, nodes: int, nics: int, nic_rate: float, island_rate: float) -> None:
    nic = link("nic", nic_rate, 10, efficiency=0.92)
    island = link("nvlink", island_rate, 10, efficiency=0.78)
    cluster = cluster_of(nodes_of(nodes, 8, nic=nic, nics=nics, island=island, host=link("host", 31, 5)))
    rows = [row for row in rows_of(nodes=str(nodes)) if row["path_or_url"].endswith(f"nccl-tests/{identity}")]
    assert rows
    assert max(map(abs, relative_errors(rows, cluster))) < 0.25


@published
def test_all_reduce_on_32_b200() -> None:
    nic, island = link("efa", 50, 20, efficiency=0.95), link("nvswitch5", 900, 8, efficiency=0.94)
    cluster = cluster_of(nodes_of(4, 8, nic=nic, island=island, host=link("host", 63, 5)))
    rows = [row for row in rows_of(gpu="B200", nodes="4", op="all_reduce") if int(row["bytes"]) >= 2**30]
    assert max(map(abs, relative_errors(rows, cluster))) < 0.15
