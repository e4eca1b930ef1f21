"""`cellplan place`: the sites and devices of a job with its plan, and what else could be done."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.output import print_json, status
from planner.cli.place_output import print_placed
from planner.shared.options.search import PlaceOptions


def add_arguments(parser: ArgumentParser) -> None:
    """`place MODEL --cluster C --devices N`."""
    add_options(parser, PlaceOptions)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    with status("placing"):
        result = api.place(chosen(arguments, PlaceOptions))
    if arguments.json:
        print_json(result)
        return
    print_placed(result)
    if arguments.output is not None:
        beside = result["plan"]["cluster"]
        also = f" and {beside}" if beside != result["cluster"] else ""
        print(f"written to {arguments.output}{also}")
