"""`cellplan plan`: the best plan for a model on a cluster, shown and written to a file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from planner.cli.options import (
    add_cluster_option,
    add_json_option,
    add_model_argument,
    add_options,
    add_store_option,
    chosen_options,
    store_path,
)
from planner.cli.output import format_bytes, format_count, format_seconds, print_notes, print_table
from planner.options import JobOptions

if TYPE_CHECKING:
    from planner.plan import Plan, PlanStage


def add_arguments(parser: ArgumentParser) -> None:
    """`plan MODEL --cluster C -o plan.json`."""
    add_model_argument(parser)
    add_cluster_option(parser)
    add_options(parser, JobOptions)
    add_store_option(parser)
    add_json_option(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the plan to this file")
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    from planner import api
    from planner.plan_file import plan_to_json, save_plan

    chosen = cast(JobOptions, chosen_options(arguments, JobOptions))
    plan = api.plan(arguments.model, cluster=arguments.cluster, store=store_path(arguments), **chosen)
    if arguments.output is not None:
        save_plan(plan, arguments.output)
    if arguments.json:
        print(plan_to_json(plan), end="")
        return
    print_plan(plan)
    if arguments.output is not None:
        print(f"written to {arguments.output}")


def print_plan(plan: Plan) -> None:
    """The plan's stages, its estimate, and what it rests on."""
    columns = ("stage", "layers", "devices", "dp", "tp", "recompute", "compute", "communication", "memory")
    rows = [_row(number, stage) for number, stage in enumerate(plan.stages)]
    batch = plan.batch
    title = (
        f"{plan.model.name} on {plan.cluster}: {batch.micro_batches} micro-batches of {batch.micro_batch} samples,"
        f" {plan.schedule}, {plan.model.dtype}, {plan.optimizer}"
    )
    print_table(title, columns, rows)
    estimate, basis = plan.estimate, plan.provenance
    print(f"iteration {format_seconds(estimate.iteration_time_s)}{_interval(plan)}")
    rates = [f"{format_count(estimate.samples_per_s)} samples/s"]
    if estimate.tokens_per_s_per_device is not None:
        rates.append(f"{format_count(estimate.tokens_per_s_per_device)} tokens/s per device")
    rates.append(f"{estimate.tflops_per_device:.3g} TFLOP/s per device")
    if estimate.mfu is not None:
        rates.append(f"MFU {estimate.mfu:.1%}")
    print(", ".join(rates))
    print(f"peak memory {format_bytes(estimate.peak_memory_bytes)} and {format_bytes(estimate.reserve_bytes)} reserve")
    communication = basis.communication or "not needed"
    print(f"compute {basis.compute}, communication {communication}, memory {basis.memory}")
    print_notes("assumed:", plan.assumptions)


def _interval(plan: Plan) -> str:
    interval = plan.estimate.interval_90_s
    if interval is None:
        return f" (no 90% interval: {plan.estimate.interval_90_reason})"
    return f" (90% interval {format_seconds(interval[0])} to {format_seconds(interval[1])})"


def _row(number: int, stage: PlanStage) -> tuple[str, ...]:
    return (
        str(number),
        ", ".join(f"{first}-{end - 1}" for first, end in stage.chunks),
        f"{len(stage.ranks)} x {stage.device}",
        str(stage.dp),
        str(stage.tp),
        stage.recompute.kind,
        format_seconds(stage.compute_s),
        format_seconds(stage.communication_s),
        format_bytes(stage.memory_bytes),
    )
