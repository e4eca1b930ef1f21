"""From a Cell's best assembly to a plan: ranks numbered, figures named, provenance stated."""

from __future__ import annotations

from dataclasses import asdict

from estimator.cells.cell import CellEstimate, StageEstimate
from estimator.cells.job import Job
from estimator.cells.stage_options import Machine
from estimator.layers.graph import build_graph
from estimator.performance import count_model_flops, rate_iteration
from models_zoo.layers import Experts, Layer, TransformerBlock
from planner.shared.model_sizes import model_sizes
from planner.shared.plan import (
    Plan,
    PlanBatch,
    PlanBreakdown,
    PlanDevice,
    PlanEstimate,
    PlanModel,
    PlanProvenance,
    PlanStage,
    RecomputeRule,
    Sharding,
)
from planner.shared.version import VERSION
from profiles.vocabulary import Shard

NO_INTERVAL = "not all is measured, and the models have no calibrated spread"


def make_plan(
    job: Job,
    machine: Machine,
    cell: CellEstimate,
    *,
    reference: str,
    search_space_size: int,
    assumptions: tuple[str, ...],
) -> Plan:
    """The plan that `cell` describes, on the devices it was estimated for.

    `reference` is what the user called the model; `search_space_size` the number of assemblies compared in all Cells.
    Ranks are numbered stage by stage, in a stage replica by replica, in a replica shard by shard.
    """
    graph = build_graph(job.model, shard=Shard(seq_len=job.seq_len, dtype=job.dtype), degrees=())
    ranks = [0]
    for stage in cell.stages:
        ranks.append(ranks[-1] + len(stage.slots))
    return Plan(
        model=PlanModel(
            name=job.model.name,
            reference=reference,
            sizes=model_sizes(job.model, parameters=graph.parameters),
            seq_len=job.seq_len or None,
            dtype=job.dtype,
        ),
        cluster=machine.cluster.text,
        batch=PlanBatch(global_batch=job.global_batch, micro_batch=cell.micro_batch, micro_batches=cell.micro_batches),
        schedule=job.schedule,
        optimizer=job.optimizer_name,
        devices=tuple(
            PlanDevice(rank=rank, site=slot.site, node=slot.node, device=slot.device, index=slot.index)
            for rank, slot in enumerate(slot for stage in cell.stages for slot in stage.slots)
        ),
        rank_axis_order=("tp", "cp", "dp", "pp"),
        stages=tuple(_plan_stage(job, machine, stage, first) for stage, first in zip(cell.stages, ranks, strict=False)),
        estimate=estimate_figures(job, machine, cell),
        provenance=PlanProvenance(
            compute=cell.compute_provenance,
            communication=cell.communication_provenance,
            # Saved activations come with a layer's profile; the rest of a rank's memory is computed.
            memory="mixed" if any(stage.option.profile_ids for stage in cell.stages) else "modelled",
            profile_ids=tuple(sorted({name for stage in cell.stages for name in stage.option.profile_ids})),
            link_table_ids=cell.link_table_ids,
            version=VERSION,
            search_space_size=search_space_size,
            optimality_proved=True,
        ),
        assumptions=assumptions,
    )


def estimate_figures(job: Job, machine: Machine, cell: CellEstimate) -> PlanEstimate:
    """The figures of `cell` as the plan file and the table show them."""
    flops = count_model_flops(job)
    recomputed = [stage for stage in cell.stages if stage.option.parallelism.recompute == "full"]
    rates = rate_iteration(
        job,
        iteration_time_s=cell.iteration_time_s,
        devices=cell.devices,
        device=machine.device,
        flops=flops,
        recomputed_flops=sum(sum(flops.forward_by_layer[stage.first : stage.end]) for stage in recomputed),
    )
    spread = cell.spread_s
    return PlanEstimate(
        iteration_time_s=cell.iteration_time_s,
        samples_per_s=rates.samples_per_s,
        tokens_per_s_per_device=rates.tokens_per_s_per_device,
        tflops_per_device=rates.tflops_per_device,
        causal_tflops_per_device=rates.causal_tflops_per_device,
        hardware_tflops_per_device=rates.hardware_tflops_per_device,
        mfu=rates.mfu,
        peak_memory_bytes=cell.peak_memory_bytes,
        reserve_bytes=max(stage.option.memory.reserve_bytes for stage in cell.stages),
        breakdown=PlanBreakdown(**asdict(cell.breakdown)),
        interval_90_s=None
        if spread is None
        else (max(0.0, cell.iteration_time_s - spread[0]), cell.iteration_time_s + spread[1]),
        interval_90_reason=NO_INTERVAL if spread is None else None,
    )


def _plan_stage(job: Job, machine: Machine, stage: StageEstimate, first_rank: int) -> PlanStage:
    option = stage.option
    dp, tp = option.parallelism.dp, option.parallelism.tp
    recomputes = option.parallelism.recompute != "none"
    return PlanStage(
        chunks=((stage.first, stage.end),),
        device=machine.device.name,
        ranks=tuple(range(first_rank, first_rank + dp * tp)),
        dp=dp,
        tp=tp,
        sequence_parallel=job.sequence_parallel and tp > 1,
        cp=1,
        ep=tp if any(_splits_experts(layer) for layer in job.model.layers[stage.first : stage.end]) else 1,
        etp=1,
        sharding=Sharding(zero=job.zero, shard=dp if job.zero else 1, replicate=1 if job.zero else dp),
        attention=job.attention_on(machine.device),
        recompute=RecomputeRule(kind=option.parallelism.recompute, layers=stage.end - stage.first if recomputes else 0),
        offload=(),
        micro_batch_shares=None,
        compute_s=option.compute_s,
        communication_s=option.blocking_s + stage.transfer_s,
        memory_bytes=option.memory.peak_bytes,
    )


def _splits_experts(layer: Layer) -> bool:
    """Whether tensor parallelism of `layer` splits its experts, whole ones to each rank."""
    return isinstance(layer, TransformerBlock) and isinstance(layer.feed_forward, Experts)
