"""What Megatron-LM and Megatron-Bridge can run: Megatron Core with its distributed optimizer, or Megatron FSDP."""

from __future__ import annotations

from dataclasses import replace

from planner.one_job.tools.base.shape import MEGATRON_ORDER, Shape
from planner.one_job.tools.base.tool import Rule, TrainingTool
from profiles.vocabulary import NARROW_DTYPES

GRADIENTS: dict[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp32"),
    "fp16": ("fp16", "fp32"),
    **dict.fromkeys(NARROW_DTYPES, ("bf16", "fp32")),
}
"""What gradients may be held in; fp32 with any other type."""


def recomputed_blocks(shape: Shape) -> list[int]:
    """Return the blocks of each chunk that are recomputed: the first of the stage, counted through its chunks."""
    left = list(shape.recompute_layers)
    counts = []
    for number, chunk in enumerate(shape.chunks):
        taken = min(left[number % shape.pp], chunk.blocks)
        left[number % shape.pp] -= taken
        counts.append(taken)
    return counts


def _counts_are_one(shape: Shape) -> bool:
    """Whether one number of blocks of every chunk is recomputed, or all of them. `block` counts blocks of each chunk,
    the first ones (core/transformer/transformer_block.py)."""
    if shape.recompute == "none" or shape.recomputes_all_blocks:
        return True
    counts = recomputed_blocks(shape)
    wanted = [min(max(counts), chunk.blocks) for chunk in shape.chunks]
    return shape.recompute == "full" and counts == wanted


DEGREES = (
    Rule(
        key="stages[].etp",
        allows=lambda s: (s.etp == 1) | (not s.job.biased_experts),
        expected="1, as its experts have the biases that all linear layers have",
    ),
    Rule(
        key="model.seq_len",
        allows=lambda s: (s.cp == 1) | (s.job.seq_len % (2 * s.cp) == 0),
        found="{s.job.seq_len} with cp {s.cp}",
        expected="a multiple of 2 * cp",
    ),
)

STATES = (
    Rule(
        key="stages[].sharding.replicate",
        allows=lambda s: not s.zero or s.ep == 1 or s.devices // s.pp // (s.ep * s.etp) % s.replicate == 0,
        found="{s.replicate} with ep {s.ep} and etp {s.etp}",
        expected="copies of the sharded state that divide the replicas of the experts",
    ),
    Rule(
        key="stages[].sharding.zero",
        allows=lambda s: not s.zero or s.job.optimizer != "muon",
        found="{s.zero} with muon",
        expected="ZeRO 0 with muon",
    ),
    Rule(
        key="stages[].offload",
        allows=lambda s: "weights" not in s.offload,
        found="weights",
        expected="offloading of optimizer state or activations",
    ),
    Rule(
        key="stages[].offload",
        allows=lambda s: "optimizer" not in s.offload or (s.zero > 0 and s.job.optimizer == "adamw"),
        found="optimizer with ZeRO {s.zero} and {s.job.optimizer}",
        expected="an offloaded optimizer with ZeRO 1 or more, and AdamW",
    ),
)

WHOLE = (
    Rule(
        key="stages[].offload",
        allows=lambda s: "activations" not in s.offload or (s.pp == 1 and s.recompute == "none" and s.job.blocks > 1),
        found="activations",
        expected="offloaded activations with one stage and without recomputation",
    ),
    Rule(
        key="stages[].recompute.layers",
        allows=_counts_are_one,
        found="{s.recompute} recomputation of {s.recompute_layers} layers by stage",
        expected="one number of blocks of every chunk, all of them with selective recomputation",
    ),
)

SEARCHED = (
    Rule(
        key="schedule",
        allows=lambda s: s.schedule != "interleaved" or s.pp > 2 or "p2p" in s.job.overlap,
        found="interleaved with {s.pp} stages",
        expected="transfers beside compute (p2p) with two interleaved stages",
    ),
    Rule(
        key="stages[].sharding.zero",
        allows=lambda s: s.zero < 2 or not s.job.fused_accumulation,
        expected="Megatron FSDP without fused accumulation of gradients",
    ),
)

MEGATRON = TrainingTool(
    name="megatron",
    summary="Megatron-LM: a script that starts pretrain_gpt.py with the plan's arguments",
    basis="Megatron-LM core 0.12: distributed optimizer (ZeRO 1), Megatron FSDP (ZeRO 2 and 3) without stages,"
    " forward_backward_pipelining with and without interleaving, --recompute-granularity, --optimizer-cpu-offload",
    software="megatron-core",
    schedules=("1f1b", "interleaved"),
    recompute=("none", "selective", "full"),
    counts_recomputed_layers=True,
    zero=(0, 1, 2, 3),
    sharded_pipelines=(0, 1),
    orders=(MEGATRON_ORDER, ("tp", "cp", "pp", "dp")),
    optimizers=("adamw", "sgd", "muon"),
    dtypes=("bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4", "fp32", "tf32"),
    job=(
        Rule(
            key="recipe.grad_dtype",
            allows=lambda s: s.job.grad_dtype in (None, *GRADIENTS.get(s.job.dtype, ("fp32",))),
            found="{s.job.grad_dtype}",
            expected="16-bit gradients of {s.job.dtype}'s own kind, or fp32",
        ),
    ),
    degrees=DEGREES,
    states=STATES,
    whole=WHOLE,
    searched=SEARCHED,
    model="megatron.fields:refuse_model",
    write="megatron.write:write_megatron",
    read="megatron.read:read_megatron",
)

BRIDGE = replace(
    MEGATRON,
    name="bridge",
    summary="Megatron-Bridge (NeMo): a recipe in Python",
    basis=f"Megatron-Bridge 0.3 on {MEGATRON.basis}",
    software="megatron-bridge",
    optimizers=("adamw", "sgd"),
    dtypes=("bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4", "fp32"),
    model="megatron.bridge:refuse_model",
    write="megatron.bridge:write_bridge",
    read=None,
)
