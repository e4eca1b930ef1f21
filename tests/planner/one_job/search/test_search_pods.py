"""The search on clusters whose pods share uplinks: prices in bulk are those of each plan by itself."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from planner import api
from planner.shared.options.search import PlanOptions
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.errors import NothingFits
from profiles.network import FabricLevel, FabricPart, Network
from tests.seeds import seeds


def unequal_pods(rng: random.Random, text: str) -> Cluster:
    cluster = load_cluster(text)
    (site,) = cluster.sites
    nodes = sum(group.count for group in site.nodes)
    pods = rng.randint(2, nodes - 1)
    part_of = [*range(pods), *(rng.randrange(pods) for _ in range(nodes - pods))]
    rng.shuffle(part_of)
    parts = tuple(
        FabricPart(name=f"p{number}", oversubscription=rng.choice([1.0, 4.0, 30.0])) for number in range(pods)
    )
    network = Network(levels=(FabricLevel(name="pod", parts=parts, part_of=tuple(part_of)),))
    return replace(cluster, sites=(replace(site, network=network),))


def best_s(cluster: Cluster, *fixed: str) -> float:
    options = PlanOptions(model="gpt-tiny", cluster=name_cluster(cluster), global_batch=24, fix=fixed)
    return api.plan(options).plan.estimate.iteration_time_s


@pytest.mark.parametrize("text", ["a100-80gb:4x2", "a40:2x1+a10:2x1"])
def test_no_plan_with_fixed_degrees_is_faster(text: str) -> None:
    """RuntimeError would say that a plan's price in bulk is not its price by itself."""
    for seed in seeds(4, least=1):
        cluster = unequal_pods(random.Random(seed), text)
        best = best_s(cluster)
        for fixed in ("pp=2", "pp=1"):
            try:
                assert best_s(cluster, fixed) >= best * (1 - 1e-9)
            except NothingFits:
                continue
