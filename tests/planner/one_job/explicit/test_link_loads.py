"""What plans put on links in their own time: between sites never more than fits."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Overlap, Recipe, ScheduleName, Setup, StageSetup
from planner.one_job.explicit.link_loads import describe_link_loads
from profiles.cluster import Cluster, SiteLink
from profiles.cluster_file import load_cluster
from profiles.records import replace
from tests.schedule_examples import SCHEDULES
from tests.seeds import seeds
from tests.zoo_families import gpt

MODEL = gpt("g", hidden=512, layers=14, heads=8, vocab=1000, seq_len=1024)
OVERLAPS: tuple[frozenset[Overlap], ...] = (frozenset(), frozenset({"p2p"}), frozenset({"p2p", "dp"}))


def two_sites(bandwidth_bytes_per_s: float) -> Cluster:
    """Four devices at each of two sites."""
    site = load_cluster("a100-80gb:1x4").sites[0]
    link = SiteLink(between=("north", "south"), bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=1e-4)
    return Cluster(
        text="two sites", sites=(replace(site, name="north"), replace(site, name="south")), site_links=(link,)
    )


def random_setup(rng: random.Random, schedule: ScheduleName) -> Setup:
    """A plan whose stages sit at one site each, not in the order of the sites."""
    pp = rng.choice([2, 4])
    own, layers = 8 // pp, len(MODEL.layers)
    cluster = two_sites(rng.choice([2e7, 2e8, 2e9]))
    slots, order = cluster.free_slots, rng.sample(range(pp), pp)
    parts = pp * (2 if schedule == "interleaved" else 1)
    ranges = list(pairwise((0, *sorted(rng.sample(range(1, layers), parts - 1)), layers)))
    tp = rng.choice([one for one in (1, 2) if own % one == 0])

    def chunks(stage: int) -> tuple[tuple[int, int], ...]:
        if schedule == "dualpipe":
            return ranges[stage], ranges[pp - 1 - stage]
        return tuple(ranges[stage::pp])

    return Setup(
        model=MODEL,
        cluster=cluster,
        recipe=Recipe(
            global_batch=own // tp * pp * rng.choice([2, 4]),
            seq_len=1024,
            schedule=schedule,
            overlap=rng.choice(OVERLAPS),
        ),
        stages=tuple(
            StageSetup(chunks=chunks(i), slots=slots[place * own : (place + 1) * own], tp=tp, dp=own // tp)
            for i, place in enumerate(order)
        ),
        micro_batch=own // tp,
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_link_between_sites_carries_more_than_fits(schedule: ScheduleName) -> None:
    rng = random.Random(schedule)
    # Messages of a training are fitted to take so much of a link's record: slightly more than all of it.
    most, fullest = max(1.0, Pricing().parameters.of("send_share")), 0.0
    for _ in seeds(30):
        setup = random_setup(rng, schedule)
        evaluation = evaluate(setup)
        assert isinstance(evaluation, Evaluation)
        told = describe_link_loads(setup, None, iteration_time_s=evaluation.iteration_time_s)
        assert told is not None
        between = [link for link in told["links"] if all("gateway" in link[end] for end in ("from", "to"))]
        busy = [link["busy"] for link in between]
        assert len(busy) == 2
        assert max(busy) <= most, setup
        fullest = max(fullest, *busy)
    assert fullest > 0.6, "some plan is bound by the link"
