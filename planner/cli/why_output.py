"""Why not another choice, for people: what it costs in all, and a line for each part that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.cli.output import format_bytes, format_seconds, print_items, print_text
from planner.shared.words import TIME_NAMES, percent

if TYPE_CHECKING:
    from planner.one_job.planning.why import WhyNot


def print_why_not(answer: WhyNot) -> None:
    """The verdict, what the plan with it does otherwise, the parts that take more or less, then memory."""
    if answer.already:
        print_text(f"why not {answer.asked}: the best plan has it already")
        return
    comparison = answer.comparison
    if comparison is None:
        print_text(f"why not {answer.asked}: nothing fits with it. {answer.reason}", indent="  ")
        return
    print_text(f"why not {answer.asked}: {_verdict(answer)}", indent="  ")
    if answer.differences:
        print_items((f"beside it: {'; '.join(answer.differences)}",))
    print_items(
        f"{TIME_NAMES[pair.name]} {_sign(pair.more)}{format_seconds(abs(pair.more))}"
        f" ({format_seconds(pair.one)} -> {format_seconds(pair.other)})"
        for pair in answer.parts
    )
    peak = comparison.memory[-1]
    print_items(
        (
            f"memory of the fullest device {_sign(peak.more)}{format_bytes(abs(peak.more))}"
            f" ({format_bytes(peak.one)} -> {format_bytes(peak.other)} of {format_bytes(answer.device_memory_bytes)})",
        )
    )


def _verdict(answer: WhyNot) -> str:
    comparison, loss = answer.comparison, answer.loss or 0.0
    assert comparison is not None
    more_s = comparison.other_s - comparison.one_s
    took = (
        f"{format_seconds(comparison.other_s)} an iteration with it, {format_seconds(comparison.one_s)} with the best"
    )
    change = (
        "as fast"
        if abs(more_s) < 5e-4 * comparison.one_s
        else f"{_sign(more_s)}{format_seconds(abs(more_s))}, {percent(more_s / comparison.one_s)}"
    )
    proof = "proved: no plan with it is better" if answer.proved else "cut short: a plan with it may be better"
    same = abs(loss - more_s / comparison.one_s) < 1e-9
    objective = "" if same else f"; of the objective {percent(loss)}"
    return f"{took} ({change}{objective}); {proof}"


def _sign(value: float) -> str:
    return "-" if value < 0 else "+"
