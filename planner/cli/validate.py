"""`cellplan validate`: published or own runs, predicted from their configuration alone; how far off, row by row and in
sum, beside two baselines."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_action
from planner.cli.validation_tables import MOST_ROWS, SHOWN_WORST, print_validation
from planner.shared.options.values import POSITIVE_INT, WrongValueError


def add_arguments(parser: ArgumentParser) -> None:
    """`validate RUNS.csv`."""
    add_action(parser, Action(api.validate, _print, doing="predicting {path.name}"))
    parser.add_argument(
        "--rows",
        type=row_choice,
        default="auto",
        metavar="all|worst:N|none",
        help=f"rows to print (default: all, of more than {MOST_ROWS} the {SHOWN_WORST} worst)",
    )


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


def _print(result: dict[str, Any], arguments: Namespace) -> None:
    print_validation(result, rows=arguments.rows, group=arguments.group)
