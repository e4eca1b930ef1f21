"""What a collective puts on a fabric: bytes as the closed forms have them, NICs, rails, ports, and the pace alone."""

from __future__ import annotations

import random
from collections import Counter
from typing import cast

import numpy as np
import pytest

from estimator.communication.collectives import describe_group, time_collective
from estimator.communication.phases import Algorithm, PhasedOp, bytes_across, bytes_between, collective_phases
from estimator.network.connections import Model, loads_of, playing_of, transfer_of
from estimator.network.fabric import Fabric, Nccl, Seat, fabric_of
from estimator.network.queue_pairs import connections_of, source_ports
from estimator.network.rates import fair_paces, make_ways
from estimator.network.steps import Transfer
from estimator.network.traffic import Exchange, Span, Traffic
from profiles.cluster import Cluster
from profiles.records import replace
from profiles.routing import Routing
from profiles.vocabulary import CollectiveOp
from tests.network_examples import cluster_of
from tests.seeds import seeds

CLOS2 = {"kind": "clos2", "leaves": 4, "spines": 4, "cables": 8}
"""Of 16 nodes of 8 NICs, with as many cables up as down."""
RINGS: tuple[CollectiveOp, ...] = ("all_reduce", "all_gather", "reduce_scatter")


def in_order(cluster: Cluster, ranks: int) -> list[Seat]:
    return [Seat(node=slot.node, device=slot.index) for slot in cluster.slots[:ranks]]


def exchange_of(op: CollectiveOp, *groups: tuple[int, ...], size_bytes: float = 1e9, alone_s: float = 1.0) -> Exchange:
    return Exchange(axis="dp", op=op, size_bytes=size_bytes, groups=groups, alone_s=alone_s)


def out_of_nodes(transfer: Transfer, fabric: Fabric) -> float:
    """Bytes that all movers put on links out of nodes."""
    links = fabric.links
    return sum(
        rate * mover.seconds
        for mover in transfer.movers
        for link, rate in mover.way
        if links.ends[link, 0] < links.nodes and link % 2 == 0
    )


@pytest.mark.parametrize("seed", seeds(100))
def test_bytes_between_nodes_are_those_of_the_phases(seed: int) -> None:
    """Groups of any numbers of ranks a node, in the order of the nodes, which need not be that of the cluster."""
    rng = random.Random(seed)
    fabric = fabric_of(cluster_of(CLOS2), routing=Routing(kind=rng.choice(["ecmp", "spray", "infiniband"])))
    nodes = rng.sample(range(16), rng.randint(1, 6))
    seats = [Seat(node=node, device=device) for node in nodes for device in rng.sample(range(8), rng.randint(1, 8))]
    places, group = [seat.node for seat in seats], tuple(range(len(seats)))
    models: tuple[Model, ...] = ("collective", "flow")
    for op in (*RINGS, "all_to_all"):
        exchange = exchange_of(op, group)
        algorithm: Algorithm = "exchange" if op == "all_to_all" else "ring"
        phases = collective_phases(algorithm, cast("PhasedOp", op), len(group), exchange.size_bytes)
        for model in models:
            transfer = transfer_of(exchange, seats, fabric, model=model)
            assert out_of_nodes(transfer, fabric) == pytest.approx(bytes_across(phases, places), rel=1e-9)


@pytest.mark.parametrize("nodes", [2, 3, 5, 8, 16])
def test_trees_join_nodes_as_their_phases_do(nodes: int) -> None:
    cluster = cluster_of(CLOS2)
    fabric, group = fabric_of(cluster), tuple(range(nodes * 8))
    exchange = replace(exchange_of("all_reduce", group), algorithm="tree")
    pairs = connections_of(exchange, in_order(cluster, nodes * 8), fabric)
    of = fabric.links.node_of_nic
    sent: Counter[tuple[int, int]] = Counter()
    for source, destination, size in zip(
        of[pairs.flows.sources].tolist(), of[pairs.flows.destinations].tolist(), pairs.sizes.tolist(), strict=True
    ):
        sent[source, destination] += size
    assert sent == pytest.approx(bytes_between(collective_phases("tree", "all_reduce", nodes, 1e9)))


def test_what_stays_in_a_node_has_no_way() -> None:
    cluster = cluster_of(CLOS2)
    seats = in_order(cluster, 16)
    inside = transfer_of(exchange_of("all_reduce", (0, 1, 2), (8, 9)), seats, fabric_of(cluster))
    assert [(mover.way, mover.seconds) for mover in inside.movers] == [((), 1.0)]
    mixed = transfer_of(exchange_of("all_reduce", (0, 1), (2, 8)), seats, fabric_of(cluster))
    assert [bool(mover.way) for mover in mixed.movers] == [True, False]
    late = replace(exchange_of("all_reduce", (0, 8)), alone_s=0.5, latency_s=0.125, times=3)
    transfer = transfer_of(late, seats, fabric_of(cluster))
    assert (transfer.latency_s, transfer.movers[0].seconds, transfer.times) == (0.125, 0.375, 3)


