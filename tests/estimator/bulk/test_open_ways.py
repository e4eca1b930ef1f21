"""Bounds of many ways at once lie below every plan that fits, where memory is short; and none depends on the others."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.open_ways import OpenSchedule, OpenWay, least_of_ways_s
from estimator.bulk.pipeline import Pipeline
from estimator.bulk.records import BatchedDegrees, Family, Rule, StateRule
from estimator.pricing.recipe import Recipe, ScheduleName
from estimator.pricing.software import load_frameworks
from models_zoo.layers import FeedForward, TransformerBlock
from models_zoo.model import Model
from planner.one_job.search.spaces.cuts import cuts_of, most_apart
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Infeasible, RecomputeKind
from tests.search_examples import evaluator_of, with_memory
from tests.seeds import seeds
from tests.zoo_families import gpt, llama, mixtral

MODELS = (
    gpt("g", hidden=1024, layers=7, heads=16, vocab=30000, seq_len=1024),
    llama("l", hidden=1024, layers=12, heads=8, kv_heads=2, ffn_hidden=4096, vocab=4096, seq_len=2048),
    mixtral(
        "m", hidden=512, layers=6, heads=8, kv_heads=2, ffn_hidden=1024, experts=8, top_k=2, vocab=4096, seq_len=1024
    ),
)
SCHEDULES: tuple[tuple[ScheduleName, int], ...] = (
    ("1f1b", 1),
    ("gpipe", 1),
    ("zb-h1", 1),
    ("interleaved", 2),
    ("interleaved", 3),
)
STATES = (
    StateRule(),
    StateRule(zero=1),
    StateRule(zero=2),
    StateRule(zero=3),
    StateRule(zero=1, offload=frozenset({"optimizer"})),
    StateRule(zero=3, offload=frozenset({"optimizer"})),
)


def _model(rng: random.Random) -> Model:
    """One whose blocks are alike, or where the first has a feed-forward of its own."""
    model = rng.choice(MODELS)
    embedding, block, *others = model.layers
    assert isinstance(block, TransformerBlock)
    if rng.random() < 0.6:
        return model
    other = replace(block, feed_forward=FeedForward(hidden=rng.choice([256, 8192])))
    return replace(model, layers=(embedding, other, *others))


def _evaluator(rng: random.Random) -> BulkEvaluator:
    model = _model(rng)
    cluster = load_cluster(rng.choice(["h100:2x4", "a100-80gb:3x4", "a100-80gb:4x2"]))
    recipe = Recipe(
        global_batch=rng.choice([8, 16, 48]),
        seq_len=model.seq_len,
        grad_dtype=rng.choice(["fp32", "bf16"]),
        software=rng.choice(list(load_frameworks().values())).software,
        overlap=frozenset(rng.sample(("dp", "tp", "p2p"), rng.randint(0, 3))),
    )
    return evaluator_of(model, with_memory(cluster, round(rng.uniform(1.3, 6.0) * 2**30)), recipe)


def _pipeline(rng: random.Random, evaluator: BulkEvaluator) -> Pipeline | None:
    tp = rng.choice([1, 2])
    degrees = BatchedDegrees(
        tp=tp,
        pp=rng.choice([1, 2, 3, 4, 6]),
        dp=rng.choice([1, 2, 4]),
        ep=rng.choice([1, 2]) if evaluator.model.name == "m" else 1,
        samples=rng.choice([1, 2, 4]),
        sequence_parallel=tp > 1,
    )
    slots = evaluator.cluster.free_slots
    if degrees.stage_devices * degrees.pp > len(slots) or degrees.stage_devices % degrees.ep:
        return None
    if evaluator.recipe.global_batch % (degrees.dp * degrees.samples):
        return None
    pipeline = evaluator.pipeline(degrees, evaluator.placement(1, slots))
    return None if isinstance(pipeline, Infeasible) else pipeline


def _families(
    rng: random.Random, evaluator: BulkEvaluator, pipeline: Pipeline, kinds: tuple[RecomputeKind, ...]
) -> list[tuple[OpenSchedule, Family]]:
    families = []
    for name, chunks in SCHEDULES:
        pp = pipeline.degrees.pp
        if chunks > 1 and (pp == 1 or pipeline.micro_batches % pp):
            continue
        cuts = cuts_of(evaluator.model, pp=pp, vpp=chunks, weights=pipeline.layer_s())
        if not cuts:
            continue
        cuts = tuple(rng.sample(cuts, min(6, len(cuts))))
        rules: list[Rule] = [(kind, None) for kind in kinds]
        if "full" in kinds:
            rules += [("full", count) for count in range(1, len(evaluator.model.layers))]
        apart = most_apart(evaluator.model, pp=pp, vpp=chunks)
        family = Family(schedule=name, cuts=cuts, recompute=tuple(rules), states=STATES)
        families.append((OpenSchedule(name=name, chunks=chunks, most_apart=apart), family))
    return families


@pytest.mark.parametrize("seed", seeds(120, share=6))
def test_bounds_of_open_ways_lie_below_all_plans(seed: int) -> None:
    rng = random.Random(seed)
    evaluator = _evaluator(rng)
    kinds: tuple[RecomputeKind, ...] = rng.choice(
        [("none", "selective", "full"), ("none", "full"), ("full",), ("none",), ("none", "selective")]
    )
    pipelines = [pipeline for _ in range(6) if (pipeline := _pipeline(rng, evaluator)) is not None]
    families = [_families(rng, evaluator, pipeline, kinds) for pipeline in pipelines]
    ways = [
        OpenWay(
            degrees=pipeline.degrees,
            kinds=pipeline.kinds,
            overlap_under=evaluator.overlap_under,
            schedules=tuple(schedule for schedule, _ in some),
            states=STATES,
            below_s=np.inf,
        )
        for pipeline, some in zip(pipelines, families, strict=True)
        if some
    ]
    spare = rng.choice([0, 2**28])
    together = least_of_ways_s(ways, kinds, spare_bytes=spare)
    without_sums = least_of_ways_s(ways, kinds, spare_bytes=spare, with_sums=False)
    fitting = zip(pipelines, families, strict=True)
    for (pipeline, some), way, bounds, fewer in zip(
        [pair for pair in fitting if pair[1]], ways, together, without_sums, strict=True
    ):
        (alone,) = least_of_ways_s([way], kinds, spare_bytes=spare)
        assert alone == pytest.approx(bounds, rel=1e-12)
        assert (fewer <= bounds * (1 + 1e-12)).all()
        for (_, family), least in zip(some, bounds, strict=True):
            priced = pipeline.price(family, spare_bytes=spare)
            times = np.where(priced.lacking_bytes <= 0, priced.total_s, np.inf).min(axis=(0, 1))
            assert (least <= times * (1 + 1e-9)).all()


def test_a_bound_tells_what_does_not_fit_from_what_does() -> None:
    """On devices with room for a quarter of what plain stages keep, recomputation makes the bound longer."""
    rng = random.Random(5)
    model = MODELS[1]
    recipe = Recipe(global_batch=64, seq_len=2048, software=load_frameworks()["generic"].software)
    bounds = []
    for gib in (80.0, 6.0, 1.0):
        cluster = with_memory(load_cluster("h100:1x4"), round(gib * 2**30))
        evaluator = evaluator_of(model, cluster, recipe)
        degrees = BatchedDegrees(pp=4, samples=4)
        pipeline = evaluator.pipeline(degrees, evaluator.placement(1, cluster.free_slots))
        assert isinstance(pipeline, Pipeline)
        ((schedule, _), *_) = _families(rng, evaluator, pipeline, ("none", "full"))
        way = OpenWay(
            degrees=degrees,
            kinds=pipeline.kinds,
            overlap_under=evaluator.overlap_under,
            schedules=(schedule,),
            states=STATES[:1],
            below_s=np.inf,
        )
        bounds.append(least_of_ways_s([way], ("none", "full"))[0].item())
    assert bounds[0] < bounds[1] < bounds[2] == np.inf
