"""`cellplan run`: a plan file really trained, on processes of this machine or under torchrun."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import Any

from planner.cli.comm import launched_world
from planner.cli.options import (
    add_json_option,
    add_store_option,
    natural,
    positive_int,
    positive_rate,
    positive_seconds,
    store_path,
)
from planner.cli.output import format_bytes, format_seconds, print_json, print_notes, print_table, print_text, progress


def add_arguments(parser: ArgumentParser) -> None:
    """`run FILE`, and how."""
    parser.add_argument("file", type=Path, metavar="PLAN", help="a plan file, as `cellplan plan -o` writes it")
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch", help="(default: %(default)s)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="GPUs if there are enough")
    parser.add_argument("--steps", type=positive_int, default=5, metavar="N", help="measured iterations (default: 5)")
    parser.add_argument("--warm-up", type=natural, default=1, metavar="N", help="iterations before those (default: 1)")
    parser.add_argument("--seed", type=natural, default=0, help="of weights and random data (default: 0)")
    parser.add_argument(
        "--learning-rate", type=positive_rate, default=1e-3, metavar="RATE", help="(default: %(default)s)"
    )
    parser.add_argument("--data", type=Path, metavar="FILE", help="tokens, .npy or raw (default: random samples)")
    parser.add_argument("--data-dtype", default="uint16", metavar="DTYPE", help="of a raw file (default: %(default)s)")
    parser.add_argument(
        "--threads", type=positive_int, default=1, metavar="N", help="of a worker on a CPU (default: 1)"
    )
    parser.add_argument(
        "--pin", action=BooleanOptionalAction, default=True, help="give each worker cores of its own (default: yes)"
    )
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=300.0,
        metavar="SECONDS",
        help="give up when no rank gets on for so long (default: 300)",
    )
    parser.add_argument("--profile", action="store_true", help="first measure on one device what the estimate lacks")
    parser.add_argument("--learn", action="store_true", help="put what was measured into the profile store")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write traces for Perfetto: FILE and two beside it")
    add_store_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    from planner import api

    writes = arguments.learn or arguments.profile
    with progress(f"running {arguments.file.name}") as report:
        result = api.run(
            arguments.file,
            backend=arguments.backend,
            device=arguments.device,
            steps=arguments.steps,
            warm_up=arguments.warm_up,
            seed=arguments.seed,
            learning_rate=arguments.learning_rate,
            data=arguments.data,
            data_dtype=arguments.data_dtype,
            threads=arguments.threads,
            pin=arguments.pin,
            timeout=arguments.timeout,
            profile=arguments.profile,
            learn=arguments.learn,
            trace=arguments.trace,
            store=store_path(arguments, to_write=writes),
            progress=report,
            world=launched_world(),
        )
    if result is None:
        return
    if arguments.json:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    from planner.one_job.running.comparison import PART_NAMES

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
    print()
    limiting = 0 if estimated is None else estimated["limiting_stage"]
    parts = measured["stages"][limiting]["breakdown"]
    rows = [
        (
            name,
            format_seconds(parts[key]),
            "-" if estimated is None else format_seconds(estimated["breakdown"][key]),
        )
        for key, name in PART_NAMES.items()
        if parts[key] > 0 or (estimated is not None and estimated["breakdown"][key] > 0)
    ]
    print_table(f"An iteration of stage {limiting}", ("part", "measured", "estimated"), rows)
    _print_stages(measured, estimated)
    _print_traffic(measured["communication"])
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
    """Memory of a CPU's worker is the growth of its process, which holds more than the tensors that are estimated."""
    rows = []
    for number, stage in enumerate(measured["stages"]):
        beside = None if estimated is None else estimated["stages"][number]
        rows.append(
            (
                str(number),
                format_seconds(stage["compute_s"]),
                "-" if beside is None else format_seconds(beside["compute_s"]),
                format_bytes(stage["peak_memory_bytes"]),
                "-" if beside is None else format_bytes(beside["peak_memory_bytes"]),
            )
        )
    columns = ("stage", "compute", "estimated", "peak memory", "estimated")
    print_table("A micro-batch's compute, and memory of a rank", columns, rows)


def _print_traffic(traffic: list[dict[str, Any]]) -> None:
    rows = [
        (one["axis"], one["op"], str(one["count"]), format_bytes(one["bytes"]), format_seconds(one["seconds"]))
        for one in traffic
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