def test_an_island_over_several_nodes_needs_no_network() -> None:
    island = {"device": "gb200", "devices": 4, "island": {"link": "nvlink5", "size": 16}}
    cluster = cluster_of(CLOS2, nodes=island)
    fabric, seats = fabric_of(cluster), in_order(cluster, 32)
    (inside,) = transfer_of(exchange_of("all_to_all", tuple(range(16))), seats, fabric).movers
    assert inside.way == ()
    pairs = connections_of(exchange_of("all_reduce", tuple(range(32))), seats, fabric)
    racks = fabric.box_of_node[fabric.links.node_of_nic[pairs.flows.sources]]
    assert Counter(racks.tolist()) == {0: 16, 4: 16}
    assert len(set(pairs.flows.sources.tolist())) == 32


@pytest.mark.parametrize("op", [*RINGS, "all_to_all", "send_recv"])
@pytest.mark.parametrize(("count", "stride"), [(128, 1), (16, 8), (64, 2), (4, 32)])
def test_alone_where_nothing_is_oversubscribed_the_estimate_holds(op: CollectiveOp, count: int, stride: int) -> None:
    """All groups at once reach pace 1 on links that spray, by the estimator's own time."""
    cluster = cluster_of(CLOS2)
    fabric = fabric_of(cluster, routing=Routing(kind="spray"))
    size = 2 if op == "send_recv" else count
    reach = stride * size
    groups = [tuple(range(base + i, base + i + reach, stride)) for base in range(0, 128, reach) for i in range(stride)]
    group = describe_group(cluster, [cluster.slots[rank] for rank in groups[0]])
    bytes_moved = 1e9
    alone = time_collective(op, bytes_moved, group, concurrent_groups=min(8, stride))
    exchange = exchange_of(op, *groups, size_bytes=bytes_moved, alone_s=alone.seconds)
    transfer = transfer_of(exchange, in_order(cluster, 128), fabric)
    ways = [mover.way for mover in transfer.movers if mover.way]
    if op == "send_recv" and stride < 8:
        assert ways == []  # They stay inside nodes.
        return
    paces = fair_paces(make_ways(ways, fabric.links.count), fabric.links.bytes_per_s)
    assert paces.min() >= 1 - 1e-9


def test_rings_of_a_hash_collide_where_spray_does_not() -> None:
    cluster = cluster_of(CLOS2)
    exchange = exchange_of("all_reduce", tuple(range(128)), alone_s=2 * 127 / 128 * 1e9 / 8 / 50e9 / 0.9)

    def pace(routing: Routing) -> float:
        fabric = fabric_of(cluster, routing=routing)
        (mover,) = transfer_of(exchange, in_order(cluster, 128), fabric).movers
        return float(fair_paces(make_ways([mover.way], fabric.links.count), fabric.links.bytes_per_s)[0])

    assert pace(Routing(kind="ecmp")) < 0.6 < 1 <= pace(Routing(kind="spray"))


def test_channels_keep_to_rails_and_what_crosses_them_is_handed_over() -> None:
    cluster = cluster_of({"kind": "rail", "nodes_per_pod": 16})
    fabric, seats = fabric_of(cluster), in_order(cluster, 32)
    for op, group in (("all_reduce", tuple(range(32))), ("all_to_all", tuple(range(32))), ("send_recv", (1, 13))):
        pairs = connections_of(exchange_of(cast("CollectiveOp", op), group), seats, fabric)
        assert (pairs.flows.sources % 8 == pairs.flows.destinations % 8).all()
        assert loads_of(pairs, fabric, amounts=pairs.sizes, owners=pairs.groups).links.size
    assert pairs.senders.tolist() == [5]


@pytest.mark.parametrize("split", [False, True])
def test_queue_pairs_share_their_connection(split: bool) -> None:
    cluster = cluster_of(CLOS2)
    one, four = fabric_of(cluster), fabric_of(cluster, nccl=Nccl(queue_pairs=4, split_data=split))
    exchange, seats = exchange_of("all_gather", tuple(range(64))), in_order(cluster, 64)
    single, several = connections_of(exchange, seats, one), connections_of(exchange, seats, four)
    assert (len(single), len(several)) == (64, 256)
    assert several.sizes.sum() == pytest.approx(single.sizes.sum())
    assert len(set(several.flows.ports[:4].tolist())) == 4
    movers = transfer_of(exchange, seats, four, model="flow").movers
    assert len(movers) == (64 if split else 256)
    assert out_of_nodes(transfer_of(exchange, seats, four), four) == pytest.approx(single.sizes.sum())


