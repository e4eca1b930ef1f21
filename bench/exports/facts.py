"""What a tool is to understand of a plan."""

from __future__ import annotations

from typing import Any

from planner.one_job.tools.base.shape import shape_of
from planner.shared.plan import Plan


def facts_of(plan: Plan) -> dict[str, Any]:
    """The plan's degrees, batch and sharding by name; stages are alike."""
    shape, sizes = shape_of(plan, "facts", orders=(plan.rank_axis_order,)), plan.model.sizes
    names = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "zero", "micro_batch_per_rank", "recompute", "devices")
    return {
        **{name: getattr(shape, name) for name in names},
        "sequence_parallel": shape.sequence_parallel and shape.tp > 1,
        "replicate": shape.replicate if shape.zero else shape.dp,
        "sharded": shape.zero > 0,
        "blocks": sizes.blocks,
        "hidden": sizes.hidden,
        "parameters": sizes.parameters,
        "experts": sizes.experts,
        "global_batch": plan.batch.global_batch,
        "micro_batches": plan.batch.micro_batches,
        "seq_len": plan.model.seq_len,
        "lora_rank": shape.job.lora_rank,
        "four_bits": shape.job.frozen_as == "nf4",
        "frozen": shape.job.frozen_layers is not None,
        "paged": shape.job.paged_states,
    }


def differences(format_name: str, said: dict[str, Any], plan: Plan) -> list[str]:
    """Where what a tool said is not the plan, in words."""
    wanted = facts_of(plan)
    return [
        f"{name} {value}, the plan {wanted[name]}"
        for name, value in said.items()
        if name in wanted and value != wanted[name] and not _excused(format_name, name, wanted)
    ]


def _excused(format_name: str, name: str, wanted: dict[str, Any]) -> bool:
    """What says nothing: expert parallelism of dense models, copies where there is one replica, and DeepSpeed's batch,
    which counts tensor-parallel ranks."""
    if name in ("ep", "etp"):
        return wanted["experts"] is None
    if name == "replicate":
        return bool(wanted["dp"] == 1)
    return format_name == "deepspeed" and name in ("global_batch", "dp") and wanted["tp"] > 1
