"""The lines that matter first: time, rates and memory of one plan or Cell, each with its unit; what moves them most."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.cli.output import WIDTH, format_bytes, format_count, format_range, format_seconds, print_notes, print_text

LABEL = 11
CAUSAL_TELLS = 0.97
"""Below this share of the model's FLOPs, those with causal attention counted half are told too."""


def print_labelled(label: str, lines: Iterable[str]) -> None:
    """Print lines behind a label, within the width; those after the first under the first."""
    indent = " " * (LABEL + 2)
    for number, line in enumerate(lines):
        start = f"  {label if number == 0 else '':<{LABEL}}"
        print(
            textwrap.fill(
                line,
                WIDTH,
                initial_indent=start,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


def print_headline(estimate: Mapping[str, Any], devices: int) -> None:
    """Print the time, the rates and the memory of an estimate, whose keys are those of the plan file."""
    low, high = estimate["interval_90_s"]
    print_labelled(
        "iteration",
        [f"{format_seconds(estimate['iteration_time_s'])} (90%: {format_seconds(low)} to {format_seconds(high)})"],
    )
    print_labelled("throughput", [", ".join(_throughput(estimate, devices))])
    print_labelled("efficiency", [_efficiency(estimate)])
    print_labelled("memory", describe_memory(estimate))


def _throughput(estimate: Mapping[str, Any], devices: int) -> list[str]:
    per_device = estimate["tokens_per_s_per_device"]
    said = []
    if per_device is not None:
        total = format_count(per_device * devices)
        said = [f"{format_count(per_device)} tokens/s per device", f"{total} tokens/s in all"]
    return [*said, f"{format_count(estimate['samples_per_s'])} samples/s"]


def _efficiency(estimate: Mapping[str, Any]) -> str:
    said, mfu = f"{estimate['tflops_per_device']:.3g} TFLOP/s per device", estimate["mfu"]
    if mfu is None:
        return said
    causal = mfu * estimate["causal_tflops_per_device"] / estimate["tflops_per_device"]
    half = f" (causal {causal:.1%})" if causal < CAUSAL_TELLS * mfu else ""
    return f"{said}, MFU {mfu:.1%}{half}"


def describe_memory(estimate: Mapping[str, Any]) -> list[str]:
    """Return the peak with its interval, what the device can hand out, and how sure it is that the one fits the other.

    A plan file of an earlier version says the first alone.
    """
    peak, interval, fit = (estimate.get(f"{key}") for key in PEAK_KEYS)
    said = f"{format_bytes(peak)} peak"
    if interval is None or fit is None:
        return [f"{said} and {format_bytes(estimate['reserve_bytes'])} reserve on the fullest device"]
    low, high = interval
    usable = f"usable {format_bytes(fit['usable_bytes'])} of {format_bytes(fit['device_bytes'])}"
    verdict, *more = describe_fit(fit, interval)
    return [f"{said} (90%: {format_range(format_bytes(low), format_bytes(high))}); {usable}", verdict, *more]


PEAK_KEYS = ("peak_memory_bytes", "memory_interval_90_bytes", "memory_fit")


def describe_fit(fit: Mapping[str, Any], interval: Sequence[int]) -> list[str]:
    """Return the verdict, the share of the interval that fits, what is left, and the margin that plans for the rest."""
    spare, share = fit["headroom_bytes"], fit["interval_share"]
    left = f"headroom {format_bytes(spare)}" if spare >= 0 else f"lacking {format_bytes(-spare)}"
    said = f"{fit['verdict']}: {share:.0%} of the interval fits, {left}"
    if fit["verdict"] != "tight" or interval[0] <= 0:
        return [said]
    margin = math.ceil(100 * (1 - math.sqrt(interval[0] / interval[1])))
    return [said, f"--memory-margin {margin}% asks for a safe plan"]


def print_effects(effects: Sequence[Mapping[str, Any]]) -> None:
    """Print what moves the answer most, a line each."""
    print_notes("what moves this most, were it otherwise:", [_effect(effect) for effect in effects])


def _effect(effect: Mapping[str, Any]) -> str:
    flag = f" ({effect['flag']})" if effect["flag"] else ""
    change, memory = effect["time_ratio"] - 1, effect["memory_change_bytes"]
    parts = [f"{change:+.1%} time" if abs(change) >= 5e-4 else "as long"]
    if abs(memory) >= 2**27:
        parts.append(f"{'+' if memory > 0 else '-'}{format_bytes(abs(memory))}")
    if not effect["fits"]:
        parts.append("does not fit")
    return f"{effect['assumed']}{flag}; with {effect['alternative']}: {', '.join(parts)}"


def print_assumptions(assumptions: Sequence[str], *, every: bool, effects: Sequence[Mapping[str, Any]] = ()) -> None:
    """Print what moves the answer most; of all that was assumed, `every` sentence, or how to see them."""
    print_effects(effects)
    if every:
        print_notes("assumed:", assumptions)
    elif assumptions:
        print(f"{len(assumptions)} assumptions in all: --assumptions lists them")


def print_largest(largest: Mapping[str, Any]) -> None:
    """Print what the largest size that fits is, whether what was asked for does, and what the next one lacks."""
    of, unit = (
        {"seq-len": "longest sequence", "micro-batch": "largest micro-batch", "model": "largest model"}[largest["of"]],
        largest["unit"],
    )

    def said(value: int, name: str | None) -> str:
        return f"{value:,} {unit}" if name is None else f"{name} ({format_count(value)} {unit})"

    asked = "fits" if largest["asked_fits"] else "does not fit"
    step = f", of multiples of {largest['step']:,}" if largest["step"] else ""
    print_text(f"{of} that fits: {said(largest['value'], largest['name'])}{step} ({largest['tried']} sizes tried)")
    size = f"{largest['asked']:,}" if largest["of"] != "model" else format_count(largest["asked"])
    print_labelled("asked", [f"{size} {unit}, which {asked}"])
    if largest["next_value"] is not None:
        print_labelled("next", [f"{said(largest['next_value'], largest['next_name'])}: {largest['next_reason']}"])
