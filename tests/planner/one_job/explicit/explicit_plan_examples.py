"""Explicit plans with made-up figures, for the tests of what makes, reads and prints them."""

from __future__ import annotations

from typing import Any

from estimator.pricing.outcome import Evaluation, Guess, RankMemory, TimeBreakdown
from estimator.pricing.recipe import Setup
from planner.one_job.explicit.request import ExplicitRequest, read_explicit
from planner.shared.options.estimate import EstimateOptions

GIB = 2**30


def request_of(model: str = "gpt-tiny", cluster: str = "a100-80gb:1x8", **options: Any) -> ExplicitRequest:
    """The explicit plan behind these options."""
    return read_explicit(EstimateOptions(model, cluster=cluster, **options), store=None)


def setup_of(model: str = "gpt-tiny", cluster: str = "a100-80gb:1x8", **options: Any) -> Setup:
    """The first setup behind these options; none is recomputed unless they say so."""
    return request_of(model, cluster, **{"recompute": "none", **options}).setups[0]


def fake_evaluate(setup: Setup, *, activation_bytes: int = GIB) -> Evaluation:
    """Two seconds, and memory that grows from stage to stage; recomputation halves the activations."""
    stages = len(setup.stages)
    kept = {"none": 1.0, "selective": 0.75, "full": 0.5}
    return Evaluation(
        iteration_time_s=2.0,
        breakdown=TimeBreakdown(gemm_s=1.25, tp_s=0.5, bubble_s=0.125, optimizer_s=0.125),
        memory=tuple(
            RankMemory(
                stage=number,
                weight_bytes=GIB + number,
                gradient_bytes=2 * GIB,
                optimizer_bytes=3 * GIB,
                activation_bytes=round(activation_bytes * kept[stage.recompute]),
                temporary_bytes=5,
                communication_bytes=6,
                reserve_bytes=7,
            )
            for number, stage in enumerate(setup.stages)
        ),
        device_memory_bytes=tuple(setup.cluster.group_of(stage.slots[0]).device.memory_bytes for stage in setup.stages),
        stage_compute_s=(0.25,) * stages,
        stage_communication_s=(0.125,) * stages,
        interval_90_s=(1.5, 2.5),
        memory_interval_90_bytes=(6 * GIB, 9 * GIB),
        compute_provenance="modelled",
        communication_provenance="modelled",
        guesses=(Guess(what="the attention kernel", seconds=0.5, remedy="`cellplan profile gpt-tiny` measures it"),),
    )
