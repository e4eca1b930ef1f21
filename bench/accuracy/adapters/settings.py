"""Settings of published runs: precision, sharding, overlap, batch and the rest, from words to columns."""

from __future__ import annotations

import re
from typing import Any, get_args

from bench.accuracy.adapters.frameworks import PublishedFramework, said
from estimator.pricing.recipe import ZeroStage
from planner.one_job.validation.columns import RunRow
from profiles.vocabulary import DType

DTYPE_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"fp4", "nvfp4"),
    (r"mx-?fp8|fp8-?mx", "mxfp8"),
    (r"fp8|float8|e4m3|hybrid", "fp8"),
    (r"int8|aqt", "int8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|half|amp", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32|float32|single", "fp32"),
)
"""Compute dtype by the first pattern in the row's dtype, lower case. With `amp_bf16` it is the 16-bit type."""

BLACKWELL_DTYPES, BLACKWELL = ("mxfp8", "nvfp4"), r"b[23]00"
"""Types that have rates on that architecture alone, and its devices."""

NARROW_SOURCES, TENSOR_FP8 = r"mlcommons/training", r"\b(?:h[12]00|gb?[23]00|b[23]00|gh200|mi3\d\dx)"
"""Submissions whose language models all run with narrow products where the device, one of these, has them."""

FOUR_BIT_BASE = r"(?:int4|nf4)\b.*\bbase"
"""Adapters over frozen weights of 4 bits (Q-LoRA), which every pass turns into 16."""

OPTIMIZER_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"muon", "muon"),
    (r"adafactor", "adafactor"),
    (r"8.?bit", "adam8bit"),
    (r"\bsgd\b", "sgd"),
    (r"adam|lamb", "adamw"),
)

ACCUMULATION_PATTERN = r"(?:micro_num|micro-batches|grad_accum|gas|pp chunks)[ =]+(\d+)"
"""Micro-batches of an iteration on one rank, in the words of the notes that state them."""

DEFAULT_LORA_RANK = 16

IMAGES_PER_DEVICE = 256
"""Images of a device's batch where none are stated: what training scripts for ResNet-50 have by default. A rate in
images per second hardly depends on it."""


def setting_columns(row: RunRow, framework: PublishedFramework, assumed: list[str]) -> dict[str, Any]:
    """Return the settings of the training that `row` describes as columns. Adds to `assumed` what is not stated."""
    zero, shard = _sharding(row, assumed)
    columns = {
        "framework": framework.name,
        **_precision(row, framework, assumed),
        "zero_or_fsdp": "" if zero is None else str(zero),
        "shard": row.shard or shard,
        "overlap": row.overlap or _overlap(row, framework, framework.declared.zero if zero is None else zero),
        "optimizer_notes": _optimizer(row, assumed),
        "offload": row.offload or _offload(row),
        "lora_rank": _lora_rank(row, assumed),
        "features": _features(row),
        "moe_capacity_factor": row.moe_capacity_factor or _capacity(row.notes.lower()),
        "recompute": row.recompute or framework.recompute,
        "kernels": row.kernels or ("fused" if _compiled(row) else ""),
        "grad_accum": row.grad_accum or _accumulation(row),
        "launch": row.launch or _launch(row, assumed),
    }
    if row.recompute != columns["recompute"]:
        assumed.append(f"recompute: not stated; {framework.recompute}, the default of {framework.name} (recompute)")
    if not framework.tensor_parallel and row.degree("tp") not in (None, 1):
        columns["degrees"] = tuple({**dict(row.degrees), "tp": 1}.items())
        assumed.append(f"tp: taken as 1, since {framework.name} has no tensor parallelism")
    return columns


