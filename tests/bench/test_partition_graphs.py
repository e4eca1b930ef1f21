"""Partitions of graphs: beside every partition of small graphs, the ILP's bound, and what capacities leave."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.clusters.partitions.anneal import anneal
from bench.clusters.partitions.graphs import FAMILIES, Family, capacities_for, draw_graph
from bench.clusters.partitions.ilp import partition_by_ilp
from bench.clusters.partitions.multilevel import Effort, merge, partition_graph
from bench.clusters.partitions.refine import refine
from planner.many_jobs.scheduling.sites.partition import Partition, PartitionGraph, measure
from planner.many_jobs.scheduling.sites.partition_genetic import Breeding, breed_partition
from planner.many_jobs.sites.paths import Groups
from tests.seeds import examples

QUICK = Effort(starts=3, anneals=2, steps=100, combinations=6)


def least_cut(graph: PartitionGraph, capacities: Sequence[int]) -> float:
    """Of every way to give the nodes parts; infinite where none fits."""
    best = math.inf
    for parts in itertools.product(range(len(capacities)), repeat=graph.nodes):
        loads = [0] * len(capacities)
        for node, part in enumerate(parts):
            loads[part] += int(graph.loads[node])
        if all(load <= most for load, most in zip(loads, capacities, strict=True)):
            cut = sum(
                int(size)
                for (one, other), size in zip(graph.edges.tolist(), graph.traffic.tolist(), strict=True)
                if parts[one] != parts[other]
            )
            best = min(best, cut)
    return best


def small(seed: int) -> tuple[PartitionGraph, tuple[int, ...]]:
    """A graph of 5 to 8 nodes and two or three parts."""
    rng = Random(seed)
    nodes = rng.randint(5, 8)
    graph = draw_graph(rng.choice(FAMILIES), nodes, rng.randint(nodes - 1, nodes * (nodes - 1) // 2), seed)
    return graph, capacities_for(
        graph, rng.choice([(1, 1), (2, 1), (1, 1, 1), (2, 1, 1)]), rng.choice([1.05, 1.3, 1.6])
    )


def test_small_graphs_are_cut_as_by_trying_every_partition() -> None:
    same = possible = 0
    for seed in range(60):
        graph, capacities = small(seed)
        best, found = least_cut(graph, capacities), partition_graph(graph, capacities, seed=seed, effort=QUICK)
        assert found == measure(graph, found.parts, capacities)
        if found.excess == 0:
            assert found.cut >= best
        if math.isfinite(best):
            possible += 1
            same += found.excess == 0 and found.cut == best
    assert possible > 30
    assert same >= 0.95 * possible


def test_ilp_finds_the_least_cut() -> None:
    for seed in range(12):
        graph, capacities = small(seed)
        best, found = least_cut(graph, capacities), partition_by_ilp(graph, capacities, limit_s=30)
        if math.isinf(best):
            assert found.best is None
            assert math.isinf(found.lower_bound)
        else:
            assert found.proved
            assert found.best is not None
            assert found.best.excess == 0
            assert found.best.cut == best == found.lower_bound


@pytest.mark.parametrize("seed", range(3))
def test_no_method_cuts_less_than_the_ilp_proves(seed: int) -> None:
    graph = draw_graph("layered", 20, 44, seed)
    capacities = capacities_for(graph, (2, 1, 1), 1.15)
    solved = partition_by_ilp(graph, capacities, limit_s=10)
    ours = partition_graph(graph, capacities, seed=seed)
    bred = breed_partition(graph, capacities, seed=seed, breeding=Breeding(population=12, children=60))
    for found in (ours, bred):
        assert found.excess == 0
        assert found.cut >= solved.lower_bound
    assert ours.cut <= 1.05 * solved.lower_bound


def test_capacities_hold_and_seeds_repeat() -> None:
    for family in FAMILIES:
        graph = draw_graph(family, 96, 384, 5)
        capacities = capacities_for(graph)
        one, other = (partition_graph(graph, capacities, seed=3, effort=QUICK) for _ in range(2))
        assert one == other
        assert one.excess == 0
        bred = breed_partition(graph, capacities, seed=3, breeding=Breeding(population=8, children=30))
        assert one.cut < bred.cut


def test_what_does_not_fit_is_said() -> None:
    graph = PartitionGraph(loads=np.array([3, 3, 3]), edges=np.array([[0, 1], [1, 2]]), traffic=np.array([5, 1]))
    found = partition_graph(graph, (4, 4), effort=QUICK)
    assert found.excess == 2
    assert partition_by_ilp(graph, (4, 4)).best is None


def test_one_part_no_nodes_no_edges() -> None:
    graph = draw_graph("random", 9, 20, 0)
    assert partition_graph(graph, (1000,)).cut == 0
    alone = PartitionGraph(
        loads=np.array([1, 2, 1]), edges=np.zeros((0, 2), dtype=np.int64), traffic=np.zeros(0, dtype=np.int64)
    )
    assert partition_graph(alone, (2, 2), effort=QUICK).key == (0, 0)
    nothing = PartitionGraph(
        loads=np.zeros(0, dtype=np.int64),
        edges=np.zeros((0, 2), dtype=np.int64),
        traffic=np.zeros(0, dtype=np.int64),
    )
    assert partition_graph(nothing, (2, 2)) == Partition(parts=(), cut=0, excess=0)
    with pytest.raises(ValueError, match="no capacities"):
        partition_graph(graph, ())


def test_planted_parts_are_found() -> None:
    """Four cliques joined by single light edges: nothing else should be cut."""
    rows, sizes = [], []
    for clique in range(4):
        for one, other in itertools.combinations(range(8 * clique, 8 * clique + 8), 2):
            rows.append((one, other))
            sizes.append(10)
    for clique in range(3):
        rows.append((8 * clique, 8 * clique + 8))
        sizes.append(1)
    graph = PartitionGraph(loads=np.ones(32, dtype=np.int64), edges=np.array(rows), traffic=np.array(sizes))
    assert partition_graph(graph, (8, 8, 8, 8)).key == (0, 3)


@given(seed=st.integers(0, 10_000), slack=st.floats(1.02, 1.5))
@settings(max_examples=examples(40), deadline=None)
def test_refining_and_annealing_keep_their_books(seed: int, slack: float) -> None:
    rng = Random(seed)
    nodes = rng.randint(6, 40)
    graph = draw_graph("random", nodes, min(3 * nodes, nodes * (nodes - 1) // 2), seed)
    capacities = capacities_for(graph, (2, 1, 1), slack)
    parts = [rng.randrange(3) for _ in range(nodes)]
    before = measure(graph, parts, capacities)
    fell = refine(graph, parts, capacities, rng, passes=3, patience=30)
    after = measure(graph, parts, capacities)
    assert fell == (before.excess - after.excess, before.cut - after.cut)
    assert after.key <= before.key
    gained = anneal(graph, parts, capacities, rng, steps=500, hot=10.0, cold=0.5)
    last = measure(graph, parts, capacities)
    assert last.cut == after.cut - gained
    assert last.excess <= after.excess


@given(seed=st.integers(0, 10_000))
@settings(max_examples=examples(40), deadline=None)
def test_a_merged_graph_cuts_what_its_nodes_do(seed: int) -> None:
    rng = Random(seed)
    family, nodes = FAMILIES[seed % 2], rng.randint(4, 30)
    graph = draw_graph(family, nodes, rng.randint(nodes - 1, nodes * (nodes - 1) // 2), seed)
    into = np.array([rng.randrange(4) for _ in range(graph.nodes)])
    into = np.unique(into, return_inverse=True)[1].ravel()
    smaller = merge(graph, into)
    parts = [rng.randrange(2) for _ in range(smaller.nodes)]
    assert smaller.loads.sum() == graph.loads.sum()
    whole = measure(graph, np.array(parts)[into], (10**6, 10**6))
    assert measure(smaller, parts, (10**6, 10**6)).cut == whole.cut


def test_drawn_graphs_are_what_they_say() -> None:
    for family in FAMILIES:
        graph = draw_graph(family, 128, 512, 1)
        again = draw_graph(family, 128, 512, 1)
        assert (graph.edges == again.edges).all()
        assert len(graph.edges) == 512
        assert len({tuple(sorted(pair)) for pair in graph.edges.tolist()}) == 512
        assert graph.edges.max() < 128
        assert set(graph.loads.tolist()) == {1, 2, 3, 4}
    with pytest.raises(ValueError, match="expected a simple graph"):
        draw_graph("random", 4, 7, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_graphs_are_in_one_piece_however_few_their_edges(family: Family) -> None:
    for nodes in (2, 3, 4, 5, 8, 20, 31):
        for edges in {nodes - 1, nodes, 2 * nodes}:
            if nodes - 1 <= edges <= nodes * (nodes - 1) // 2:
                graph = draw_graph(family, nodes, edges, nodes + edges)
                groups = Groups(nodes)
                assert sum(groups.merge(one, other) for one, other in graph.edges.tolist()) == nodes - 1
                assert len(graph.edges) == edges


@pytest.mark.parametrize(
    ("loads", "edges", "traffic", "what"),
    [
        ([1, 1], [[0, 2]], [1], "edges between nodes"),
        ([1, 1], [[0, 1]], [1, 2], "a weight for each edge"),
        ([1, 1], [[1, 1]], [1], "to itself"),
        ([1, -1], [[0, 1]], [1], "below 0"),
    ],
)
def test_a_wrong_graph_is_refused(loads: list[int], edges: list[list[int]], traffic: list[int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        PartitionGraph(loads=np.array(loads), edges=np.array(edges), traffic=np.array(traffic))
