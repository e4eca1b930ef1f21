"""From Cells to plans: every figure of the plan is one of the Cell's, and files give the plans back."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from estimator.cells.cell import CellEstimate
from estimator.cells.job import Job
from estimator.cells.stage_options import Machine
from estimator.performance import count_model_flops
from models_zoo.catalogue import load_model
from models_zoo.layers import Layer
from planner.one_job.cells.planning import NO_INTERVAL, estimate_figures, make_plan
from planner.shared.plan import Plan
from planner.shared.plan_file import parse_plan, plan_to_json
from profiles.vocabulary import LayerTime, Shard
from tests.cell_examples import cell_of, estimated, make_job, make_test_machine, mixture, tied_gpt, untied_llama

Case = tuple[Job, Machine, CellEstimate]


def case_of(job: Job, stages: int, cluster: str = "a100-80gb:2x4", **machine: Any) -> Case:
    found = make_test_machine(job, cluster, **machine)
    return job, found, estimated(cell_of(job, stages, machine=found))


def plan_of(case: Case) -> Plan:
    job, machine, cell = case
    return make_plan(
        job,
        machine,
        cell,
        reference=job.model.name,
        search_space_size=cell.assemblies,
        assumptions=("made for a test",),
    )


def tight() -> Case:
    """Recomputes in some stages and not in others."""
    job = make_job(untied_llama(), micro_batches=8)
    return case_of(job, 4, memory_bytes=4_600_000)


CASES: dict[str, Any] = {
    "one stage": lambda: case_of(make_job(), 1),
    "one device": lambda: case_of(make_job(), 1, "a100-80gb:1x1"),
    "hybrid": lambda: case_of(
        make_job(load_model("llama3-8b"), global_batch=512, micro_batches=128), 4, "a100-80gb:2x8"
    ),
    "uneven": lambda: case_of(make_job(untied_llama(), global_batch=96), 5, "a100-80gb:3x6"),
    "zero 3": lambda: case_of(make_job(untied_llama(), zero=3), 2),
    "sequence parallel": lambda: case_of(make_job(untied_llama(), sequence_parallel=True, global_batch=8), 2),
    "recompute": lambda: case_of(make_job(untied_llama(), recompute="full"), 2),
    "some recompute": tight,
    "fp32 on a V100": lambda: case_of(make_job(mixture(), dtype="fp32", schedule="gpipe"), 3, "v100-32gb:1x8"),
    "images": lambda: case_of(make_job(load_model("resnet-50"), seq_len=0), 2),
    "gpt-tiny": lambda: case_of(make_job(load_model("gpt-tiny"), micro_batches="best"), 2),
}


@pytest.mark.parametrize("name", list(CASES))
def test_plans_are_valid_and_their_files_give_them_back(name: str) -> None:
    """Valid: the records check themselves. The same request again gives the same bytes."""
    case = CASES[name]()
    plan = plan_of(case)
    text = plan_to_json(plan)
    assert parse_plan(text, "plan.json") == plan
    assert plan_to_json(parse_plan(text, "plan.json")) == text
    assert plan_to_json(plan_of(CASES[name]())) == text


@pytest.mark.parametrize("name", list(CASES))
def test_figures_are_the_cells(name: str) -> None:
    job, machine, cell = case = CASES[name]()
    plan = plan_of(case)
    assert (plan.batch.micro_batch, plan.batch.micro_batches) == (cell.micro_batch, cell.micro_batches)
    assert plan.estimate == estimate_figures(job, machine, cell)
    assert plan.estimate.iteration_time_s == cell.iteration_time_s
    assert plan.estimate.samples_per_s == pytest.approx(job.global_batch / cell.iteration_time_s)
    assert plan.estimate.peak_memory_bytes == max(stage.memory_bytes for stage in plan.stages)
    for field in fields(plan.estimate.breakdown):
        assert getattr(plan.estimate.breakdown, field.name) == getattr(cell.breakdown, field.name)
    for stage, estimate in zip(plan.stages, cell.stages, strict=True):
        option = estimate.option
        assert stage.chunks == ((estimate.first, estimate.end),)
        assert (stage.dp, stage.tp) == (option.parallelism.dp, option.parallelism.tp)
        assert tuple(plan.devices[rank].index for rank in stage.ranks) == tuple(slot.index for slot in estimate.slots)
        assert tuple(plan.devices[rank].node for rank in stage.ranks) == tuple(slot.node for slot in estimate.slots)
        assert stage.compute_s == option.compute_s
        assert stage.communication_s == option.blocking_s + estimate.transfer_s
        assert stage.sequence_parallel == (job.sequence_parallel and stage.tp > 1)
        assert stage.recompute.layers == (
            estimate.end - estimate.first if option.parallelism.recompute == "full" else 0
        )
        assert stage.sharding.shard == (stage.dp if job.zero else 1)
        assert stage.sharding.zero == job.zero


def test_a_hybrid_plan_is_one() -> None:
    plan = plan_of(CASES["hybrid"]())
    assert [(stage.dp, stage.tp) for stage in plan.stages] == [(2, 1), (2, 1), (1, 8), (4, 1)]
    assert len({plan.devices[rank].node for rank in plan.stages[2].ranks}) == 1


def test_hardware_flops_count_what_is_recomputed_and_no_more() -> None:
    job, machine, cell = tight()
    recomputed = [stage for stage in cell.stages if stage.option.parallelism.recompute == "full"]
    assert 0 < len(recomputed) < len(cell.stages)
    figures = estimate_figures(job, machine, cell)
    forward = count_model_flops(job).forward_by_layer
    again = sum(forward[i] for stage in recomputed for i in range(stage.first, stage.end))
    per_device = job.global_batch / cell.iteration_time_s / cell.devices / 1e12
    assert figures.hardware_tflops_per_device == pytest.approx(figures.tflops_per_device + again * per_device)


def test_provenance_and_interval() -> None:
    """No interval without measured compute; with it, as far below and above as the samples, and the profiles named."""
    job = make_job(tied_gpt(), micro_batches=4)
    modelled = plan_of(case_of(job, 1, "a100-80gb:1x1"))
    assert modelled.provenance.compute == "modelled"
    assert modelled.provenance.communication is None
    assert modelled.provenance.profile_ids == ()
    assert modelled.estimate.interval_90_s is None
    assert modelled.estimate.interval_90_reason == NO_INTERVAL

    def look_up(layer: Layer, _shard: Shard) -> LayerTime:
        return LayerTime(
            forward_s=1.0,
            backward_s=2.0,
            optimizer_s=0.5,
            provenance="measured",
            relative_low=0.05,
            relative_high=0.2,
            profile_id=f"profile of {type(layer).__name__}",
        )

    measured = plan_of(case_of(job, 1, "a100-80gb:1x1", lookup=look_up))
    assert measured.provenance.compute == "measured"
    assert measured.provenance.profile_ids == (
        "profile of Embedding",
        "profile of Head",
        "profile of TransformerBlock",
    )
    assert measured.estimate.interval_90_s is not None
    low, high = measured.estimate.interval_90_s
    compute_s = 4 * 6 * 3.0  # four micro-batches through six layers of 3 s
    assert measured.estimate.iteration_time_s - low == pytest.approx(0.05 * compute_s)
    assert high - measured.estimate.iteration_time_s == pytest.approx(0.2 * compute_s)
    assert measured.estimate.interval_90_reason is None


def test_an_uncertain_interval_does_not_go_below_zero() -> None:
    job, machine, cell = CASES["one stage"]()
    figures = estimate_figures(
        job, machine, replace(cell, spread_s=(2 * cell.iteration_time_s, 2 * cell.iteration_time_s))
    )
    assert figures.interval_90_s == (0.0, 3 * cell.iteration_time_s)
