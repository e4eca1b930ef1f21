"""The nodes of a pool that stand for a job's, and the tree above them: priced as those nodes of the whole cluster."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from estimator.cells.cell import CellEstimate
from estimator.pricing.recipe import Setup, StageSetup
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from planner.many_jobs.scheduling.sites.shapes import Shapes
from planner.many_jobs.sites.near_nodes import near_slots, network_of, tree_of_nodes
from profiles.cluster import Cluster, DeviceSlot
from profiles.cluster_file import load_cluster
from profiles.network import FabricLevel, FabricPart, Network, SpreadTable, equal_pods
from tests.explicit_examples import LLAMA, RECIPE, evaluated
from tests.seeds import seeds

WHOLE = load_cluster("a40:12x2")
TABLE = SpreadTable(collective=(1.0, 0.9), message=(1.0, 0.6), source="a test")


def with_network(cluster: Cluster, network: Network) -> Cluster:
    return replace(cluster, sites=(replace(cluster.sites[0], network=network),))


def random_tree(rng: Random, *, prefix: str = "") -> Network:
    """Four leaves of any size in two pods, nodes and leaves dealt at random."""
    leaf_of = [*range(4), *(rng.randrange(4) for _ in range(8))]
    rng.shuffle(leaf_of)
    levels = []
    for name, count, part_of in (("leaf", 4, leaf_of), ("pod", 2, [0, 1, rng.randrange(2), rng.randrange(2)])):
        parts = [
            FabricPart(name=f"{prefix}{name}{number}", oversubscription=rng.choice([1, 2, 6]))
            for number in range(count)
        ]
        levels.append(
            FabricLevel(
                name=prefix + name,
                parts=tuple(parts),
                part_of=tuple(part_of),
                hop_latency_s=rng.choice([0.0, 1e-5]),
                spread=rng.choice([None, TABLE]),
            )
        )
    return Network(levels=tuple(levels))


def setup_on(cluster: Cluster, slots: tuple[DeviceSlot, ...], pp: int) -> Setup:
    ranks = len(slots) // pp
    half = len(LLAMA.layers) // pp
    chunks = [
        ((number * half, len(LLAMA.layers) if number == pp - 1 else (number + 1) * half),) for number in range(pp)
    ]
    stages = tuple(
        StageSetup(chunks=chunk, slots=slots[number * ranks : (number + 1) * ranks], dp=ranks)
        for number, chunk in enumerate(chunks)
    )
    return Setup(
        model=LLAMA, cluster=cluster, recipe=replace(RECIPE, global_batch=ranks * 4), micro_batch=ranks, stages=stages
    )


def test_the_small_cluster_costs_what_its_nodes_cost_among_the_others() -> None:
    for seed in seeds(40, share=4):
        rng = Random(seed)
        cluster = with_network(WHOLE, random_tree(rng))
        shapes = Shapes(cluster)
        nodes, pp = rng.choice([2, 4, 6, 8]), rng.choice([1, 2])
        shape = shapes.of((("a40", 2 * nodes),)).shape
        small = shapes.cluster_of(shape)
        chosen = near_slots(cluster.sites[0], cluster.slots, 2 * nodes)
        there = evaluated(setup_on(cluster, chosen, pp)).iteration_time_s
        assert evaluated(setup_on(small, small.slots, pp)).iteration_time_s == pytest.approx(there, rel=1e-12), seed


def test_a_job_that_a_part_holds_pays_for_no_uplink() -> None:
    pods = with_network(WHOLE, equal_pods(12, pods=3, oversubscription=8))
    shapes = Shapes(pods)
    inside, across = (shapes.cluster_of(shapes.of((("a40", count),)).shape) for count in (8, 16))
    plain = Shapes(WHOLE).cluster_of(Shapes(WHOLE).of((("a40", 8),)).shape)
    times = {
        name: evaluated(setup_on(c, c.slots, 1)).iteration_time_s for name, c in (("in", inside), ("plain", plain))
    }
    assert times["in"] == times["plain"]
    thin = shapes.cluster_of(shapes.of((("a40", 16),)).shape)
    assert [len(level.parts) for level in thin.sites[0].network.levels] == [2]
    assert evaluated(setup_on(across, across.slots, 1)).iteration_time_s > times["in"]


def test_equal_trees_of_other_names_are_one_shape() -> None:
    one, other = (with_network(WHOLE, random_tree(Random(3), prefix=prefix)) for prefix in ("", "other-"))
    for count in (2, 8, 14, 24):
        assert Shapes(one).of((("a40", count),)).shape == Shapes(other).of((("a40", count),)).shape


def test_a_shape_is_the_tree_it_came_from_but_for_names() -> None:
    site = with_network(WHOLE, random_tree(Random(5))).sites[0]
    shape = tree_of_nodes(site, range(12))
    again = replace(site, network=network_of(shape))
    assert tree_of_nodes(again, range(12)) == shape
    assert tree_of_nodes(WHOLE.sites[0], range(12)) == ()


def test_a_cell_takes_devices_near_each_other_in_the_tree() -> None:
    network = Network(
        levels=(
            FabricLevel(
                name="pod",
                parts=(FabricPart(name="a", oversubscription=4), FabricPart(name="b", oversubscription=4)),
                part_of=tuple(node % 2 for node in range(12)),
            ),
        )
    )
    cluster = with_network(WHOLE, network)
    workload = Workload(model="bert-large", global_batch=24)
    for place, nodes in ((cluster, {0, 2, 4, 6, 8, 10}), (WHOLE, set(range(6)))):
        cell = EstimatedCells(cluster=place, pools=pools_of(place)).estimate(workload, "a40", 12, 2)
        assert isinstance(cell, CellEstimate)
        assert {slot.node for stage in cell.setup.stages for slot in stage.slots} == nodes
