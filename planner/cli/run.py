"""`cellplan run`: a plan file really trained, on processes of this machine or under torchrun."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_action
from planner.cli.headline import describe_memory, print_labelled
from planner.cli.output import format_bytes, format_seconds, print_notes, print_table, print_text
from planner.shared.words import RUN_PARTS


def add_arguments(parser: ArgumentParser) -> None:
    """`run FILE`, and how."""
    add_action(parser, Action(api.run, _print, doing="running {file.name}", writes=("learn", "profile")))


def _print(result: dict[str, Any], _: Namespace) -> None:
    measured, estimated = result["measured"], result["estimated"]
    plan = result["plan"]
    print_text(
        f"{plan['model']} on {plan['ranks']} ranks, {result['backend']} on {result['device']}: measured"
        f" {format_seconds(measured['iteration_time_s'])} an iteration (median"
        f" {format_seconds(measured['median_iteration_time_s'])} of {len(measured['iteration_times_s'])}),"
        f" {_estimated_line(result)}",
        indent="    ",
    )
    print_text("losses: " + ", ".join("none" if loss is None else f"{loss:.6f}" for loss in result["losses"]))
    if estimated is not None:
        print_labelled("memory", [f"measured {format_bytes(measured['peak_memory_bytes'])} peak; estimated:"])
        print_labelled("", describe_memory(estimated))
    print()
    limiting = 0 if estimated is None else estimated["limiting_stage"]
    parts = measured["stages"][limiting]["breakdown"]
    rows = [
        (
            name,
            format_seconds(parts[key]),
            None if estimated is None else format_seconds(estimated["breakdown"][key]),
        )
        for key, name in RUN_PARTS.items()
        if parts[key] > 0 or (estimated is not None and estimated["breakdown"][key] > 0)
    ]
    print_table(f"An iteration of stage {limiting}", ("part", "measured", "estimated"), rows)
    _print_stages(measured, estimated)
    _print_traffic(measured["communication"])
    profiled = result.get("profiled", {}).get("sentence")
    print_notes("inputs:", [*([profiled] if profiled else []), *plan["changed_inputs"]])
    print_notes("where they part:", result.get("where_they_part", []))
    print_notes("noted:", result["notes"])
    if "learned" in result:
        print_notes("learned:", [_describe_learned(result["learned"])])
    for file in result.get("traces", []):
        print(f"written to {file}")


def _estimated_line(result: dict[str, Any]) -> str:
    estimated = result["estimated"]
    if estimated is None:
        return f"not estimated: {result['estimated_reason']}"
    return f"estimated {format_seconds(estimated['iteration_time_s'])} ({result['ratio'] - 1:+.1%}; layer times" + (
        f" {estimated['compute']}, communication {estimated['communication'] or 'none'})"
    )


def _print_stages(measured: dict[str, Any], estimated: dict[str, Any] | None) -> None:
    """Memory of a CPU's worker is the growth of its process, which holds more than the tensors that are estimated: what
    its allocator keeps back, and buffers of libraries."""
    rows = []
    for number, stage in enumerate(measured["stages"]):
        beside = None if estimated is None else estimated["stages"][number]
        rows.append(
            (
                number,
                format_seconds(stage["compute_s"]),
                None if beside is None else format_seconds(beside["compute_s"]),
                format_bytes(stage["peak_memory_bytes"]),
                None if beside is None else format_bytes(beside["peak_memory_bytes"]),
            )
        )
    columns = ("stage", "compute", "estimated", "peak memory", "estimated")
    print_table("A micro-batch's compute, and memory of a rank", columns, rows)
    whole = f"the fullest worker's whole process {format_bytes(measured['process_peak_bytes'])}"
    print_text(f"peak memory: measured is the {measured['peak_memory_is']}, estimated what tensors take; {whole}")


def _print_traffic(traffic: list[dict[str, Any]]) -> None:
    rows = [
        (
            collective["axis"],
            collective["op"],
            collective["count"],
            format_bytes(collective["bytes"]),
            format_seconds(collective["seconds"]),
        )
        for collective in traffic
    ]
    if rows:
        print_table(
            "Communication of the rank that took longest (measured, waiting for peers included)",
            ("axis", "kind", "calls", "bytes", "seconds"),
            rows,
        )


def _describe_learned(learned: dict[str, Any]) -> str:
    slowdown = learned["slowdown"]
    contention = "" if slowdown is None else f", {learned['workers']} busy workers {slowdown:.2f} times as slow as one"
    return f"times of {learned['layers']} layers, {learned['link_points']} points of link tables{contention}"