def test_source_ports_are_those_of_the_kernel() -> None:
    """`rdma_flow_label_to_udp_sport(rdma_calc_flow_label(lqpn, rqpn))`, written again with Python's integers."""
    sources, destinations = np.array([3, 3, 5]), np.array([5, 9, 3])
    first = {nic: int(np.random.default_rng([7, nic]).integers(2**16)) for nic in (3, 5, 9)}
    numbers = [(first[3] + 1, first[5] + 1), (first[3] + 2, first[9] + 1), (first[5] + 2, first[3] + 3)]
    expected = []
    for local, remote in numbers:
        mixed = local * remote
        mixed ^= mixed >> 20
        mixed ^= mixed >> 40
        label = mixed & 0xFFFFF
        expected.append(((label & 0x3FFF) ^ (label & 0xFC000) >> 14) | 0xC000)
    assert source_ports(sources, destinations, 7).tolist() == expected
    assert source_ports(sources, destinations, 8).tolist() != expected


def test_gpus_that_share_a_nic_meet_on_its_lanes() -> None:
    pcie = [{"devices": 2, "nics": 1, "count": 3}, {"devices": [6, 7], "nics": [], "link": "pcie5-x16"}]
    nodes = {
        "nics": {"count": 3, "link": "ib-ndr400"},
        "pcie": [pcie[0]],
        "devices": 6,
        "island": {"link": "nvlink4", "size": 6},
    }
    cluster = cluster_of(CLOS2, nodes=nodes)
    fabric = fabric_of(cluster)
    links = fabric.links
    seats = [Seat(node=node, device=device) for node in (0, 5) for device in range(8)]
    exchange = exchange_of("send_recv", (0, 8), (1, 9), (2, 10), size_bytes=8.0)
    pairs = connections_of(exchange, seats, fabric)
    loads = loads_of(pairs, fabric, amounts=pairs.sizes, owners=np.zeros(3, np.int64))
    by_name = {links.name(link): load for link, load in zip(loads.links.tolist(), loads.amounts.tolist(), strict=True)}
    assert by_name["node0/device0 -> node0/pcie0"] == by_name["node0/device1 -> node0/pcie0"] == 8
    assert (
        by_name["node0/pcie0 -> node0/nic0"]
        == by_name["node0 -> leaf0 (1)"]
        == by_name["node5/nic0 -> node5/pcie0"]
        == 16
    )
    assert by_name["node0/pcie1 -> node0/nic1"] == 8
    assert not any("root" in name for name in by_name)
    assert links.bytes_per_s[links.names.index("node0/device0") :].min() > 0


def test_a_device_under_another_pcie_switch_than_its_nic_goes_by_the_root() -> None:
    nodes = {
        "nics": {"count": 1, "link": "ib-ndr400"},
        "pcie": [{"devices": 4, "nics": 1}, {"devices": 4, "nics": 0, "link": "pcie4-x16"}],
    }
    cluster = cluster_of(CLOS2, nodes=nodes)
    fabric = fabric_of(cluster)
    seats = [Seat(node=0, device=7), Seat(node=1, device=0)]
    pairs = connections_of(exchange_of("send_recv", (0, 1)), seats, fabric)
    loads = loads_of(pairs, fabric, amounts=pairs.sizes, owners=pairs.groups)
    names = {fabric.links.name(link) for link in loads.links.tolist()}
    assert names >= {
        "node0/device7 -> node0/pcie1", "node0/pcie1 -> node0/root", "node0/root -> node0/pcie0",
        "node0/pcie0 -> node0/nic0", "node1/nic0 -> node1/pcie0", "node1/pcie0 -> node1/device0",
    }  # fmt: skip
    assert not any("node1/root" in name for name in names)


def test_a_job_s_traffic_is_played_over_its_connections() -> None:
    cluster = cluster_of(CLOS2)
    fabric, seats = fabric_of(cluster), in_order(cluster, 16)
    exchange = exchange_of("all_reduce", tuple(range(16)))
    span = Span(compute_s=0.5, exchanges=(exchange, exchange), begins_s=0.25, times=2)
    traffic = Traffic(devices=16, spans=(span, replace(span, exchanges=())), flops=1.0)
    playing = playing_of(traffic, seats, fabric, level=1)
    assert [(step.compute_s, len(step.transfers), step.begins_s, step.times) for step in playing.steps] == [
        (0.5, 2, 0.25, 2),
        (0.5, 0, 0.25, 2),
    ]
    assert playing.steps[0].transfers[0] == playing.steps[0].transfers[1]
    assert playing.level == 1
    with pytest.raises(ValueError, match="15 seats"):
        playing_of(traffic, seats[1:], fabric)
    with pytest.raises(ValueError, match="device 8 of node 0"):
        transfer_of(exchange, [Seat(node=0, device=8), *seats[1:]], fabric)
