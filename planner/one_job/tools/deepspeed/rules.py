"""What DeepSpeed can run: ZeRO, AutoTP and AutoEP, or its pipeline engine with ZeRO 1 at most."""

from __future__ import annotations

from estimator.pricing.recipe import OptimizerName
from planner.one_job.tools.base.pipeline import EVEN
from planner.one_job.tools.base.rules import UNSHARED_EXPERTS_SPLIT_AS_ALL, shared_experts_whole, tokens_whole
from planner.one_job.tools.base.tool import Rule, TrainingTool

OPTIMIZERS: dict[str, OptimizerName] = {"AdamW": "adamw", "SGD": "sgd", "Muon": "muon"}
"""DeepSpeed's names, read in any case; `backwards` they are written."""

DEGREES = (
    Rule(
        key="stages[].cp",
        allows=lambda s: s.cp == 1,
        expected="1: its sequence parallelism exchanges heads (Ulysses), not tokens",
    ),
    tokens_whole("false: AutoTP keeps all tokens on each rank"),
    shared_experts_whole("1 where experts are shared (expert_tensor_parallel_size)"),
    UNSHARED_EXPERTS_SPLIT_AS_ALL,
    *(
        Rule(
            key=f"stages[].{name}",
            allows=lambda s, name=name: (s.pp == 1) | (getattr(s, name) == 1),  # type: ignore[misc]
            found=f"{{s.{name}}} with {{s.pp}} stages",
            expected="1 with stages",
        )
        for name in ("tp", "ep")
    ),
)

STATES = (
    Rule(
        key="stages[].sharding.replicate",
        allows=lambda s: not s.zero or s.replicate == 1,
        found="{s.replicate} copies of {s.shard} shards",
        expected="1: state sharded over all replicas",
    ),
    Rule(
        key="recipe.grad_dtype",
        allows=lambda s: s.zero > 0 or s.pp > 1 or s.job.grad_dtype in (None, s.job.dtype),
        found="{s.job.grad_dtype} gradients of {s.job.dtype} weights with ZeRO 0",
        expected="{s.job.dtype} gradients, or ZeRO",
    ),
    Rule(
        key="stages[].offload",
        allows=lambda s: "optimizer" not in s.offload or s.zero > 0,
        found="optimizer with ZeRO 0",
        expected="an offloaded optimizer with ZeRO 1 or more",
    ),
    Rule(
        key="stages[].offload",
        allows=lambda s: "weights" not in s.offload or s.zero == 3,
        found="weights with ZeRO {s.zero}",
        expected="offloaded weights with ZeRO 3",
    ),
)

DEEPSPEED = TrainingTool(
    name="deepspeed",
    summary="DeepSpeed: its JSON and launcher line",
    basis="DeepSpeed 0.19: PipelineEngine refuses ZeRO 2 and 3 (runtime/pipe/engine.py), AutoTP and AutoEP without"
    " stages, ZeRO-Offload",
    software="deepspeed",
    schedules=("1f1b",),
    recompute=("none", "full"),
    zero=(0, 1, 2, 3),
    sharded_pipelines=(0, 1),
    division=EVEN,
    overlaps_unsharded=False,
    dtypes=("bf16", "fp16", "fp32"),
    degrees=DEGREES,
    states=STATES,
    whole=(
        Rule(
            key="stages[].offload",
            allows=lambda s: "activations" not in s.offload or s.recompute == "full",
            expected="offloaded activations with full recomputation alone (cpu_checkpointing)",
        ),
    ),
    write="deepspeed.write:write_deepspeed",
    read="deepspeed.read:read_deepspeed",
)
