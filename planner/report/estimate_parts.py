"""What pages of estimates have in common: the figures that they open with, and names of parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.report.records import Fact
from planner.shared.words import format_bytes, format_count, format_range, format_seconds

MEMORY_NAMES = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "activation_bytes": "activations",
    "temporary_bytes": "temporary",
    "communication_bytes": "buffers of collectives",
    "reserve_bytes": "reserve",
}
FIT_NAMES = "Memory is safe where (almost) all of its interval fits, tight where a part of it does."


def say_count(count: int, of: str, more: str = "s") -> str:
    """Return so many of something.

    >>> say_count(1, "rank"), say_count(1024, "rank"), say_count(2, "micro-batch", "es")
    ('1 rank', '1,024 ranks', '2 micro-batches')
    """
    return f"{count:,} {of}{'' if count == 1 else more}"


def describe_interval() -> str:
    """Return what the page's intervals are."""
    return "Intervals hold nine of ten measured runs like these."


def headline_facts(estimate: Mapping[str, Any], devices: int) -> tuple[Fact, ...]:
    """Return time, rates and memory of an estimate, whose keys are those of the plan file."""
    low, high = estimate["interval_90_s"]
    facts = [
        Fact(
            label="iteration",
            value=format_seconds(estimate["iteration_time_s"]),
            note=f"90%: {format_range(format_seconds(low), format_seconds(high))}",
        )
    ]
    tokens = estimate["tokens_per_s_per_device"]
    if tokens is not None:
        facts.append(
            Fact(
                label="throughput",
                value=f"{format_count(tokens * devices)} tokens/s",
                note=f"{format_count(tokens)} tokens/s per device",
            )
        )
    facts.append(Fact(label="samples", value=f"{format_count(estimate['samples_per_s'])}/s"))
    mfu = estimate["mfu"]
    facts.append(
        Fact(
            label="efficiency",
            value=f"{estimate['tflops_per_device']:.3g} TFLOP/s",
            note="per device" if mfu is None else f"per device, MFU {mfu:.1%}",
        )
    )
    fit = estimate.get("memory_fit")
    interval = estimate.get("memory_interval_90_bytes")
    note = ""
    if fit and interval:
        low_bytes, high_bytes = interval
        note = f"90%: {format_range(format_bytes(low_bytes), format_bytes(high_bytes))}; {fit['verdict']}"
    facts.append(Fact(label="memory of a device", value=format_bytes(estimate["peak_memory_bytes"]), note=note))
    return tuple(facts)
