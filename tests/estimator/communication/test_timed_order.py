"""Seats by time: phases walked as they are written down, the best order beside all orders, uneven nodes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.communication.collectives import time_collective
from estimator.communication.groups import describe_group
from estimator.communication.halving_doubling import ground_of
from estimator.communication.phases import ALGORITHMS, Algorithm, PhasedOp, collective_phases
from estimator.communication.rank_order import best_order, node_order
from estimator.communication.timed_order import fastest_orders
from estimator.communication.walking import Ground, Node, Step, walk
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from tests.oracles.timed_order_oracle import least_s, walked_s

SIZES = (0.0, 1.0, 1e3, 1e6)
FORMS: list[tuple[Algorithm, PhasedOp]] = [(name, op) for name, ops in ALGORITHMS.items() for op in ops]


def ground(rng: Random, most: int = 9) -> Ground:
    """Two to four nodes, one NIC each or one for each rank; what is inside quicker, or hardly."""
    counts = [rng.randint(1, 4) for _ in range(rng.randint(2, 4))]
    while sum(counts) > most:
        counts.remove(max(counts))
    by_rank = rng.random() < 0.5
    return Ground(
        nodes=tuple(Node(ranks=count, bytes_per_s=1e3 * (count if by_rank else 1)) for count in counts),
        latency_s=rng.choice((0.0, 0.01, 1.0)),
        inside=(Step(ranks_inside=1, latency_s=rng.choice((0.0, 0.01)), bytes_per_s=rng.choice((1.5e3, 1e5))),),
    )


@pytest.mark.parametrize("seed", range(60))
def test_no_order_of_up_to_nine_ranks_is_faster(seed: int) -> None:
    rng = Random(seed)
    where, (algorithm, op) = ground(rng), rng.choice([form for form in FORMS if form[0] != "exchange"])
    counts = [node.ranks for node in where.nodes]
    phases = collective_phases(algorithm, op, sum(counts))
    ways = fastest_orders(algorithm, op, where)
    for way in ways:
        assert [way.seats.count(node) for node in range(len(counts))] == counts
        assert way.line == walk(phases, way.seats, where)
        assert way.seconds(5.0) == pytest.approx(walked_s(phases, way.seats, where, 5.0))
    for size in SIZES:
        assert min(way.seconds(size) for way in ways) == pytest.approx(least_s(phases, where, size))


@pytest.mark.parametrize("counts", [(5, 4, 4, 3), (4, 4, 3, 1), (3, 3, 3, 3, 2, 2), (5, 3, 2, 2, 1, 1, 1), (8, 5, 3)])
def test_up_to_sixteen_it_is_never_slower_than_orders_drawn(counts: tuple[int, ...]) -> None:
    rng, ranks = Random(0), sum(counts)
    where = Ground(nodes=tuple(Node(ranks=count, bytes_per_s=1.0) for count in counts), latency_s=0.1)
    where = Ground(nodes=where.nodes, latency_s=0.1, inside=(Step(ranks_inside=1, latency_s=0.0, bytes_per_s=50.0),))
    phases = collective_phases("halving-doubling", "all_reduce", ranks)
    ways = fastest_orders("halving-doubling", "all_reduce", where)
    for _ in range(300):
        seats = list(best_order("halving-doubling", counts))
        for _ in range(rng.randint(0, 3)):
            a, b = rng.sample(range(ranks), 2)
            seats[a], seats[b] = seats[b], seats[a]
        latency_s, seconds = walk(phases, tuple(seats), where)
        for size in SIZES:
            assert min(way.seconds(size) for way in ways) <= (latency_s + size * seconds) * (1 + 1e-9)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=8), st.sampled_from(["ring", "tree", "halving-doubling"]))
def test_beyond_sixteen_it_is_never_slower_than_the_order_of_the_nodes(counts: list[int], algorithm: Algorithm) -> None:
    counts = [*counts, 16]
    where = Ground(
        nodes=tuple(Node(ranks=count, bytes_per_s=1.0) for count in counts),
        latency_s=0.1,
        inside=(
            Step(ranks_inside=1, latency_s=0.0, bytes_per_s=50.0),
            Step(ranks_inside=4, latency_s=0.05, bytes_per_s=20.0),
        ),
    )
    phases = collective_phases(algorithm, "all_reduce", sum(counts))
    ways = fastest_orders(algorithm, "all_reduce", where)
    latency_s, seconds = walk(phases, node_order(counts), where, None)
    if algorithm != "halving-doubling":  # Else the ranks of a node fill its islands with partners together.
        assert min(way.seconds(1e6) for way in ways) <= (latency_s + 1e6 * seconds) * (1 + 1e-9)
    for way in ways:
        assert [way.seats.count(node) for node in range(len(counts))] == counts


def partly(text: str, counts: tuple[int, ...]) -> tuple[Cluster, list[int]]:
    """The places of so many devices of each node of a cluster."""
    cluster = load_cluster(text)
    size = cluster.sites[0].nodes[0].devices
    return cluster, [node * size + index for node, count in enumerate(counts) for index in range(count)]


@pytest.mark.parametrize("counts", [(3, 1), (4, 2, 1), (2, 2, 3)])
def test_uneven_nodes_of_a_cluster_are_walked_with_the_nics_of_each(counts: tuple[int, ...]) -> None:
    """A device has a NIC: three ranks of a node send through three, the one of the other through its own."""
    cluster, places = partly("a100-80gb:3x8", counts)
    slots = [cluster.slots[place] for place in places]
    group = describe_group(cluster, slots)
    where = ground_of(group)
    assert [node.ranks for node in where.nodes] == sorted(counts, reverse=True)
    one = describe_group(cluster, [cluster.slots[0], cluster.slots[8]]).levels[-1].bandwidth_bytes_per_s
    assert [node.bytes_per_s for node in where.nodes] == pytest.approx([one * node.ranks for node in where.nodes])
    phases = collective_phases("halving-doubling", "all_reduce", sum(counts))
    startup_s = max(level.startup_s for level in group.levels)
    for size in (1e5, 1e9):
        said = time_collective("all_reduce", size, group, algorithm="halving-doubling")
        assert said.seconds == pytest.approx(startup_s + least_s(phases, where, size))
        assert said.provenance == "modelled"


def test_which_order_is_best_depends_on_the_bytes() -> None:
    """12 ranks on 4 + 4 + 3 + 1, a NIC each: few steps over the network, or short ones."""
    nodes = tuple(Node(ranks=count, bytes_per_s=1e6) for count in (4, 4, 3, 1))
    where = Ground(nodes=nodes, latency_s=1e-3, inside=(Step(ranks_inside=1, latency_s=2e-4, bytes_per_s=2e7),))
    few, short = fastest_orders("halving-doubling", "all_reduce", where)
    assert few.seconds(1.0) < short.seconds(1.0)
    assert few.seconds(1e6) > 1.8 * short.seconds(1e6)


def test_alike_groups_have_the_same_boxes_and_even_ones_none() -> None:
    cluster = load_cluster("a100-80gb:4x8")
    even = describe_group(cluster, cluster.slots)
    uneven, mirrored = (
        describe_group(cluster, [cluster.slots[place] for place in places])
        for places in ([0, 1, 2, 8], [16, 24, 25, 31])
    )
    assert even.boxes == ()
    assert uneven == mirrored
    assert [(boxes.ranks, boxes.count) for boxes in uneven.boxes] == [(3, 1), (1, 1)]
