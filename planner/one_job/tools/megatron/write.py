"""Megatron-LM's arguments: a script that starts `pretrain_gpt.py` with torchrun.

Arguments as of Megatron-LM core_v0.15 (megatron/training/arguments.py). No package has that file: the tests check names
against the list of them in `planner.one_job.importing`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from planner.one_job.tools.decoder import decoder_of
from planner.one_job.tools.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.one_job.tools.megatron.fields import (
    Fields,
    architecture_fields,
    expert_fields,
    kernel_fields,
    offload_fields,
    parallel_fields,
    recompute_fields,
    sharding_fields,
)
from planner.one_job.tools.shape import (
    MEGATRON_ORDER,
    Uniform,
    chunks_of,
    headline,
    launcher_lines,
    load_plan_model,
    recipe_of,
    refuse_training_beyond,
    script_of,
    shell_lines,
    uniform,
)
from planner.shared.plan import Plan, RankAxis

TOOL = "megatron"

ORDERS: tuple[tuple[RankAxis, ...], ...] = (MEGATRON_ORDER, ("tp", "cp", "pp", "dp"))

SWITCHES = {
    "swiglu": "--swiglu",
    "add_qkv_bias": "--add-qkv-bias",
    "qk_layernorm": "--qk-layernorm",
    "multi_latent_attention": "--multi-latent-attention",
    "moe_router_pre_softmax": "--moe-router-pre-softmax",
    "moe_grouped_gemm": "--moe-grouped-gemm",
    "moe_enable_deepep": "--moe-enable-deepep",
    "moe_pad_expert_input_to_capacity": "--moe-pad-expert-input-to-capacity",
    "overlap_moe_expert_parallel_comm": "--overlap-moe-expert-parallel-comm",
    "sequence_parallel": "--sequence-parallel",
    "cross_entropy_loss_fusion": "--cross-entropy-loss-fusion",
    "tp_comm_overlap": "--tp-comm-overlap",
    "use_distributed_optimizer": "--use-distributed-optimizer",
    "use_megatron_fsdp": "--use-megatron-fsdp",
    "overlap_grad_reduce": "--overlap-grad-reduce",
    "overlap_param_gather": "--overlap-param-gather",
    "use_tp_pp_dp_mapping": "--use-tp-pp-dp-mapping",
    "optimizer_cpu_offload": "--optimizer-cpu-offload",
    "use_precision_aware_optimizer": "--use-precision-aware-optimizer",
}
"""Given where the field is true."""

INVERSE = {
    "add_bias_linear": ("--disable-bias-linear",),
    "share_embeddings_and_output_weights": ("--untie-embeddings-and-output-weights",),
    "gradient_accumulation_fusion": ("--no-gradient-accumulation-fusion",),
    "fused_kernels": (
        "--no-masked-softmax-fusion",
        "--no-bias-gelu-fusion",
        "--no-bias-swiglu-fusion",
        "--no-bias-dropout-fusion",
        "--no-rope-fusion",
    ),
}
"""Given where the field is false."""

RENAMED = {
    "num_moe_experts": "--num-experts",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}
"""Arguments with a value that are not called as the field."""

OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "muon"}


def export_megatron(plan: Plan, context: ExportContext) -> Export:
    """`megatron.sh`: the plan as arguments of Megatron-LM. CannotExpress for what those cannot say."""
    notes: list[str] = []
    shape = uniform(plan, TOOL, orders=ORDERS)
    arguments = megatron_arguments(plan, shape, notes)
    about = "pretrain_gpt.py is Megatron-LM's own: --script names another"
    script = script_of(context, notes, default="pretrain_gpt.py", about=about)
    notes.append(
        "data, tokenizer, learning rate and --train-iters are yours: give them to megatron.sh, such as --mock-data"
        " --tokenizer-type NullTokenizer --train-iters 20 --lr 1e-4"
    )
    lines = [
        "#!/usr/bin/env bash",
        f"# {headline(plan, shape)}",
        "# Megatron-LM core_v0.14 or later; what the plan does not say is taken from this script's own arguments.",
        "set -euo pipefail",
        *environment(plan, shape),
        "MEGATRON_ARGS=(",
        *(f"    {shlex.join(words)}" for words in arguments),
        ")",
        shell_lines([*launcher_lines(plan, notes), f'{script} "${{MEGATRON_ARGS[@]}}" "$@"']),
    ]
    return Export(files=(ExportFile(name="megatron.sh", text="\n".join(lines) + "\n"),), notes=tuple(notes))


def environment(plan: Plan, shape: Uniform) -> list[str]:
    """What arguments.py requires of the environment: one connection for tp and cp on devices before Blackwell, more
    for FSDP; and TF32 where the plan computes in it."""
    lines = []
    if shape.zero < 2 and (shape.tp > 1 or shape.cp > 1):
        lines.append("export CUDA_DEVICE_MAX_CONNECTIONS=1")
    if plan.model.dtype == "tf32":
        lines.append("export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1")
    return lines


def megatron_arguments(plan: Plan, shape: Uniform, notes: list[str]) -> list[list[str]]:
    """Each argument with its values."""
    refuse_training_beyond(plan, TOOL)
    model = load_plan_model(plan)
    decoder, chunks = decoder_of(model, TOOL), chunks_of(plan, model)
    fields: Fields = {
        **architecture_fields(decoder, model.name, TOOL, notes),
        **expert_fields(decoder, plan, shape, TOOL, notes),
        **parallel_fields(shape, chunks, plan, TOOL),
        **recompute_fields(shape, chunks, TOOL),
        **kernel_fields(plan, shape, notes),
        **sharding_fields(plan, shape, TOOL),
        **offload_fields(plan, shape, TOOL, notes),
    }
    if fields.pop("num_query_groups") is not None:
        fields["group_query_attention"] = True
        fields["num_query_groups"] = decoder.kv_heads
    fields.pop("virtual_pipeline_model_parallel_size")
    tokens = plan.model.seq_len or 0
    positions = max(decoder.positions, tokens)
    return [
        *_from_fields(fields),
        ["--seq-length", str(tokens)],
        ["--max-position-embeddings", str(positions)],
        ["--make-vocab-size-divisible-by", str(recipe_of(plan).vocabulary_multiple)],
        ["--micro-batch-size", str(shape.micro_batch_per_rank)],
        ["--global-batch-size", str(plan.batch.global_batch)],
        *_virtual_stages(shape, fields, decoder.blocks),
        *_point_to_point(plan, shape, notes),
        *_precision(plan),
        *_optimizer(plan, shape),
        *_buckets(plan),
    ]


def _from_fields(fields: Fields) -> Iterator[list[str]]:
    for name, value in fields.items():
        if name == "group_query_attention":
            yield ["--group-query-attention"]
        elif name in SWITCHES:
            if value:
                yield [SWITCHES[name]]
        elif name in INVERSE:
            if not value:
                yield from ([flag] for flag in INVERSE[name])
        elif value is not None:
            flag = RENAMED.get(name, f"--{name.replace('_', '-')}")
            yield [flag, *_words(name, value)]


def _words(name: str, value: Any) -> list[str]:
    if name in ("moe_layer_freq", "window_attn_skip_freq"):
        return [pattern(value)]
    if name == "window_size":
        return [",".join(map(str, value))]
    if isinstance(value, tuple):
        return [str(part) for part in value]
    return [f"{value:g}" if isinstance(value, float) else str(value)]


def pattern(flags: Sequence[bool]) -> str:
    """Flags of layers as the list expression that Megatron-LM reads.

    >>> pattern([False, True, True]), pattern([False, True] * 3)
    ('([0]+[1]*2)', '([0]+[1])*3')
    """
    total = len(flags)
    period = next(
        size for size in range(1, total + 1) if not total % size and list(flags) == list(flags[:size]) * (total // size)
    )
    runs: list[list[int]] = []
    for flag in flags[:period]:
        if runs and runs[-1][0] == flag:
            runs[-1][1] += 1
        else:
            runs.append([int(flag), 1])
    body = "+".join(f"[{flag}]*{count}" if count > 1 else f"[{flag}]" for flag, count in runs)
    times = total // period
    return f"({body})*{times}" if times > 1 else f"({body})"


def _virtual_stages(shape: Uniform, fields: Fields, blocks: int) -> list[list[str]]:
    if shape.vpp == 1 or "pipeline_model_parallel_layout" in fields:
        return []
    return [["--num-layers-per-virtual-pipeline-stage", str(blocks // (shape.pp * shape.vpp))]]


def _point_to_point(plan: Plan, shape: Uniform, notes: list[str]) -> list[list[str]]:
    """Transfers beside compute are the interleaved schedule's default, and its only way with two stages."""
    if shape.vpp == 1 or "p2p" in recipe_of(plan).overlap:
        return []
    if shape.pp == 2:
        notes.append("with two interleaved stages transfers run beside compute, which the plan does not count on")
        return []
    return [["--no-overlap-p2p-communication"]]


