"""Sums of gradients that tensor-parallel ranks have parts of: their place in a plan's price, single and in bulk."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.pipeline import Pipeline
from estimator.bulk.records import BatchedDegrees, Family, Rule, StateRule
from estimator.communication.collectives import time_collective
from estimator.communication.groups import describe_group
from estimator.pricing import stage_cost
from estimator.pricing.link_times import cluster_in_training
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Overlap, ScheduleName, Setup
from planner.one_job.search.spaces.cuts import cuts_of
from tests.explicit_examples import CLUSTER, RECIPE, build, evaluated
from tests.zoo_families import llama, mixtral

HIDDEN, LAYERS, HEAD_DIM, KV_HEADS = 512, 8, 64, 2
SIZES: dict[str, Any] = {
    "hidden": HIDDEN,
    "layers": LAYERS,
    "heads": 8,
    "kv_heads": KV_HEADS,
    "ffn_hidden": 1024,
    "vocab": 4096,
    "seq_len": 512,
}
GROUPED = llama("grouped", **SIZES)
ROUTED = mixtral("routed", experts=8, top_k=2, **SIZES)


def without_sums(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> float:
    with monkeypatch.context() as patched:
        patched.setattr(stage_cost, "sum_partial_gradients_s", lambda *_args, **_options: 0.0)
        return evaluated(setup).iteration_time_s


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_copied_heads_are_summed_once_an_iteration(tp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that hold the same key-value head sum its gradients, in one piece: tp / kv heads of them side by side."""
    setup = build(GROUPED, tp=tp)
    found = evaluated(setup)
    added_s = found.iteration_time_s - without_sums(setup, monkeypatch)
    assert found.breakdown.total_s == pytest.approx(found.iteration_time_s, rel=1e-12)
    copies = tp // KV_HEADS
    if copies <= 1:
        assert added_s == 0
        return
    size_bytes = 4 * LAYERS * 2 * HIDDEN * HEAD_DIM
    pricing = Pricing()
    reached = cluster_in_training(CLUSTER, pricing.parameters)
    group = describe_group(reached, setup.stages[0].slots[:copies])
    summed = time_collective("all_reduce", size_bytes, group, concurrent_groups=KV_HEADS)
    assert added_s == pytest.approx(summed.seconds + pricing.parameters.of("collective_wait_s"), rel=1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_they_stand_on_the_tensor_parallel_axis(schedule: ScheduleName, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = build(GROUPED, recipe=replace(RECIPE, schedule=schedule), tp=8, pp=2, sequence_parallel=True)
    found = evaluated(setup)
    with monkeypatch.context() as patched:
        patched.setattr(stage_cost, "sum_partial_gradients_s", lambda *_args, **_options: 0.0)
        plain = evaluated(setup)
    assert found.breakdown.tp_s > plain.breakdown.tp_s
    assert replace(found.breakdown, tp_s=0) == replace(plain.breakdown, tp_s=0)


@pytest.mark.parametrize("model", [GROUPED, ROUTED])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("overlap", [frozenset(), frozenset({"dp"})])
def test_array_prices_are_the_single_ones(model: Any, overlap: frozenset[Overlap], *, sequence_parallel: bool) -> None:
    recipe = replace(RECIPE, overlap=overlap)
    evaluator = BulkEvaluator(
        model=model, cluster=CLUSTER, recipe=recipe, pricing=Pricing(), overlap_under=lambda _zero: overlap
    )
    states = tuple(StateRule(zero=zero) for zero in (0, 1, 2, 3))
    rules: tuple[Rule, ...] = (("none", None), ("selective", None), ("full", 2))
    for tp, pp, dp in ((8, 2, 2), (4, 4, 2), (8, 1, 1)):
        degrees = BatchedDegrees(tp=tp, pp=pp, dp=dp, sequence_parallel=sequence_parallel)
        pipeline = evaluator.pipeline(degrees, evaluator.placement(1, CLUSTER.free_slots))
        assert isinstance(pipeline, Pipeline)
        schedules: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "zb-h1")
        for schedule in schedules:
            cuts = cuts_of(model, pp=pp, vpp=1, weights=pipeline.layer_s())[:2]
            family = Family(schedule=schedule, cuts=tuple(cuts), recompute=rules, states=states)
            times = pipeline.price(family).total_s
            for cut in range(len(cuts)):
                for rule in range(len(rules)):
                    for state in range(len(states)):
                        setup = Setup(
                            model=model,
                            cluster=CLUSTER,
                            recipe=replace(recipe, schedule=schedule),
                            stages=pipeline.stage_setups(cuts[cut], rules[rule], states[state]),
                            micro_batch=dp,
                        )
                        single_s = evaluated(setup).iteration_time_s
                        assert math.isclose(times[cut, rule, state], single_s, rel_tol=1e-12)
