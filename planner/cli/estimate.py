"""`cellplan estimate`: the Cells of a model on a cluster, a line each."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from itertools import groupby
from typing import Any

from planner.cli.options import add_job_options, job_options
from planner.cli.output import format_bytes, format_count, format_seconds, print_json, print_notes, print_table


def add_arguments(parser: ArgumentParser) -> None:
    """`estimate MODEL --cluster C`."""
    add_job_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    from planner import api

    result = api.estimate(arguments.model, **job_options(arguments))
    if arguments.json:
        print_json(result)
    else:
        print_cells(result)


def print_cells(result: dict[str, Any]) -> None:
    """The table of Cells, best first, and below it where the best one's time goes and what was assumed."""
    rows = [_row(cell) for cell in result["cells"]]
    columns = ("device", "stages", "batches", "assembly", "iteration", "tokens/s/dev", "MFU", "memory", "basis")
    print_table(f"Cells of {result['model']} on {result['cluster']}", columns, rows)
    fitting = [cell for cell in result["cells"] if cell["fits"]]
    if fitting:
        parts = {name.removesuffix("_s").replace("_", " "): s for name, s in fitting[0]["breakdown"].items() if s}
        print("best: " + ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts.items()))
    print_notes(
        "not possible:",
        [
            f"{cell['devices']} x {cell['device']}, {cell['stages']} stages: {cell['reason']}"
            for cell in result["cells"]
            if not cell["fits"]
        ],
    )
    print_notes("assumed:", result["assumptions"])


def _row(cell: dict[str, Any]) -> tuple[str, ...]:
    device = f"{cell['devices']} x {cell['device']}"
    if not cell["fits"]:
        return (device, str(cell["stages"]), *["-"] * 7)
    return (
        device,
        str(cell["stages"]),
        f"{cell['micro_batches']} x {cell['micro_batch']}",
        describe_assembly(cell["assembly"]),
        format_seconds(cell["iteration_time_s"]),
        format_count(cell["tokens_per_s_per_device"]),
        "-" if cell["mfu"] is None else f"{cell['mfu']:.1%}",
        format_bytes(cell["peak_memory_bytes"]),
        cell["provenance"],
    )


def describe_assembly(favours: list[str]) -> str:
    """Runs of equal choices, shortened.

    >>> describe_assembly(["dp", "dp", "tp"])
    '2 dp, tp'
    """
    runs = [(favour, len(list(group))) for favour, group in groupby(favours)]
    return ", ".join(favour if count == 1 else f"{count} {favour}" for favour, count in runs)
