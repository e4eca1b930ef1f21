"""From a row of a run table to a plan that can be predicted, blanks filled by named defaults; or a reason why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, get_args

from estimator.pricing.build import uniform_setup
from estimator.pricing.recipe import OffloadPart, OptimizerName, Recipe, ScheduleName, ZeroStage
from models_zoo.layers import Experts, TransformerBlock
from models_zoo.model import Model
from planner.one_job.validation.devices import cluster_of
from planner.one_job.validation.measured import assumed_batch
from planner.one_job.validation.models import model_of
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.software import Declared, chosen, declared_of, framework_of, overlap_of
from profiles.cluster import Cluster
from profiles.errors import InputError
from profiles.vocabulary import AttentionKernel, Infeasible, RecomputeKind

if TYPE_CHECKING:
    from planner.one_job.validation.rows import RunRow

TOKENS_PER_MICRO_BATCH = 8192
"""Tokens of a micro-batch on a rank where neither micro_batch nor grad_accum is stated."""

DEFAULT_LORA_RANK = 16

ACCUMULATION_PATTERN = r"(?:micro_num|micro-batches|grad_accum|gas|pp chunks)[ =]+(\d+)"
"""Micro-batches of an iteration on one rank, in the words of the notes that state them."""

OFFLOADS: dict[str, OffloadPart] = {name: name for name in get_args(OffloadPart)}

OPTIMIZER_PATTERNS: tuple[tuple[str, OptimizerName], ...] = (
    (r"muon", "muon"),
    (r"adafactor", "adafactor"),
    (r"8.?bit", "adam8bit"),
    (r"\bsgd\b", "sgd"),
    (r"adam|lamb", "adamw"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrid:
    """Degrees of a row, all stated or derived, and its batch."""

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    etp: int
    vpp: int
    global_batch: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """ZeRO stage and the ranks that share a copy (None: all dp * cp)."""

    zero: ZeroStage
    shard: int | None = None


def setup_of(row: RunRow) -> PreparedRun | Skipped:
    """The plan that `row` describes, with a sentence for each assumption; or why it cannot be predicted.

    Nothing measured is used: two rows that differ in their figures alone give equal plans. InputError for a column
    whose words are unknown (framework, schedule, overlap, offload, cluster).
    """
    assumed: list[str] = []
    framework = framework_of(row, assumed)
    model = model_of(row, dropout=framework.dropout, assumed=assumed, framework=framework)
    if isinstance(model, Skipped):
        return model
    cluster = cluster_of(row, assumed)
    if isinstance(cluster, Skipped):
        return cluster
    declared = declared_of(row, framework, assumed)
    if isinstance(declared, str):
        return Skipped(reason=declared)
    grid = _grid(row, model, cluster, declared, assumed)
    if isinstance(grid, Skipped):
        return grid
    sharding = _sharding(row, declared, grid, assumed)
    setup = uniform_setup(
        model,
        cluster,
        _recipe(row, model, cluster, declared, grid, sharding.zero, assumed),
        tp=grid.tp,
        pp=grid.pp,
        dp=grid.dp,
        cp=grid.cp,
        ep=grid.ep,
        etp=grid.etp,
        vpp=grid.vpp,
        micro_batch_per_rank=grid.micro_batch,
        sequence_parallel=_sequence_parallel(row, declared, grid, assumed),
        zero=sharding.zero,
        shard=sharding.shard,
        recompute=_recompute(row, declared, assumed),
        recompute_layers=row.recompute_layers,
        offload=_offload(row),
    )
    if isinstance(setup, Infeasible):
        return Skipped(reason=setup.reason)
    return PreparedRun(setup=setup, assumptions=tuple(dict.fromkeys(assumed)))


# Degrees and batch


def _grid(row: RunRow, model: Model, cluster: Cluster, declared: Declared, assumed: list[str]) -> RankGrid | Skipped:
    """Degrees and batch: those stated, the one left blank from the device count, then the batch."""
    devices = row.gpus_total or len(cluster.free_slots)
    tp, cp, pp, dp = row.tp, row.cp or 1, row.pp or 1, row.dp
    if not declared.framework.tensor_parallel and tp not in (None, 1):
        assumed.append(f"tp: taken as 1, since {declared.framework.name} has no tensor parallelism")
        tp = 1
    if tp is None and dp is not None and devices % (pp * cp * dp) == 0:
        tp = devices // (pp * cp * dp)
        if tp > 1:
            assumed.append("tp: not stated; what gpus_total leaves after pp, cp and dp")
    tp = tp or 1
    if dp is None:
        if devices % (tp * pp * cp):
            return Skipped(reason="gpus_total is no multiple of tp * pp * cp")
        dp = devices // (tp * pp * cp)
        if dp > 1:
            assumed.append("dp: not stated; gpus_total / (tp * pp * cp)")
    if tp * pp * cp * dp != devices:
        return Skipped(reason="tp * pp * dp * cp contradicts gpus_total")
    batch = _batch(row, dp, model, declared, assumed)
    if isinstance(batch, Skipped):
        return batch
    global_batch, micro_batch = batch
    if global_batch % (dp * micro_batch):
        whole = global_batch // (dp * micro_batch) * dp * micro_batch
        if not whole:
            return Skipped(reason="global_batch is smaller than dp * micro_batch")
        assumed.append("global_batch: rounded down to whole micro-batches")
        global_batch = whole
    blocks = (layer for layer in model.layers if isinstance(layer, TransformerBlock))
    experts = max((block.feed_forward.count for block in blocks if isinstance(block.feed_forward, Experts)), default=0)
    ep = row.ep or 1
    if experts and row.ep is None and declared.framework.zero == 3:
        # A layer with all experts' weights gathered would not fit on most devices.
        ep = gcd(experts, tp * cp * dp)
        assumed.append("ep: not stated; as many ranks as can share the experts evenly")
    return RankGrid(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep if experts else 1,
        etp=(row.etp or 1) if experts else 1,
        vpp=(row.vpp or 1) if pp > 1 else 1,
        global_batch=global_batch,
        micro_batch=micro_batch,
    )


def _batch(row: RunRow, dp: int, model: Model, declared: Declared, assumed: list[str]) -> tuple[int, int] | Skipped:
    """Samples of an iteration, and of a rank's micro-batch; what is blank from the other, the accumulation and dp."""
    notes, seq_len = row.notes.lower(), model.seq_len
    counted = re.search(ACCUMULATION_PATTERN, notes)
    accumulation = row.grad_accum or (int(counted[1]) if counted else None)
    global_batch, micro_batch = row.global_batch, row.micro_batch
    if global_batch is None:
        found = assumed_batch(row, model, declared.framework)
        if micro_batch is not None and accumulation is not None:
            global_batch = micro_batch * accumulation * dp
            assumed.append("global_batch: not stated; micro_batch * accumulation * dp")
        elif found is not None:
            global_batch, sentence = found
            assumed.append(sentence)
        else:
            return Skipped(reason="global_batch: not stated")
    if micro_batch is None:
        share = global_batch // dp
        if accumulation is not None and share % accumulation == 0:
            micro_batch = share // accumulation
        else:
            most = max(1, TOKENS_PER_MICRO_BATCH // seq_len) if seq_len else share
            micro_batch = max((n for n in range(1, most + 1) if share % n == 0), default=1)
            assumed.append(
                f"micro_batch: not stated; the most that divides the batch within {TOKENS_PER_MICRO_BATCH} tokens"
                " (micro_batch)"
            )
    return global_batch, micro_batch


# State sharding, recomputation, offload


def _sharding(row: RunRow, declared: Declared, grid: RankGrid, assumed: list[str]) -> Sharding:
    """`ZeRO-1 over 8 ranks`, `FSDP_FULL_SHARD`, `2`, `none`; blank: the framework's default."""
    text = row.zero_or_fsdp.lower()
    framework = declared.framework
    ranks = grid.dp * grid.cp
    stage = re.search(r"(?:zero)?[ _-]?([0-3])(?!\d)", text)
    over = re.search(r"over (\d+)", text)
    zero: ZeroStage
    if "shard_grad_op" in text or "shard-grad-op" in text:
        zero = 2
    elif "fsdp" in text or "full_shard" in text or "hsdp" in text or "hybrid_shard" in text:
        zero = 3
    elif text in ("none", "no", "ddp"):
        zero = 0
    elif stage:
        zero = _stage(int(stage[1]))
    elif text.startswith("zero"):
        zero = 3
        assumed.append("zero: the stage is not stated; 3 (zero_or_fsdp)")
    else:
        zero = framework.zero
        if ranks > 1:
            assumed.append(f"zero: not stated; {zero}, the default of {framework.name} (zero_or_fsdp)")
    shard = row.shard or (int(over[1]) if over else None)
    return Sharding(zero=zero, shard=None if shard is None or not zero else min(shard, ranks))


def _stage(number: int) -> ZeroStage:
    stages: dict[int, ZeroStage] = {0: 0, 1: 1, 2: 2, 3: 3}
    return stages[number]


def _sequence_parallel(row: RunRow, declared: Declared, grid: RankGrid, assumed: list[str]) -> bool:
    if row.seq_parallel is not None:
        return row.seq_parallel and grid.tp > 1
    if grid.tp == 1:
        return False
    on = declared.framework.sequence_parallel
    word = "on" if on else "off"
    assumed.append(f"seq_parallel: not stated; {word}, the default of {declared.framework.name} (seq_parallel)")
    return on


def _recompute(row: RunRow, declared: Declared, assumed: list[str]) -> RecomputeKind:
    kinds: dict[str, RecomputeKind] = {"none": "none", "selective": "selective", "full": "full"}
    if row.recompute:
        return kinds[row.recompute]
    kind = declared.framework.recompute
    whose = "" if kind == "none" else f", the default of {declared.framework.name}"
    assumed.append(f"recompute: not stated; {kind}{whose} (recompute)")
    return kind


def _offload(row: RunRow) -> frozenset[OffloadPart]:
    """The column, else what the row's words on ZeRO and the notes say."""
    if row.offload:
        return frozenset(chosen(row, "offload", OFFLOADS))
    parts: set[OffloadPart] = set()
    text = row.said.lower()
    if re.search(r"opt offl=y|offload of [a-z/]*optimizer", text):
        parts.add("optimizer")
    if re.search(r"pa_cpu=y|offload of [a-z/]*activations", text):
        parts.add("activations")
    return frozenset(parts)


# Recipe


def _recipe(
    row: RunRow,
    model: Model,
    cluster: Cluster,
    declared: Declared,
    grid: RankGrid,
    zero: ZeroStage,
    assumed: list[str],
) -> Recipe:
    schedule = _schedule(row, grid)
    return Recipe(
        global_batch=grid.global_batch,
        seq_len=model.seq_len,
        dtype=declared.dtype,
        grad_dtype=declared.grad_dtype,
        optimizer=_optimizer(row, assumed),
        schedule=schedule,
        attention=_attention(row, model, cluster, assumed),
        vocabulary_multiple=declared.vocabulary_multiple,
        lora_rank=_lora_rank(row, assumed),
        moe_capacity_factor=_capacity(row),
        overlap=overlap_of(row, declared.framework, zero, assumed),
        software=declared.software,
    )


def _schedule(row: RunRow, grid: RankGrid) -> ScheduleName:
    names: dict[str, ScheduleName] = {name: name for name in get_args(ScheduleName)}
    if row.schedule:
        name = row.schedule.strip().lower()
        if name not in names:
            expected = f"one of {', '.join(names)}"
            raise InputError(where=row.where, key="schedule", found=repr(row.schedule), expected=expected)
        return names[name]
    return "interleaved" if grid.vpp > 1 else "1f1b"


def _optimizer(row: RunRow, assumed: list[str]) -> OptimizerName:
    text = f"{row.optimizer_notes} | {row.notes}".lower()
    if "lamb" in row.optimizer_notes.lower():
        assumed.append("optimizer: LAMB is taken as adamw")
    name = next((name for pattern, name in OPTIMIZER_PATTERNS if re.search(pattern, text)), None)
    if name is None:
        name = "sgd" if row.model_family.lower() == "resnet" else "adamw"
        assumed.append(f"optimizer: not stated; {name} (optimizer_notes)")
    return name


def _attention(row: RunRow, model: Model, cluster: Cluster, assumed: list[str]) -> AttentionKernel:
    if row.flash_attn is not None:
        return "flash" if row.flash_attn else "math"
    has = cluster.sites[0].nodes[0].device.flash_attention
    if model.seq_len:
        assumed.append(f"attention: not stated; {'flash' if has else 'math'}, as the device allows (flash_attn)")
    return "flash" if has else "math"


def _lora_rank(row: RunRow, assumed: list[str]) -> int:
    if row.lora_rank is not None or not re.search(r"\blora\b", row.said.lower()):
        return row.lora_rank or 0
    assumed.append(f"lora_rank: not stated; {DEFAULT_LORA_RANK} (lora_rank)")
    return DEFAULT_LORA_RANK


def _capacity(row: RunRow) -> float | None:
    """Static capacity where the column or the notes state it; None: dropless."""
    if row.moe_capacity_factor is not None:
        return row.moe_capacity_factor
    stated = re.search(r"capacity factor ([\d.]+)", row.notes.lower())
    if stated:
        return float(stated[1])
    return 1.0 if "tokendrop" in row.notes.lower() else None
