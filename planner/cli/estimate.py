"""`cellplan estimate`: the Cells of a model on a cluster, a line each; or one explicit plan, taken apart."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from itertools import groupby
from typing import Any

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.explicit_output import print_explicit, time_rows
from planner.cli.imported_output import print_imported
from planner.cli.output import (
    format_bytes,
    format_count,
    format_figure,
    format_seconds,
    print_json,
    print_notes,
    print_table,
    print_text,
    print_written,
    repeats,
    status,
)
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import NothingFits


def add_arguments(parser: ArgumentParser) -> None:
    """`estimate MODEL --cluster C`, with degrees of parallelism for one explicit plan; `estimate --plan FILE`; or
    `estimate --from FORMAT SETTINGS --cluster C`."""
    add_options(parser, EstimateOptions)
    parser.add_argument(
        "--assumptions", action="store_true", help="list what was guessed and the command that would measure it"
    )
    parser.set_defaults(run=partial(_run, parser))


def _run(parser: ArgumentParser, arguments: Namespace) -> None:
    given = {"MODEL": arguments.model or arguments.launcher, "--cluster": arguments.cluster}
    missing = [name for name, value in given.items() if value is None and arguments.plan is None]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    options = chosen(arguments, EstimateOptions)
    try:
        with status("estimating" if options.launcher is None else "comparing with the best plan"):
            result = api.estimate(options)
    except NothingFits as failure:
        if isinstance(failure.result, dict):
            _print(failure.result, arguments)
        raise
    _print(result, arguments)
    if not arguments.json:
        print_written(options.output, options.timeline)


def _print(result: dict[str, Any], arguments: Namespace) -> None:
    if arguments.json:
        print_json(result)
    elif "launcher" in result:
        print_imported(result, guesses=arguments.assumptions)
    elif "plan" in result:
        print_explicit(result, guesses=arguments.assumptions)
    else:
        print_cells(result)


def print_cells(result: dict[str, Any]) -> None:
    """A line per Cell, the best one marked; below it where that one's time goes and what was assumed."""
    columns = ("", "stages", "micro-batches", "assembly", "iteration", "tokens/s", "MFU", "memory", "layer times")
    about = f"{result['global_batch']} samples in {result['dtype']}; tokens/s and memory per device"
    for (devices, device), cells in groupby(result["cells"], key=lambda cell: (cell["devices"], cell["device"])):
        print_table(f"{result['model']} on {devices} x {device}: {about}", columns, [_row(cell) for cell in cells])
    best = next((cell for cell in result["cells"] if cell["best"]), None)
    if best is not None:
        parts = ", ".join(f"{name} {seconds}" for name, seconds, _ in time_rows(best)[:-1])
        low, high = best["interval_90_s"]
        each = best["tokens_per_s_per_device"]
        rate = "" if each is None else f", {format_count(each * best['devices'])} tokens/s in all"
        print_text(f"best (*), 90%: {format_seconds(low)} to {format_seconds(high)}{rate}: {parts}")
        print_text("each stage: " + "; ".join(_stages(best["split"])))
    failed = [cell for cell in result["cells"] if not cell["fits"]]
    print_notes(
        "not possible:",
        [f"{cell['devices']} x {cell['device']}, stages {cell['stages']}: {cell['reason']}" for cell in failed],
    )
    print_notes("assumed:", result["assumptions"])


def _stages(split: list[dict[str, Any]]) -> list[str]:
    """What each stage's devices do, alike neighbours together.

    >>> stage = {"dp": 8, "tp": 1, "zero": 1, "recompute": {"kind": "full", "layers": 3}}
    >>> _stages([stage, stage])
    ['2 x dp 8 tp 1, ZeRO 1, recompute full of 3 layers']
    """
    said = []
    for stage in split:
        rule = stage["recompute"]
        again = {"none": "", "selective": ", recompute selective"}.get(
            rule["kind"], f", recompute {rule['kind']} of {rule['layers']} layers"
        )
        zero = f", ZeRO {stage['zero']}" if stage["zero"] else ""
        said.append(f"dp {stage['dp']} tp {stage['tp']}{zero}{again}")
    return repeats(said)


def _row(cell: dict[str, Any]) -> tuple[object, ...]:
    if not cell["fits"]:
        return ("", cell["stages"], *[None] * 7)
    return (
        "*" if cell["best"] else "",
        cell["stages"],
        f"{cell['micro_batches']} x {cell['micro_batch']}",
        describe_assembly(cell["assembly"]),
        format_seconds(cell["iteration_time_s"]),
        format_count(cell["tokens_per_s_per_device"]),
        format_figure(cell["mfu"], ".1%"),
        format_bytes(cell["peak_memory_bytes"]),
        cell["provenance"]["compute"],
    )


def describe_assembly(favours: list[str]) -> str:
    """Runs of equal choices, shortened.

    >>> describe_assembly(["dp", "dp", "tp"])
    '2 dp, tp'
    """
    return ", ".join(repeats(favours, " "))
