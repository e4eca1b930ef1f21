"""What a row measured, in SI units: an iteration's seconds from whatever the source printed, and memory by its kind."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from models_zoo.layers import TransformerBlock
from models_zoo.model import Model
from planner.one_job.validation.results import MemoryKind

if TYPE_CHECKING:
    from planner.one_job.validation.rows import RunRow
    from planner.one_job.validation.software import RowFramework

FlopsConvention = Literal["model", "causal", "hardware"]
"""How a published TFLOP/s counts: attention in full and nothing twice (PaLM, appendix B), causal attention half, or
with what recomputation runs again."""

GB, GIB = 10**9, 2**30

CONVENTION_PATTERNS: tuple[tuple[str, FlopsConvention], ...] = (
    (r"hardware flops|factor.?4 formula|factor-4", "hardware"),
    (r"megatron-bridge", "causal"),
)
"""Where no column states the convention: the first pattern in the row's text. Megatron-Bridge's tables count causal
attention half (their FLOPs re-derive so)."""

MEMORY_PATTERNS: tuple[tuple[str, MemoryKind, str], ...] = (
    (r"max(?:imum)?[ _]allocated(?: memory)? GiB|max allocated GiB", "allocated", "GiB"),
    (r"memory only, GiB.*required", "required", "GiB"),
    (r"torchtitan", "reserved", "GiB"),
    (r"nanotron", "allocated", "GiB"),
    (r"max(?:imum)?[ _]allocated|memory_allocated", "allocated", "GB"),
)
"""Where no column states kind and unit: pattern in the row's text, kind of figure, unit. torchtitan prints the
allocator's peak of reserved memory in GiB, nanotron that of allocated memory over 1024^3 (its `Mem Alloc (GB)`)."""

SUMMED_STEPS_PATTERNS = (r"futuredata/gavel",)
"""Sources whose steps per second are those of all data-parallel workers added up, so that an iteration of them all
takes as many times the stated time as there are workers (gavel, scheduler/scripts/profiling/measure_throughput.py,
_done_callback; on K80s a batch of 128 takes one 0.55 s, and "0.275 s" two and "0.073 s" eight)."""

IMAGES_PER_DEVICE = 256
"""Images of a device's batch where none are stated: what training scripts for ResNet-50 have by default. A rate in
images per second hardly depends on it."""

IMAGES_PATTERN = r"throughput ([\d.]+) img/s"
"""A rate in words of the notes, of all devices, for want of a metric of the column."""


def time_without_model(row: RunRow) -> tuple[float | None, str]:
    """Seconds of an iteration and what they rest on, where no FLOPs of the model are needed; None otherwise.

    In this order: the stated time; the time that the table's author derived; tokens/s with batch, length and devices.
    """
    value = row.metric_value
    if value is not None and row.metric_name == "iter_time_s":
        workers = row.gpus_total or 1
        if workers > 1 and any(re.search(pattern, row.said.lower()) for pattern in SUMMED_STEPS_PATTERNS):
            return value * workers, "stated, as the steps of all workers together"
        return value, "stated"
    if row.derived_iter_time_s is not None:
        return row.derived_iter_time_s, f"derived in the table from {row.metric_name or 'an unnamed metric'}"
    if value is not None and row.metric_name == "tokens_per_s_per_gpu":
        sizes = (row.global_batch or batch_from_tokens(row, row.seq_len), row.seq_len, row.gpus_total)
        if all(sizes):
            batch, seq_len, devices = (float(size or 0) for size in sizes)
            return batch * seq_len / (value * devices), "from tokens/s, batch, length and devices"
    images = re.search(IMAGES_PATTERN, row.notes.lower())
    if value is None and images and row.gpus_total:
        batch = row.global_batch or IMAGES_PER_DEVICE * row.gpus_total
        return batch / float(images[1]), "from the notes' images a second"
    return None, ""


def batch_from_tokens(row: RunRow, seq_len: int | None) -> int | None:
    """Samples of `seq_len` tokens an iteration where the notes alone state them, as tokens: `batch 0.5M tokens`, M
    being 2^20, or `1048576 tokens per step`."""
    if not seq_len:
        return None
    rounded = re.search(r"batch ([\d.]+)m tokens", row.notes.lower())
    exact = re.search(r"(\d+) tokens per step", row.notes.lower())
    tokens = float(rounded[1]) * 2**20 if rounded else float(exact[1]) if exact else 0.0
    return round(tokens / seq_len) or None


