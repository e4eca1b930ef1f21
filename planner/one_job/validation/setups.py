"""From a row of a run table to a plan that can be predicted, blanks filled by named defaults; or a reason why not."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, get_args

from estimator.pricing.build import PipelineDegrees, uniform_setup
from estimator.pricing.pipeline_layout import blocks_by_chunk
from estimator.pricing.recipe import (
    GradDType,
    OffloadPart,
    OptimizerName,
    Overlap,
    Recipe,
    ScheduleName,
    Setup,
    Software,
    ZeroStage,
)
from estimator.pricing.software import Framework, load_framework, overruled, usual_framework
from models_zoo.model import Model
from planner.one_job.tools.habitual_blocks import habitual_blocks
from planner.one_job.validation.cluster import cluster_of
from planner.one_job.validation.grid import RunGrid, grid_of
from planner.one_job.validation.model import LoadModel, model_of
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.words import word_of, words_of
from planner.shared.software_defaults import choices_in_turn, recompute_ladder
from planner.shared.training_software import framework_for
from profiles.cluster import Cluster
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import AttentionKernel, DType, RecomputeKind

if TYPE_CHECKING:
    from planner.one_job.validation.columns import RunRow

DTYPES: dict[str, DType] = {
    **{name: name for name in get_args(DType)},
    **dict.fromkeys(("bfloat16", "amp_bf16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("float16", "amp_fp16", "fp16 mixed", "16-mixed"), "fp16"),
    "float32": "fp32",
}
"""Compute types by the names that training software has for them."""

GRAD_DTYPES: dict[str, GradDType] = {name: name for name in get_args(GradDType)}
OPTIMIZERS: dict[str, OptimizerName] = {name: name for name in get_args(OptimizerName)}
SCHEDULES: dict[str, ScheduleName] = {name: name for name in get_args(ScheduleName)}
OVERLAPS: dict[str, Overlap] = {name: name for name in get_args(Overlap)}
OFFLOADS: dict[str, OffloadPart] = {name: name for name in get_args(OffloadPart)}
RECOMPUTES: dict[str, RecomputeKind] = {name: name for name in get_args(RecomputeKind)}
ZERO_STAGES: tuple[ZeroStage, ...] = get_args(ZeroStage)
SHARDINGS: dict[str, ZeroStage] = {
    **{form.format(stage): stage for stage in ZERO_STAGES for form in ("{}", "zero-{}", "zero{}", "zero_{}")},
    **dict.fromkeys(("fsdp", "fsdp_full_shard", "full_shard", "hsdp", "hybrid_shard"), 3),
    **dict.fromkeys(("fsdp_shard_grad_op", "shard_grad_op"), 2),
    **dict.fromkeys(("none", "ddp"), 0),
}
SHARDINGS_SHOWN = "0 to 3, zero-0 to zero-3, fsdp (full_shard), shard_grad_op, none or ddp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a row trains with: the framework's declaration with the row's own statements in place of its defaults."""

    framework: Framework
    software: Software
    dtype: DType
    grad_dtype: GradDType
    zero: ZeroStage


