"""`cellplan validate`: published or own runs, predicted from their configuration alone; how far off, row by row and in
sum, beside two baselines."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.output import print_json, progress
from planner.cli.validation_tables import MOST_ROWS, SHOWN_WORST, print_validation
from planner.shared.options.running import ValidateOptions
from planner.shared.options.values import POSITIVE_INT, WrongValueError


def add_arguments(parser: ArgumentParser) -> None:
    """`validate RUNS.csv`."""
    add_options(parser, ValidateOptions)
    parser.add_argument(
        "--rows",
        type=row_choice,
        default="auto",
        metavar="all|worst:N|none",
        help=f"rows to print (default: all, of more than {MOST_ROWS} the {SHOWN_WORST} worst)",
    )
    parser.set_defaults(run=_run)


def row_choice(text: str) -> str:
    """Return which rows to print: `all`, `none`, `worst:N`, or `auto`, which leaves it to how many there are; raise
    ArgumentTypeError for other words."""
    word, colon, number = text.partition(":")
    try:
        if word == "worst" and colon:
            POSITIVE_INT.parse(number)
        elif text not in ("all", "none", "auto"):
            raise WrongValueError(repr(text), "all, none or worst:N such as worst:20")
    except WrongValueError as wrong:
        raise ArgumentTypeError(str(wrong)) from None
    return text


def _run(arguments: Namespace) -> None:
    with progress(f"predicting {arguments.path.name}") as report:
        result = api.validate(chosen(arguments, ValidateOptions, progress=report))
    if arguments.json:
        print_json(result)
    else:
        print_validation(result, rows=arguments.rows, group=arguments.group)