def _precision(row: RunRow, framework: PublishedFramework, assumed: list[str]) -> dict[str, Any]:
    """Compute dtype, that of gradients and whether the optimizer has its own weights; a word of its own stays."""
    text = row.dtype.lower()
    dtype = next((dtype for pattern, dtype in DTYPE_PATTERNS if re.search(pattern, text)), text)
    if not dtype and re.search(NARROW_SOURCES, said(row).lower()) and re.search(TENSOR_FP8, row.gpu.lower()):
        assumed.append("dtype: not stated; fp8, as every published script of MLPerf's language models on such devices")
        dtype = "fp8"
    if dtype in BLACKWELL_DTYPES and not re.search(BLACKWELL, row.gpu.lower()):
        assumed.append(f"dtype: {dtype} products are taken as fp8")
        dtype = "fp8"
    pure = "mode pure" in row.optimizer_notes.lower()
    grad_dtype = row.grad_dtype
    if not grad_dtype and "fp32 grad" in text:
        grad_dtype = "fp32"
    elif not grad_dtype and pure:
        grad_dtype = "fp16" if (dtype or framework.declared.dtype) == "fp16" else "bf16"
    masters = row.optimizer_masters if row.optimizer_masters is not None or not pure else False
    return {
        "dtype": dtype if dtype in get_args(DType) else row.dtype,
        "grad_dtype": grad_dtype,
        "optimizer_masters": masters,
    }


def _launch(row: RunRow, assumed: list[str]) -> str:
    """How kernels are launched where a submission's script is not published; blank where nothing tells."""
    if not re.search(NARROW_SOURCES, said(row).lower()) or not re.search(BLACKWELL, row.gpu.lower()):
        return ""
    assumed.append("launch: not stated; graph, as published scripts of MLPerf's language models on Blackwell have it")
    return "graph"


def _sharding(row: RunRow, assumed: list[str]) -> tuple[ZeroStage | None, int | None]:
    """ZeRO's stage and the ranks that share a copy, from `ZeRO-1 over 8 ranks`, `HSDP (shard 8 inside a node)`,
    `FSDP_FULL_SHARD`, `2`, `none`; None where the row does not tell. Hybrid sharding is inside a node where no ranks
    are counted."""
    text = row.zero_or_fsdp.lower()
    stages: dict[str, ZeroStage] = {"0": 0, "1": 1, "2": 2, "3": 3}
    stage = re.search(r"(?:zero)?[ _-]?([0-3])(?!\d)", text)
    over = re.search(r"(?:over|shard) (\d+)", text) or re.search(r"(\d+) x \d+ replicas", text)
    zero: ZeroStage | None = None
    if "shard_grad_op" in text or "shard-grad-op" in text:
        zero = 2
    elif re.search("fsdp|full_shard|hsdp|hybrid_shard", text):
        zero = 3
    elif text in ("none", "no", "ddp"):
        zero = 0
    elif stage:
        zero = stages[stage[1]]
    elif text.startswith("zero"):
        zero = 3
        assumed.append("zero: the stage is not stated; 3 (zero_or_fsdp)")
    if over is None and re.search("hsdp|hybrid_shard", text) and not re.search(r"\d", text):
        return zero, row.gpus_per_node
    return zero, int(over[1]) if over else None


def _overlap(row: RunRow, framework: PublishedFramework, zero: ZeroStage) -> str:
    """What the notes say outright of communication beside compute; blank where they do not."""
    notes, declared = row.notes.lower(), framework.declared
    if "no grad/param overlap" in notes or "overlap-style paths off" in notes:
        return "none"
    torch_ddp = re.search(r"ddp-impl torch \(<=\s*(\d+)b\)", notes)
    if torch_ddp and row.params_b is not None and row.params_b < int(torch_ddp[1]) + 1:
        return "+".join(sorted(declared.overlap | {"dp"}))
    if re.search(r"async ?-?tp\b", notes):
        return "+".join(sorted(declared.overlap_under(zero) | {"tp"}))
    return ""


def _optimizer(row: RunRow, assumed: list[str]) -> str:
    text = f"{row.optimizer_notes} | {row.notes}".lower()
    if "lamb" in row.optimizer_notes.lower():
        assumed.append("optimizer: LAMB is taken as adamw")
    return next((name for pattern, name in OPTIMIZER_PATTERNS if re.search(pattern, text)), "")