def setup_of(row: RunRow, *, load: LoadModel | None = None) -> PreparedRun | Skipped:
    """Return the plan that `row` describes, with a sentence for each assumption; or why it cannot be predicted.

    Nothing measured is used: two rows that differ in their figures alone give equal plans. `load` None: models are
    called by the names of the zoo and by their config files. InputError, naming row and column, for words that are
    unknown.
    """
    assumed: list[str] = []
    cluster = cluster_of(row, assumed)
    if isinstance(cluster, Skipped):
        return cluster
    nodes = cluster.sites[0].nodes[0]
    framework = _framework(row, nodes.device.name, assumed)
    dropout = framework.dropout if row.dropout is None else row.dropout
    model = model_of(row, dropout=dropout, assumed=assumed, load=load)
    if isinstance(model, Skipped):
        return model
    training = _training(row, framework_for(framework, model, nodes.device.name), assumed)
    framework = training.framework
    devices = row.gpus_total or len(cluster.free_slots)
    grid = grid_of(
        row, model, devices=devices, framework=framework, island=min(nodes.island_size, nodes.devices), assumed=assumed
    )
    if isinstance(grid, Skipped):
        return grid
    if not row.zero_or_fsdp and grid.degrees.dp * grid.degrees.cp > 1:
        assumed.append(f"zero: not stated; {training.zero}, the default of {training.framework.name} (zero_or_fsdp)")
    shard = None if row.shard is None or not training.zero else min(row.shard, grid.degrees.dp * grid.degrees.cp)
    recipe = _recipe(row, model, cluster, training, grid, assumed)
    shares_tokens = _sequence_parallel(row, framework, grid.degrees, assumed)
    setups = []
    stage_layers = -(-len(model.layers) // grid.degrees.pp)
    blocks = blocks_of(row) or habitual_blocks(model, recipe, grid.degrees)
    for micro_batch, recompute, layers in _tried(row, grid, framework, stage_layers, assumed):
        setup = uniform_setup(
            model,
            cluster,
            recipe,
            **asdict(replace(grid.degrees, sequence_parallel=shares_tokens)),
            micro_batch_per_rank=micro_batch,
            zero=training.zero,
            shard=shard,
            recompute=recompute,
            recompute_layers=layers,
            offload=words_of(row, "offload", OFFLOADS) or frozenset(),
            blocks=blocks,
        )
        if isinstance(setup, Setup):
            setups.append(setup)
        elif not setups:
            return Skipped(reason=setup.reason)
    return PreparedRun(setup=setups[0], assumptions=tuple(dict.fromkeys(assumed)), instead=tuple(setups[1:]))


def blocks_of(row: RunRow) -> tuple[int, ...] | None:
    """Return the blocks of each chunk that the row states, None where it does not. Raise InputError for no layout."""
    if not row.pipeline_layout:
        return None
    try:
        return blocks_by_chunk(row.pipeline_layout)
    except ValueError as error:
        raise InputError(
            where=row.where, key="pipeline_layout", found=repr(row.pipeline_layout), expected=str(error)
        ) from None


def _tried(
    row: RunRow, grid: RunGrid, framework: Framework, stage_layers: int, assumed: list[str]
) -> tuple[tuple[int, RecomputeKind, int | None], ...]:
    """Micro-batches, kinds of recomputation and layers of a stage in the order in which they are tried: the first alone
    where the row states them."""
    stated = word_of(row, "recompute", RECOMPUTES)
    sizes = (grid.micro_batch, *grid.smaller)
    kinds = recompute_ladder(framework) if stated is None else (stated,)
    if stated is None:
        assumed.append(f"recompute: not stated; {kinds[0]}, or more if memory forces it (recompute)")
    turns = choices_in_turn(framework, sizes, kinds, stage_layers)
    if row.recompute_layers is None:
        return turns
    return tuple((samples, kind, row.recompute_layers) for samples, kind, layers in turns if layers is None)


def _framework(row: RunRow, device: str, assumed: list[str]) -> Framework:
    """The software that the row names, or what is usual on the device."""
    if row.framework:
        return load_framework(row.framework, where=row.where, key="framework")
    framework = usual_framework(device)
    assumed.append(f"framework: not told; {framework.name}, what is run on {device} today (framework)")
    return framework


def _training(row: RunRow, framework: Framework, assumed: list[str]) -> Training:
    """Software, precision and ZeRO; adds to `assumed` what the row leaves to the framework."""
    dtype = word_of(row, "dtype", DTYPES, shown=f"one of {', '.join(get_args(DType))}")
    if dtype is None:
        dtype = DTYPES[framework.dtype]
        assumed.append(f"dtype: not stated; {dtype}, the default of {framework.name} (dtype)")
    framework = framework.for_dtype(dtype)
    stated = word_of(row, "zero_or_fsdp", SHARDINGS, shown=SHARDINGS_SHOWN)
    zero = framework.zero if stated is None else stated
    return Training(
        framework=framework,
        software=_software(row, framework.software_under(zero)),
        dtype=dtype,
        grad_dtype=word_of(row, "grad_dtype", GRAD_DTYPES) or dict(framework.grad_dtype)[dtype],
        zero=zero,
    )


def _software(row: RunRow, declared: Software) -> Software:
    """The declared features, with those that the row states in their place."""
    stated = [text for text in re.split(r"[;\s]+", row.features) if text]
    columns = {name: getattr(row, name) for name in ("kernels", "launch", "fused_cross_entropy", "optimizer_masters")}
    stated += [f"{name}={value}" for name, value in columns.items() if value not in ("", None)]
    return overruled(declared, tuple(stated), where=row.where, key="features")


def _recipe(
    row: RunRow, model: Model, cluster: Cluster, training: Training, grid: RunGrid, assumed: list[str]
) -> Recipe:
    return Recipe(
        global_batch=grid.global_batch,
        seq_len=model.seq_len,
        dtype=training.dtype,
        grad_dtype=training.grad_dtype,
        optimizer=_optimizer(row, model, assumed),
        schedule=word_of(row, "schedule", SCHEDULES) or ("interleaved" if grid.degrees.vpp > 1 else "1f1b"),
        attention=_attention(row, model, cluster, assumed),
        vocabulary_multiple=row.vocab_multiple or training.framework.vocabulary_multiple,
        lora_rank=row.lora_rank or 0,
        moe_capacity_factor=row.moe_capacity_factor,
        moe_imbalance=max(1.0, row.moe_imbalance or 1.0),
        overlap=_overlap(row, training, assumed),
        software=training.software,
    )


def _overlap(row: RunRow, training: Training, assumed: list[str]) -> frozenset[Overlap]:
    stated = words_of(row, "overlap", OVERLAPS)
    if stated is not None:
        return stated
    overlap = training.framework.overlap_under(training.zero)
    shown = "+".join(sorted(overlap)) or "none"
    assumed.append(f"overlap: not stated; {shown}, the default of {training.framework.name} (overlap)")
    return overlap


def _optimizer(row: RunRow, model: Model, assumed: list[str]) -> OptimizerName:
    name = word_of(row, "optimizer_notes", OPTIMIZERS)
    if name is None:
        name = "sgd" if model.family == "resnet" else "adamw"
        assumed.append(f"optimizer: not stated; {name} (optimizer_notes)")
    return name


def _attention(row: RunRow, model: Model, cluster: Cluster, assumed: list[str]) -> AttentionKernel:
    if row.flash_attn is not None:
        return "flash" if row.flash_attn else "math"
    has = cluster.sites[0].nodes[0].device.flash_attention
    if model.seq_len:
        assumed.append(f"attention: not stated; {'flash' if has else 'math'}, as the device allows (flash_attn)")
    return "flash" if has else "math"


def _sequence_parallel(row: RunRow, framework: Framework, degrees: PipelineDegrees, assumed: list[str]) -> bool:
    if degrees.tp == 1 or row.seq_parallel is not None:
        return degrees.tp > 1 and bool(row.seq_parallel)
    word = "on" if framework.sequence_parallel else "off"
    assumed.append(f"seq_parallel: not stated; {word}, the default of {framework.name} (seq_parallel)")
    return framework.sequence_parallel