def assumed_batch(row: RunRow, model: Model, framework: RowFramework) -> tuple[int, str] | None:
    """Samples of an iteration of a row that does not state them, and the sentence that says where they come from."""
    samples = batch_from_tokens(row, model.seq_len)
    if samples:
        return samples, "global_batch: from the notes' tokens (1M read as 2^20)"
    if framework.samples_per_device and model.seq_len and row.gpus_total:
        samples = framework.samples_per_device
        return samples * row.gpus_total, f"global_batch: not stated; {samples} a device, as {framework.name} often has"
    if not model.seq_len and row.gpus_total:
        return IMAGES_PER_DEVICE * row.gpus_total, f"global_batch: not stated; {IMAGES_PER_DEVICE} images a device"
    return None


def time_from_flops(row: RunRow) -> tuple[float | None, str]:
    """Seconds of an iteration from a stated TFLOP/s or MFU through the FLOPs of the row's own model; None if unknown.

    `model` FLOPs are three times forward's matrix products with attention in full (PaLM, appendix B), `causal` those
    with causal attention half, `hardware` those and the blocks' forward once more where the row recomputes in full
    (Narayanan et al. 2021, equation 3: 96 B s l h^2 ...). MFU is in percent of the device's dense peak in its dtype.
    """
    from planner.one_job.validation.devices import device_of
    from planner.one_job.validation.models import model_of
    from planner.one_job.validation.prepared import Skipped
    from planner.one_job.validation.software import dtype_of, framework_of

    if row.metric_value is None or row.metric_name not in ("tflops_per_gpu", "mfu"):
        return None, ""
    framework = framework_of(row, [])
    model = model_of(row, dropout=framework.dropout, assumed=[], framework=framework)
    if isinstance(model, Skipped) or not (row.gpus_total and model.seq_len):
        return None, ""
    assumed = None if row.global_batch else assumed_batch(row, model, framework)
    batch = row.global_batch or (assumed[0] if assumed else None)
    if batch is None:
        return None, ""
    rate = row.metric_value * 1e12
    convention = convention_of(row)
    if row.metric_name == "mfu":
        device = device_of(row, [])
        dtype = dtype_of(row, framework, [])
        peak = None if isinstance(device, Skipped) else dict(device.peak_flops_per_s).get(dtype)
        if peak is None:
            return None, ""
        rate = row.metric_value / 100 * peak
    flops = _flops(model, convention, recomputed=row.recompute == "full")
    seconds = batch * flops / (rate * row.gpus_total)
    return seconds, f"from {row.metric_name} ({convention} FLOPs)"


@lru_cache(maxsize=1024)
def _flops(model: Model, convention: FlopsConvention, *, recomputed: bool) -> int:
    """FLOPs of one sample by a convention."""
    from estimator.performance import count_model_flops

    counted = count_model_flops(model, model.seq_len)
    if convention == "causal":
        return counted.causal
    again = counted.forward_by_layer if convention == "hardware" and recomputed else ()
    blocks = (f for f, layer in zip(again, model.layers, strict=False) if isinstance(layer, TransformerBlock))
    return counted.model + sum(blocks)


def convention_of(row: RunRow) -> FlopsConvention:
    """How the row's TFLOP/s or MFU counts: as its column says, else by `CONVENTION_PATTERNS`, else `model`."""
    stated: dict[str, FlopsConvention] = {"model": "model", "causal": "causal", "hardware": "hardware"}
    if row.tflops_convention:
        return stated[row.tflops_convention]
    text = row.said.lower()
    return next((kind for pattern, kind in CONVENTION_PATTERNS if re.search(pattern, text)), "model")


def memory_of(row: RunRow, *, stated_kind: bool) -> tuple[MemoryKind, float | None]:
    """Kind of the row's memory figure, and its bytes (None where there is none).

    What neither column nor text tells is taken as GB that the process holds, as nvidia-smi and most logs print it.
    """
    match = next((entry for entry in MEMORY_PATTERNS if re.search(entry[0], row.said, re.IGNORECASE)), None)
    kind: MemoryKind = row.memory_kind if stated_kind else (match[1] if match else "reserved")
    unit = row.memory_unit or (match[2] if match else "GB")
    if row.peak_mem_gb is None:
        return kind, None
    return kind, row.peak_mem_gb * _unit_bytes(unit, kind)


def _unit_bytes(unit: str, kind: MemoryKind) -> int:
    """Bytes of the unit: what nvidia-smi shows are MiB, and a figure in GB read off it is thousands of them."""
    if unit == "GiB":
        return GIB
    return 1000 * 2**20 if kind == "reserved" else GB
