"""What published runs measured: seconds of an iteration and memory, by the conventions of each source, as columns."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from bench.accuracy.adapters.frameworks import said
from bench.accuracy.adapters.settings import IMAGES_PER_DEVICE, batch_from_tokens
from planner.one_job.validation.columns import RunRow
from planner.one_job.validation.measured import measured_time_s

CONVENTION_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"hardware flops|factor.?4 formula|factor-4", "hardware"),
    (r"megatron-bridge", "causal"),
)
"""How a TFLOP/s counts where no column states it: the first pattern in the row's text. Megatron-Bridge's tables count
causal attention half (their FLOPs re-derive so)."""

MEMORY_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (r"max(?:imum)?[ _]allocated(?: memory)? GiB|max allocated GiB", "allocated", "GiB"),
    (r"memory only, GiB.*required", "required", "GiB"),
    (r"max allocated [\d.]+ GiB", "allocated", "GiB"),
    (r"torchtitan|pytorch/ao", "reserved", "GiB"),
    (r"torchtune", "allocated", "GiB"),
    (r"qwenlm/qwen", "reserved", "GB"),
    (r"nanotron", "allocated", "GiB"),
    (r"max(?:imum)?[ _]allocated|memory_allocated", "allocated", "GB"),
)
"""Where no column states kind and unit: pattern in the row's text, kind of figure, unit. torchtitan (which
torchao's tables are of) prints the allocator's peak of reserved memory in GiB, torchtune that of allocated memory in
GiB (its get_memory_stats divides by 1024^3), nanotron that of allocated memory over 1024^3 (its `Mem Alloc (GB)`).
Qwen's tables are of decimal GB: what its models of 1.8B to 14B hold beside weights and adapters is then one 0.9 GiB."""

SUMMED_STEPS_PATTERNS = (r"futuredata/gavel",)
"""Sources whose steps per second are those of all data-parallel workers added up, so that an iteration of them all
takes as many times the stated time as there are workers (gavel, scheduler/scripts/profiling/measure_throughput.py,
_done_callback; on K80s a batch of 128 takes one 0.55 s, and "0.275 s" two and "0.073 s" eight)."""

IMAGES_PATTERN = r"throughput ([\d.]+) img/s"
"""A rate in words of the notes, of all devices, for want of a metric of the column."""


SCATTER_PATTERN = r"logged iterations[^:;]*: ([\d.]+) s \(min ([\d.]+)\)"
"""The median and the fastest of a run's iterations, in words of the notes."""

STEADY = 1.25
"""Over the fastest iteration, the most that the median of a run's own may take. Of Megatron-LM's functional tests those
on one node of four GB200 of a shared queue take 1.26 to 1.86 (one of them 1.03), and 1.1 to 2.0 s whatever the model;
all others 1.00 to 1.23: something else ran on the hosts. Their memory stands."""


def measured_columns(row: RunRow, assumed: list[str]) -> dict[str, Any]:
    """Return time and memory of `row` (as published, nothing filled in) as columns. A TFLOP/s or MFU keeps its metric,
    with the convention of its source; a metric that cannot become seconds from what the row states is left out, and so
    is a time about which its own iterations scatter, of which `assumed` is told."""
    columns: dict[str, Any] = {"metric_name": "", "metric_value": None, "derived_iter_time_s": None, **_memory(row)}
    scatter = re.search(SCATTER_PATTERN, row.notes)
    if scatter and float(scatter[1]) > STEADY * float(scatter[2]):
        assumed.append(
            f"time: left out; its iterations are not steady, the fastest takes {scatter[2]} s of {scatter[1]} s"
        )
        return columns
    seconds = stated_time_s(row)
    if seconds is not None:
        return {**columns, "iter_time_s": seconds}
    if row.metric_name in ("tflops_per_gpu", "mfu"):
        kept = {"metric_name": row.metric_name, "metric_value": row.metric_value}
        return {**columns, **kept, "tflops_convention": row.tflops_convention or convention_of(row)}
    return columns


def stated_time_s(row: RunRow) -> float | None:
    """Return seconds of an iteration where no FLOPs of the model are needed, None where they are."""
    seconds = measured_time_s(replace(row, global_batch=row.global_batch or batch_from_tokens(row, row.seq_len)))
    if seconds is not None and row.metric_name == "iter_time_s" and row.iter_time_s is None:
        workers = row.gpus_total or 1
        if any(re.search(pattern, said(row).lower()) for pattern in SUMMED_STEPS_PATTERNS):
            return seconds * workers
    images = re.search(IMAGES_PATTERN, row.notes.lower())
    if seconds is None and row.metric_value is None and images and row.gpus_total:
        return (row.global_batch or IMAGES_PER_DEVICE * row.gpus_total) / float(images[1])
    return seconds


def convention_of(row: RunRow) -> str:
    """Return how the row's TFLOP/s or MFU counts, by `CONVENTION_PATTERNS`, else `model`."""
    text = said(row).lower()
    return next((kind for pattern, kind in CONVENTION_PATTERNS if re.search(pattern, text)), "model")


def _memory(row: RunRow) -> dict[str, Any]:
    """Kind, unit and figure. What neither column nor text tells is taken as GB that the process holds, as nvidia-smi
    and most logs print it: nvidia-smi's are MiB, and a figure in GB read off it is thousands of them."""
    out = {"out_of_memory": row.out_of_memory or "out of memory" in row.notes.lower() or None}
    match = next((entry for entry in MEMORY_PATTERNS if re.search(entry[0], said(row), re.IGNORECASE)), None)
    kind = row.memory_kind or (match[1] if match else "reserved")
    unit = row.memory_unit or (match[2] if match else "GB")
    value = row.peak_mem_gb
    if value is not None and "memory over all GPUs" in row.notes:
        value /= row.gpus_total or 1
    if unit == "GB" and kind == "reserved" and not match:
        unit, value = "MiB", None if value is None else value * 1000
    return {**out, "memory_kind": kind, "memory_unit": unit, "peak_mem_gb": value}
