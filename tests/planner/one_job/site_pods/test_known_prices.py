"""Prices asked for once: the same as asked for anew, and as often as placements differ to a price."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.one_job.site_pods.known_prices import remember
from profiles.cluster import Cluster
from profiles.network import FabricLevel, FabricPart, Network, SpreadTable
from profiles.records import replace as changed
from profiles.vocabulary import Infeasible
from tests.planner.one_job.site_pods.pod_examples import plan, price
from tests.seeds import seeds


def _drawn_tree(cluster: Cluster, rng: random.Random) -> Cluster:
    """The cluster with leaves and pods of drawn nodes, which need not follow each other, and drawn uplinks."""
    (site,) = cluster.sites
    (group,) = site.nodes
    leaves = [*range(4), *(rng.randrange(4) for _ in range(group.count - 4))]
    rng.shuffle(leaves)
    table = SpreadTable(collective=(1.0, 0.8), message=(1.0, 0.5), source="drawn") if rng.random() < 0.5 else None
    rates = [rng.choice((1.0, 3.0)) for _ in range(6)]
    levels = (
        FabricLevel(
            name="leaf",
            parts=tuple(FabricPart(name=f"l{number}", oversubscription=rates[number]) for number in range(4)),
            part_of=tuple(leaves),
        ),
        FabricLevel(
            name="pod",
            parts=tuple(FabricPart(name=f"p{number}", oversubscription=rates[4 + number]) for number in range(2)),
            part_of=(0, 1, 0, 1),
            spread=table,
        ),
    )
    return replace(cluster, sites=(replace(site, network=Network(levels=levels)),))


def _partly_free(cluster: Cluster, rng: random.Random) -> Cluster:
    """The cluster with some of its nodes busy, so that they are another group."""
    (site,) = cluster.sites
    (group,) = site.nodes
    cut = rng.randrange(1, group.count)
    nodes = (replace(group, count=cut, free=rng.choice((None, 0))), replace(group, count=group.count - cut))
    return replace(cluster, sites=(replace(site, nodes=nodes),))


def _seated(setup: Setup, cluster: Cluster, rng: random.Random) -> Setup:
    """The plan on devices drawn from all of the cluster's, node by node or one by one."""
    slots = list(cluster.slots)
    if rng.random() < 0.5:
        rng.shuffle(slots)
    else:
        order = rng.sample(range(10), 10)
        slots.sort(key=lambda slot: order[slot.node])
    places = iter(slots)
    stages = tuple(changed(stage, slots=tuple(next(places) for _ in stage.slots)) for stage in setup.stages)
    return replace(setup, cluster=cluster, stages=stages)


@pytest.mark.parametrize("seed", seeds(12, share=4))
def test_a_price_that_is_known_is_the_price(seed: int) -> None:
    rng = random.Random(seed)
    setup = plan(10, tp=1, pp=2, dp=4, devices=2)
    known = remember(price)
    tree = _drawn_tree(setup.cluster, rng)
    clusters = [tree, _partly_free(tree, rng), _partly_free(tree, rng)]
    for _ in range(40):
        placed = _seated(setup, rng.choice(clusters), rng)
        said, anew = known(placed), price(placed)
        assert isinstance(said, Evaluation)
        assert isinstance(anew, Evaluation)
        assert said.iteration_time_s == pytest.approx(anew.iteration_time_s, rel=1e-12)


def test_what_changes_no_price_is_not_asked_for_again() -> None:
    asked: list[Setup] = []

    def counted(setup: Setup) -> Evaluation | Infeasible:
        asked.append(setup)
        return price(setup)

    setup = plan(10, tp=1, pp=2, dp=4, devices=2)
    (site,) = setup.cluster.sites
    parts = tuple(FabricPart(name=f"p{number}", oversubscription=4.0) for number in range(3))
    level = FabricLevel(name="pod", parts=parts, part_of=(0, 0, 0, 1, 1, 1, 2, 2, 2, 2))
    cluster = replace(setup.cluster, sites=(replace(site, network=Network(levels=(level,))),))
    busy = replace(cluster, sites=(replace(cluster.sites[0], nodes=(replace(site.nodes[0], free=16),)),))
    known = remember(counted)
    for nodes, where in (
        ((0, 1, 3, 4), cluster),
        ((1, 2, 4, 5), busy),
        ((3, 4, 0, 1), cluster),
        ((0, 1, 6, 7), cluster),
    ):
        slots = iter([slot for node in nodes for slot in where.slots if slot.node == node])
        stages = tuple(changed(stage, slots=tuple(next(slots) for _ in stage.slots)) for stage in setup.stages)
        known(replace(setup, cluster=where, stages=stages))
    # Other nodes of the same parts are known; nodes in another order, and the larger third part, are not.
    assert len(asked) == 3
