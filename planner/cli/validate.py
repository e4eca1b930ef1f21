"""`cellplan validate`: published or own runs, predicted from their configuration alone; how far off, row by row and in
sum, beside two baselines."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from planner.cli.options import add_json_option, add_store_option, positive_int, store_path
from planner.cli.output import print_json, progress
from planner.cli.validation_tables import GROUP_WORDS, MOST_ROWS, SHOWN_WORST, print_validation


def add_arguments(parser: ArgumentParser) -> None:
    """`validate RUNS.csv`."""
    parser.add_argument("path", type=Path, metavar="RUNS.csv", help="measured runs, one a row")
    parser.add_argument(
        "--rows",
        type=row_choice,
        default="auto",
        metavar="all|worst:N|none",
        help=f"rows to print (default: all, of more than {MOST_ROWS} the {SHOWN_WORST} worst)",
    )
    parser.add_argument(
        "--group", choices=tuple(GROUP_WORDS), help="the one grouping to print, and to colour by (default: all of them)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="measured against estimated, as .svg or .png")
    add_store_option(parser)
    add_json_option(parser)
    parser.set_defaults(run=_run)


def row_choice(text: str) -> str:
    """Which rows to print: `all`, `none`, `worst:N`, or `auto`, which leaves it to how many there are."""
    word, colon, number = text.partition(":")
    if word == "worst" and colon:
        positive_int(number)
    elif text not in ("all", "none", "auto"):
        raise ArgumentTypeError(f"found {text!r}, expected all, none or worst:N such as worst:20")
    return text


def _run(arguments: Namespace) -> None:
    from planner import api

    colours = arguments.group or "source"
    if arguments.plot is not None:
        from planner.one_job.validation.plot import plot_format

        plot_format(arguments.plot)  # what cannot be drawn is said before the work, not after it
    with progress(f"predicting {arguments.path.name}") as report:
        result = api.validate(arguments.path, store=store_path(arguments), progress=report)
    if arguments.plot is not None:
        from planner.one_job.validation.plot import save_plot

        save_plot(arguments.plot, result["rows"], by=colours)
    if arguments.json:
        print_json(result)
    else:
        print_validation(result, rows=arguments.rows, group=arguments.group)
