"""Megatron-LM's arguments: a script that starts `pretrain_gpt.py` with torchrun.

Arguments as of Megatron-LM core_v0.15 (megatron/training/arguments.py). No package has that file: the tests check names
against the list of them in arguments.toml.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from planner.one_job.tools.base.export_records import ExportFile
from planner.one_job.tools.base.tool import backwards
from planner.one_job.tools.base.writing import Task, launcher_lines, shell_lines
from planner.one_job.tools.megatron.fields import Fields, core_fields
from planner.one_job.tools.megatron.names import OPTIMIZERS, argument
from profiles.vocabulary import NARROW_DTYPES

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
"""Given where the field is false; those of other fields are called as these, and given where they are true."""

RENAMED = {
    "num_moe_experts": "--num-experts",
    "layernorm_epsilon": "--norm-epsilon",
    "seq_len_interpolation_factor": "--rotary-seq-len-interpolation-factor",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}
"""Arguments with a value that are not called as the field."""


PRECISIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid")),
    "fp8_block": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--bf16",), ("--fp4-format", "e2m1")),
}
"""Arguments by compute type; none of fp32's."""


def write_megatron(task: Task) -> tuple[ExportFile, ...]:
    """Return `megatron.sh`: the plan as arguments of Megatron-LM."""
    plan, notes = task.plan, task.notes
    arguments = megatron_arguments(task)
    about = "pretrain_gpt.py is Megatron-LM's own: --script names another"
    script = task.script(default="pretrain_gpt.py", about=about)
    notes.append(
        "data, tokenizer, learning rate and --train-iters are yours: give them to megatron.sh, such as --mock-data"
        " --tokenizer-type NullTokenizer --train-iters 20 --lr 1e-4"
    )
    lines = [
        "#!/usr/bin/env bash",
        f"# {task.headline}",
        "# Megatron-LM core_v0.14 or later; what the plan does not say is taken from this script's own arguments.",
        "set -euo pipefail",
        *environment(task),
        "MEGATRON_ARGS=(",
        *(f"    {shlex.join(words)}" for words in arguments),
        ")",
        shell_lines([*launcher_lines(plan, notes), f'{script} "${{MEGATRON_ARGS[@]}}" "$@"']),
    ]
    return (ExportFile(name="megatron.sh", text="\n".join(lines) + "\n"),)


def environment(task: Task) -> list[str]:
    """What arguments.py requires of the environment: one connection for tp and cp on devices before Blackwell, more
    for FSDP; and TF32 where the plan computes in it."""
    lines, shape = [], task.shape
    if shape.zero < 2 and (shape.tp > 1 or shape.cp > 1):
        lines.append("export CUDA_DEVICE_MAX_CONNECTIONS=1")
    if task.plan.model.dtype == "tf32":
        lines.append("export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1")
    return lines


def megatron_arguments(task: Task) -> list[list[str]]:
    """Return each argument with its values."""
    plan, shape, decoder = task.plan, task.shape, task.decoder
    fields = core_fields(task)
    if fields.pop("num_query_groups") is not None:
        fields["group_query_attention"] = True
        fields["num_query_groups"] = decoder.kv_heads
    fields.pop("virtual_pipeline_model_parallel_size")
    tokens = plan.model.seq_len or 0
    positions, overlapped = max(decoder.positions, tokens), "dp" in task.recipe.overlap
    return [
        *_from_fields(fields),
        ["--seq-length", str(tokens)],
        ["--max-position-embeddings", str(positions)],
        ["--make-vocab-size-divisible-by", str(task.recipe.vocabulary_multiple)],
        ["--micro-batch-size", str(shape.micro_batch_per_rank)],
        ["--global-batch-size", str(plan.batch.global_batch)],
        *_virtual_stages(task, fields),
        *_point_to_point(task),
        *_precision(task),
        *_optimizer(task),
        *([["--ddp-bucket-size", str(task.bucket_elements)]] if task.bucket_elements and overlapped else []),
    ]


def _from_fields(fields: Fields) -> Iterator[list[str]]:
    for name, value in fields.items():
        if name in INVERSE:
            yield from ([flag] for flag in INVERSE[name] if not value)
        elif isinstance(value, bool):
            yield from [[f"--{argument(name)}"]] if value else []
        elif value is not None:
            flag = RENAMED.get(name, f"--{argument(name)}")
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


def _virtual_stages(task: Task, fields: Fields) -> list[list[str]]:
    shape = task.shape
    if shape.vpp == 1 or "pipeline_model_parallel_layout" in fields:
        return []
    return [["--num-layers-per-virtual-pipeline-stage", str(task.decoder.blocks // (shape.pp * shape.vpp))]]


def _point_to_point(task: Task) -> list[list[str]]:
    """Transfers beside compute are the interleaved schedule's default, and its only way with two stages."""
    shape = task.shape
    if shape.vpp == 1 or "p2p" in task.recipe.overlap:
        return []
    if shape.pp == 2:
        task.notes.append("with two interleaved stages transfers run beside compute, which the plan does not count on")
        return []
    return [["--no-overlap-p2p-communication"]]


def _precision(task: Task) -> list[list[str]]:
    dtype, grads = task.plan.model.dtype, task.recipe.grad_dtype
    arguments = [list(words) for words in PRECISIONS.get(dtype, ())]
    if dtype in NARROW_DTYPES:
        arguments += _narrow_beside(task)
    if dtype == "bf16" or dtype in NARROW_DTYPES:
        arguments += [["--grad-reduce-in-bf16"]] if grads == "bf16" else [["--accumulate-allreduce-grads-in-fp32"]]
    elif dtype == "fp16" and grads == "fp32":
        arguments += [["--accumulate-allreduce-grads-in-fp32"]]
    return arguments


def _narrow_beside(task: Task) -> list[list[str]]:
    """What is narrow besides products, and which layers' are not."""
    software = task.recipe.software
    arguments = []
    if software.fp8_scaling == "current" and task.plan.model.dtype == "fp8":
        arguments.append(["--fp8-recipe", "tensorwise"])
    if software.fp8_attention != "no":
        arguments.append(["--fp8-multi-head-attention"])
    if software.narrow_parameters and task.plan.model.dtype != "nvfp4":
        arguments.append(["--fp8-param-gather"])
    if software.wide_first or software.wide_last:
        arguments += [
            ["--first-last-layers-bf16"],
            ["--num-layers-at-start-in-bf16", str(software.wide_first)],
            ["--num-layers-at-end-in-bf16", str(software.wide_last)],
        ]
    return arguments


def _optimizer(task: Task) -> list[list[str]]:
    plan = task.plan
    arguments = [["--optimizer", backwards(OPTIMIZERS)[plan.optimizer]]]
    if plan.optimizer == "muon":
        arguments.append(["--ckpt-format", "torch"])
    elif task.shape.zero >= 2:
        arguments.append(["--ckpt-format", "fsdp_dtensor"])
    return arguments
