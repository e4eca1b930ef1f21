"""From a setup and its evaluation to the plan record, as the plan file keeps it."""

from __future__ import annotations

from dataclasses import asdict, fields

from estimator.pricing.headroom import memory_fit
from estimator.pricing.outcome import Evaluation, RankMemory
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from planner.one_job.explicit.figures import SetupFlops, count_setup_flops, rate_setup
from planner.one_job.pods.uplink_use import network_use
from planner.shared.model_sizes import model_sizes
from planner.shared.plan import (
    Plan,
    PlanBatch,
    PlanDevice,
    PlanEstimate,
    PlanModel,
    PlanProvenance,
    PlanStage,
    RecomputeRule,
    Sharding,
    device_types,
)
from planner.shared.plan_parts import PlanMemory, PlanMemoryFit, PlanRecipe, PlanSoftware, PlanTimeBreakdown
from planner.shared.version import VERSION
from profiles.cluster import host_of


def record_plan(setup: Setup, evaluation: Evaluation, *, reference: str, assumptions: tuple[str, ...]) -> Plan:
    """Return the plan that `setup` is and `evaluation` prices. `reference` is what the user called the model.

    Ranks are numbered stage by stage; `planner.one_job.explicit.reading.setup_of_plan` gives the setup back.
    """
    recipe = setup.recipe
    flops = count_setup_flops(setup)
    slots = [slot for stage in setup.stages for slot in stage.slots]
    return Plan(
        model=PlanModel(
            name=setup.model.name,
            reference=reference,
            sizes=model_sizes(setup.model, parameters=flops.parameters),
            seq_len=recipe.seq_len or None,
            dtype=recipe.dtype,
        ),
        cluster=setup.cluster.text,
        batch=PlanBatch(
            global_batch=recipe.global_batch, micro_batch=setup.micro_batch, micro_batches=setup.micro_batches
        ),
        schedule=recipe.schedule,
        optimizer=recipe.optimizer,
        devices=tuple(
            PlanDevice(
                rank=rank,
                site=slot.site,
                node=slot.node,
                device=slot.device,
                index=slot.index,
                host=host_of(setup.cluster, slot),
            )
            for rank, slot in enumerate(slots)
        ),
        rank_axis_order=("tp", "cp", "dp", "pp"),
        stages=record_stages(setup, evaluation),
        estimate=record_estimate(setup, evaluation, flops),
        provenance=PlanProvenance(
            compute=evaluation.compute_provenance,
            communication=evaluation.communication_provenance,
            memory="modelled",
            profile_ids=evaluation.profile_ids,
            link_table_ids=evaluation.link_table_ids,
            version=VERSION,
            search_space_size=1,
            optimality_proved=False,
        ),
        assumptions=assumptions,
        recipe=_record_recipe(recipe),
        network=network_use(setup, evaluation.iteration_time_s),
    )


def record_estimate(setup: Setup, evaluation: Evaluation, flops: SetupFlops) -> PlanEstimate:
    """Return the figures of `evaluation` as the plan file keeps them."""
    rates = rate_setup(setup, flops, evaluation.iteration_time_s)
    return PlanEstimate(
        iteration_time_s=evaluation.iteration_time_s,
        samples_per_s=rates.samples_per_s,
        tokens_per_s_per_device=rates.tokens_per_s_per_device,
        tflops_per_device=rates.tflops_per_device,
        causal_tflops_per_device=rates.causal_tflops_per_device,
        hardware_tflops_per_device=rates.hardware_tflops_per_device,
        mfu=rates.mfu,
        peak_memory_bytes=evaluation.peak_memory_bytes,
        reserve_bytes=max(rank.reserve_bytes for rank in evaluation.memory),
        breakdown=PlanTimeBreakdown(
            **{part.name: getattr(evaluation.breakdown, part.name) for part in fields(PlanTimeBreakdown)}
        ),
        interval_90_s=evaluation.interval_90_s,
        memory_interval_90_bytes=evaluation.memory_interval_90_bytes,
        memory_fit=PlanMemoryFit(**asdict(memory_fit(evaluation))),
    )


def _record_recipe(recipe: Recipe) -> PlanRecipe:
    return PlanRecipe(
        grad_dtype=recipe.grad_dtype,
        vocabulary_multiple=recipe.vocabulary_multiple,
        lora_rank=recipe.lora_rank,
        frozen_layers=recipe.frozen_layers,
        moe_capacity_factor=recipe.moe_capacity_factor,
        moe_imbalance=recipe.moe_imbalance,
        overlap=tuple(sorted(recipe.overlap)),
        software=PlanSoftware.of(recipe.software),
    )


def record_stages(setup: Setup, evaluation: Evaluation) -> tuple[PlanStage, ...]:
    """Return the stages of `setup` with their figures, as the plan file keeps them."""
    stages, first_rank = [], 0
    for number, stage in enumerate(setup.stages):
        stages.append(
            _record_stage(
                stage,
                setup.recipe,
                first_rank=first_rank,
                memory=evaluation.memory[number],
                compute_s=evaluation.stage_compute_s[number],
                communication_s=evaluation.stage_communication_s[number],
            )
        )
        first_rank += len(stage.slots)
    return tuple(stages)


def _record_stage(
    stage: StageSetup, recipe: Recipe, *, first_rank: int, memory: RankMemory, compute_s: float, communication_s: float
) -> PlanStage:
    layers = stage.layers if stage.recompute_layers is None else min(stage.recompute_layers, stage.layers)
    kind = stage.recompute if layers else "none"
    return PlanStage(
        chunks=stage.chunks,
        device=device_types(slot.device for slot in stage.slots),
        ranks=tuple(range(first_rank, first_rank + len(stage.slots))),
        dp=stage.dp,
        tp=stage.tp,
        sequence_parallel=stage.sequence_parallel,
        cp=stage.cp,
        ep=stage.ep,
        etp=stage.etp,
        sharding=Sharding(zero=stage.zero, shard=stage.sharded_over, replicate=stage.replicas),
        attention=recipe.attention,
        recompute=RecomputeRule(kind=kind, layers=0 if kind == "none" else layers),
        offload=tuple(sorted(stage.offload)),
        micro_batch_shares=stage.shares,
        compute_s=compute_s,
        communication_s=communication_s,
        memory_bytes=memory.peak_bytes,
        memory=PlanMemory(**{part.name: getattr(memory, part.name) for part in fields(PlanMemory)}),
    )