def _precision(plan: Plan) -> list[list[str]]:
    dtype, grads = plan.model.dtype, recipe_of(plan).grad_dtype
    found = {"bf16": [["--bf16"]], "fp16": [["--fp16"]], "fp8": [["--bf16"], ["--fp8-format", "hybrid"]]}.get(dtype, [])
    if dtype in ("bf16", "fp8"):
        found += [["--grad-reduce-in-bf16"]] if grads == "bf16" else [["--accumulate-allreduce-grads-in-fp32"]]
    elif dtype == "fp16" and grads == "fp32":
        found += [["--accumulate-allreduce-grads-in-fp32"]]
    wanted = {"bf16": ("bf16", "fp32"), "fp8": ("bf16", "fp32"), "fp16": ("fp16", "fp32")}.get(dtype, ("fp32",))
    if grads not in wanted:
        expected = f"{' or '.join(wanted)} gradients with {dtype}"
        raise CannotExpress(tool=TOOL, key="recipe.grad_dtype", found=grads, expected=expected)
    return found


def _optimizer(plan: Plan, shape: Uniform) -> list[list[str]]:
    if plan.optimizer not in OPTIMIZERS:
        expected = " or ".join(OPTIMIZERS)
        raise CannotExpress(tool=TOOL, key="optimizer", found=plan.optimizer, expected=expected)
    if plan.optimizer == "muon" and shape.zero:
        sharded = f"{shape.zero} with muon"
        raise CannotExpress(tool=TOOL, key="stages[].sharding.zero", found=sharded, expected="ZeRO 0 with muon")
    found = [["--optimizer", OPTIMIZERS[plan.optimizer]]]
    if plan.optimizer == "muon":
        found.append(["--ckpt-format", "torch"])
    elif shape.zero >= 2:
        found.append(["--ckpt-format", "fsdp_dtensor"])
    return found


def _buckets(plan: Plan) -> list[list[str]]:
    """Gradient buckets, which Megatron-LM counts in elements."""
    recipe = recipe_of(plan)
    if not recipe.software.bucket_bytes or "dp" not in recipe.overlap:
        return []
    width = {"fp32": 4, "bf16": 2, "fp16": 2}[recipe.grad_dtype]
    return [["--ddp-bucket-size", str(recipe.software.bucket_bytes // width)]]
