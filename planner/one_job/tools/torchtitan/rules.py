"""What torchtitan can run: FSDP2 and HSDP, torch.distributed.pipelining's schedules, all layers recomputed or none."""

from __future__ import annotations

from dataclasses import replace

from estimator.pricing.recipe import ScheduleName
from planner.one_job.tools.base.rules import (
    ALL_LAYERS_RECOMPUTED,
    STATE_SHARDED_OVER_CP,
    UNSHARED_EXPERTS_SPLIT_AS_ALL,
    sharded_state_offloaded_whole,
    shared_experts_whole,
)
from planner.one_job.tools.base.tool import Rule, TrainingTool

SCHEDULES: dict[str, ScheduleName] = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved"}
"""PyTorch's names, read in any case; `backwards` they are written."""

DEGREES_NAMED = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
}

DEGREES = (
    Rule(
        key="stages",
        allows=lambda s: (s.pp == 1) | (not s.job.tied),
        found="{s.pp} stages of {s.job.model.name}, whose embedding and head share their weights",
        expected="such models in one stage",
    ),
    Rule(
        key="model.seq_len",
        allows=lambda s: (s.job.seq_len % s.tp == 0) & ((s.cp == 1) | (s.job.seq_len % (2 * s.cp * s.tp) == 0)),
        found="{s.job.seq_len}",
        expected="a multiple of tp and 2 * cp",
    ),
    UNSHARED_EXPERTS_SPLIT_AS_ALL,
    Rule(
        key="recipe.grad_dtype",
        allows=lambda s: (s.dp * s.cp == 1) | (s.job.grad_dtype in (None, "fp32")),
        found="{s.job.grad_dtype}",
        expected="fp32: what FSDP sums in",
    ),
)

STATES = (
    Rule(
        key="stages[].sharding.zero",
        allows=lambda s: s.zero > 0 or s.cp == 1,
        found="0 with tp {s.tp}, pp {s.pp} and cp {s.cp}",
        expected="FSDP beside context parallelism",
    ),
    STATE_SHARDED_OVER_CP,
    Rule(
        key="stages[].ep",
        allows=lambda s: s.ep == 1 or (s.shard if s.zero else 1) * (s.tp if s.etp == 1 else 1) % s.ep == 0,
        found="{s.ep} with shards of {s.shard} and tp {s.tp}",
        expected="a divisor of dp_shard * cp * tp",
    ),
    sharded_state_offloaded_whole(1, "nothing, or weights and optimizer together under FSDP (enable_cpu_offload)"),
)

TORCHTITAN = TrainingTool(
    name="torchtitan",
    summary="torchtitan 0.3 and later: a configuration in Python",
    basis="torchtitan 0.3: FSDP2 and HSDP (weights that stay gathered after forward are ZeRO 2, with stages ZeRO 1),"
    " torch.distributed.pipelining's schedules, all layers recomputed or none",
    software="torchtitan",
    schedules=tuple(SCHEDULES.values()),
    recompute=("none", "full"),
    zero=(0, 2, 3),
    sharded_pipelines=(0, 1, 3),
    optimizers=("adamw",),
    dtypes=("bf16", "fp32", "fp8"),
    degrees=(
        *DEGREES,
        shared_experts_whole("1"),
    ),
    states=STATES,
    whole=(ALL_LAYERS_RECOMPUTED,),
    model="torchtitan.settings:refuse_model",
    write="torchtitan.write:write_torchtitan",
)

TORCHTITAN_TOML = replace(
    TORCHTITAN,
    name="torchtitan-toml",
    summary="torchtitan to 0.2: a TOML file",
    basis=TORCHTITAN.basis.replace("0.3", "0.2"),
    degrees=(
        *DEGREES,
        Rule(
            key="stages[].sequence_parallel",
            allows=lambda s: (s.tp == 1) | (s.sequence_parallel > 0),
            found="False",
            expected="true: tensor parallelism comes with it",
        ),
        Rule(
            key="stages[].etp",
            allows=lambda s: (s.ep == 1) | (s.etp == 1) | (s.etp == s.tp),
            expected="1 or tp = {s.tp}",
        ),
    ),
    states=(
        *STATES,
        Rule(
            key="stages[].sharding.zero",
            allows=lambda s: s.zero > 0 or s.dp in (1, s.devices),
            found="0 with tp {s.tp}, pp {s.pp} and cp {s.cp}",
            expected="FSDP beside other parallelism",
        ),
    ),
    write="torchtitan.write:write_torchtitan_toml",
    read="torchtitan.read:read_torchtitan",
)