def _offload(row: RunRow) -> str:
    text = said(row).lower()
    parts = {
        "optimizer": re.search(r"opt offl=y|offload of [a-z/]*optimizer|full offload(?!.*opt offl=n)", text),
        # DeepSpeed's scripts for ZeRO 3 with Megatron checkpoint in host memory (--checkpoint-in-cpu).
        "activations": re.search(
            r"pa_cpu=y|offload of [a-z/]*activations|megatron \+ deepspeed zero \(old branch\)(?!.*pa_cpu=n)", text
        ),
    }
    return "+".join(part for part, match in parts.items() if match)


def _features(row: RunRow) -> str:
    """The row's features, and how a frozen base is held where its precision says so."""
    text = row.dtype.lower()
    if not re.search(FOUR_BIT_BASE, text):
        return row.features
    held = "nf4" if "nf4" in text else "gptq"
    return "; ".join(filter(None, (row.features, f"frozen_as={held}")))


def _lora_rank(row: RunRow, assumed: list[str]) -> int | None:
    if row.lora_rank is not None or not re.search(r"\blora\b", said(row).lower()):
        return row.lora_rank
    stated = re.search(r"\blora r(?:ank )?(\d+)", said(row).lower())
    if stated:
        return int(stated[1])
    assumed.append(f"lora_rank: not stated; {DEFAULT_LORA_RANK} (lora_rank)")
    return DEFAULT_LORA_RANK


def _capacity(notes: str) -> float | None:
    """Static capacity of experts where the notes state it; None: dropless."""
    stated = re.search(r"capacity factor ([\d.]+)", notes)
    return float(stated[1]) if stated else 1.0 if "tokendrop" in notes else None


def _compiled(row: RunRow) -> bool:
    """Whether the row says that a compiler fused its small operators."""
    text = said(row).lower()
    return re.search(r"torch\.compile|\bcompiled?\b", text) is not None and "no compile" not in text


def _accumulation(row: RunRow) -> int | None:
    counted = re.search(ACCUMULATION_PATTERN, row.notes.lower())
    return int(counted[1]) if counted else None


# Batch


def batch_columns(
    row: RunRow, framework: PublishedFramework, seq_len: int | None, accumulation: int | None, assumed: list[str]
) -> dict[str, int]:
    """Return samples of an iteration where the row does not state them and neither micro-batch and accumulation do."""
    if row.global_batch is not None or (row.micro_batch is not None and accumulation is not None):
        return {}
    samples = batch_from_tokens(row, seq_len)
    if samples:
        assumed.append("global_batch: from the notes' tokens (1M read as 2^20)")
        return {"global_batch": samples}
    if not row.gpus_total:
        return {}
    if framework.samples_per_device and seq_len:
        samples = framework.samples_per_device
        assumed.append(f"global_batch: not stated; {samples} a device, as {framework.name} often has")
        return {"global_batch": samples * row.gpus_total}
    if "resnet" in row.model_name.lower() or row.model_family.lower() == "resnet":
        assumed.append(f"global_batch: not stated; {IMAGES_PER_DEVICE} images a device")
        return {"global_batch": IMAGES_PER_DEVICE * row.gpus_total}
    return {}


def batch_from_tokens(row: RunRow, seq_len: int | None) -> int | None:
    """Return samples of `seq_len` tokens an iteration where the notes alone state them, as tokens: `batch 0.5M tokens`,
    M being 2^20, or `1048576 tokens per step`; None where they do not."""
    if not seq_len:
        return None
    rounded = re.search(r"batch ([\d.]+)m tokens", row.notes.lower())
    exact = re.search(r"(\d+) tokens per step", row.notes.lower())
    tokens = float(rounded[1]) * 2**20 if rounded else float(exact[1]) if exact else 0.0
    return round(tokens / seq_len) or None
