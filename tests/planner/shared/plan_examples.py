"""A small plan of our own making, for the tests of what reads and writes plans."""

from __future__ import annotations

from planner.shared.plan import (
    PLAN_SCHEMA,
    ModelSizes,
    Plan,
    PlanBatch,
    PlanDevice,
    PlanEstimate,
    PlanModel,
    PlanProvenance,
    PlanStage,
    RecomputeRule,
    Sharding,
)
from planner.shared.plan_parts import PlanTimeBreakdown


def example_stage(first: int, end: int, ranks: tuple[int, ...], *, dp: int, tp: int) -> PlanStage:
    return PlanStage(
        chunks=((first, end),),
        device="a100-80gb",
        ranks=ranks,
        dp=dp,
        tp=tp,
        sequence_parallel=tp > 1,
        cp=1,
        ep=1,
        etp=1,
        sharding=Sharding(zero=1 if dp > 1 else 0, shard=dp, replicate=1),
        attention="flash",
        recompute=RecomputeRule(kind="none", layers=0),
        offload=(),
        micro_batch_shares=None,
        compute_s=0.1,
        communication_s=1 / 3,
        memory_bytes=end * 2**30,
    )


def example_plan() -> Plan:
    """Six layers on four devices: a data-parallel stage of four layers and a tensor-parallel one of two."""
    return Plan(
        schema=PLAN_SCHEMA,
        model=PlanModel(
            name="gpt-tiny",
            reference="gpt-tiny",
            sizes=ModelSizes(
                layers=6,
                blocks=4,
                parameters=16_000_000,
                hidden=256,
                heads=4,
                kv_heads=4,
                feed_forward_hidden=1024,
                vocab=50257,
                experts=None,
                experts_per_token=None,
            ),
            seq_len=256,
            dtype="bf16",
        ),
        cluster="a100-80gb:1x4",
        batch=PlanBatch(global_batch=32, micro_batch=4, micro_batches=8),
        schedule="1f1b",
        optimizer="adamw",
        devices=tuple(PlanDevice(rank=i, site="site", node=0, device="a100-80gb", index=i) for i in range(4)),
        rank_axis_order=("tp", "cp", "dp", "pp"),
        stages=(example_stage(0, 4, (0, 1), dp=2, tp=1), example_stage(4, 6, (2, 3), dp=1, tp=2)),
        estimate=PlanEstimate(
            iteration_time_s=1.5,
            samples_per_s=32 / 1.5,
            tokens_per_s_per_device=32 * 256 / 1.5 / 4,
            tflops_per_device=100.0,
            causal_tflops_per_device=95.0,
            hardware_tflops_per_device=100.0,
            mfu=100 / 312,
            peak_memory_bytes=6 * 2**30,
            reserve_bytes=2**30,
            breakdown=PlanTimeBreakdown(gemm_s=0.8, tp_s=0.3, pp_s=0.1, bubble_s=0.2, dp_s=0.06, optimizer_s=0.04),
            interval_90_s=(1.2, 1.9),
        ),
        provenance=PlanProvenance(
            compute="measured",
            communication="modelled",
            memory="modelled",
            profile_ids=("p1",),
            link_table_ids=(),
            version="0.1.0",
            search_space_size=12,
            optimality_proved=True,
        ),
        assumptions=("flash attention", "größer"),
    )
