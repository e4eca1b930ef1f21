"""Small clusters of pods, and plans on them."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from planner.one_job.explicit.dispatch import read_any_request
from planner.one_job.site_pods.site_job import SiteJob, site_job
from planner.shared.options.estimate import EstimateOptions
from profiles.cluster import Cluster
from profiles.network import FabricLevel, FabricPart, Network, SpreadTable
from profiles.vocabulary import Infeasible

PRICING = Pricing()


def price(setup: Setup) -> Evaluation | Infeasible:
    """Return the price of a setup; what they have in common is computed once."""
    return evaluate(setup, PRICING)


def in_pods(
    cluster: Cluster, sizes: tuple[int, ...], *, over: tuple[float, ...], spread: SpreadTable | None = None
) -> Cluster:
    """Return a cluster of one site with its nodes in pods of these sizes and oversubscriptions."""
    (site,) = cluster.sites
    level = FabricLevel(
        name="pod",
        parts=tuple(FabricPart(name=f"p{number}", oversubscription=rate) for number, rate in enumerate(over)),
        part_of=tuple(pod for pod, size in enumerate(sizes) for _ in range(size)),
        spread=spread,
    )
    return replace(cluster, sites=(replace(site, network=Network(levels=(level,))),))


@cache
def plan(nodes: int, *, tp: int, pp: int, dp: int, devices: int = 2, model: str = "gpt2-1.3b") -> Setup:
    """Return a plan on a cluster of so many A100 nodes."""
    options = EstimateOptions(
        model, cluster=f"a100-80gb:{nodes}x{devices}", devices=tp * pp * dp, tp=tp, pp=pp, dp=dp, global_batch=8 * dp
    )
    return read_any_request(options, store=None).setups[0]


def job_of(
    setup: Setup, sizes: tuple[int, ...], *, over: tuple[float, ...], spread: SpreadTable | None = None
) -> SiteJob:
    """Return a plan as a job on its cluster's nodes in pods."""
    placed = replace(setup, cluster=in_pods(setup.cluster, sizes, over=over, spread=spread))
    job = site_job(placed, setup.cluster.sites[0].name)
    assert isinstance(job, SiteJob), job
    return job


def small_job(rng: random.Random, *, most_nodes: int = 8) -> SiteJob:
    """Return a drawn job on at most so many nodes in three pods."""
    shapes = [(2, 2), (2, 3), (3, 2), (4, 1), (1, 4), (2, 4), (4, 2), (3, 1), (1, 3), (2, 1)]
    pp, dp = rng.choice([(pp, dp) for pp, dp in shapes if pp * dp <= most_nodes])
    total = min(most_nodes, pp * dp + rng.randint(0, 2))
    sizes = _sizes(rng, total)
    spread = None
    if rng.random() < 0.4:
        ends = sorted((rng.uniform(0.3, 1.0), rng.uniform(0.3, 1.0)), reverse=True)
        spread = SpreadTable(collective=(1.0, ends[0], ends[1]), message=(1.0, ends[1]), source="drawn")
    over = tuple(rng.choice((1.0, 2.0, 4.0, 8.0)) for _ in sizes)
    if max(sizes) == 1 and len(set(over)) == 1:
        over = (2 * over[0], *over[1:])
    return job_of(plan(total, tp=1, pp=pp, dp=dp, devices=1), sizes, over=over, spread=spread)


def _sizes(rng: random.Random, total: int) -> tuple[int, ...]:
    pods = min(3, total)
    cuts = sorted(rng.sample(range(1, total), pods - 1))
    return tuple(end - first for first, end in zip((0, *cuts), (*cuts, total), strict=True))
