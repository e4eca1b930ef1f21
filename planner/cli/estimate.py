"""`cellplan estimate`: the Cells of a model on a cluster, a line each; or one explicit plan, taken apart."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from itertools import groupby
from typing import Any

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.arrays import load_numpy
from planner.cli.explicit_output import print_explicit, time_rows
from planner.cli.headline import print_assumptions, print_headline, print_labelled, print_largest
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
        "--assumptions",
        action="store_true",
        help="list all that was assumed, and what was guessed with the command that would measure it",
    )
    parser.set_defaults(run=partial(_run, parser))


def _run(parser: ArgumentParser, arguments: Namespace) -> None:
    given = {"MODEL": arguments.model or arguments.launcher, "--cluster": arguments.cluster}
    missing = [name for name, value in given.items() if value is None and arguments.plan is None]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    options = chosen(arguments, EstimateOptions)
    load_numpy()
    try:
        with status("estimating" if options.launcher is None else "comparing with the best plan"):
            result = api.estimate(options)
    except NothingFits as failure:
        if isinstance(failure.result, dict) and not arguments.json:
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
    elif "largest" in result:
        if result["plan"] is not None:
            print_largest(result["largest"])
            print()
            print_explicit(result, guesses=arguments.assumptions)
    elif "plan" in result:
        print_explicit(result, guesses=arguments.assumptions)
    else:
        print_cells(result, every_assumption=arguments.assumptions)


def print_cells(result: dict[str, Any], *, every_assumption: bool = True) -> None:
    """Print the best Cell first, then a line for each, and what was assumed."""
    best = next((cell for cell in result["cells"] if cell["best"]), None)
    length = f" of {result['seq_len']:,} tokens" if result["seq_len"] else ""
    about = f"{result['global_batch']:,} samples{length} an iteration in {result['dtype']}"
    which = "the best Cell (*):" if best is not None else "no Cell fits"
    print_text(f"{result['model']} on {result['cluster']}: {about}; {which}", indent="  ")
    if best is not None:
        print_headline(best, best["devices"])
        print_labelled("each stage", ["; ".join(_stages(best["split"]))])
        basis = best["provenance"]
        print_labelled(
            "rests on", [f"layer times {basis['compute']}, communication {basis['communication'] or 'not needed'}"]
        )
        print_labelled("time in", [", ".join(f"{name} {seconds}" for name, seconds, _ in time_rows(best)[:-1])])
    print()
    for (devices, device), cells in groupby(result["cells"], key=lambda cell: (cell["devices"], cell["device"])):
        title = f"Cells on {devices} x {device}, tokens/s and memory of one device"
        print_table(title, COLUMNS, [_row(cell) for cell in cells])
    failed = [cell for cell in result["cells"] if not cell["fits"]]
    print_notes(
        "not possible:",
        [f"{cell['devices']} x {cell['device']}, stages {cell['stages']}: {cell['reason']}" for cell in failed],
    )
    print_assumptions(result["assumptions"], every=every_assumption, effects=result.get("assumption_effects", ()))


COLUMNS = ("", "stages", "batches", "assembly", "iteration", "tokens/s", "MFU", "memory", "fit")


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
        cell["memory_fit"]["verdict"],
    )


def describe_assembly(favours: list[str]) -> str:
    """Runs of equal choices, shortened.

    >>> describe_assembly(["dp", "dp", "tp"])
    '2 dp, tp'
    """
    return ", ".join(repeats(favours, " "))
