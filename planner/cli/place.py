"""`cellplan place`: the sites and devices of a job with its plan, and what else could be done."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_action
from planner.cli.later_output import of_start
from planner.cli.place_output import print_placed


def add_arguments(parser: ArgumentParser) -> None:
    """`place MODEL --cluster C --devices N`."""
    add_action(parser, Action(api.place, _print, doing="placing"))


def _print(result: dict[str, Any], arguments: Namespace) -> None:
    print_placed(result)
    if arguments.output is not None:
        beside = result["plan"]["cluster"]
        also = f" and {beside}" if beside != result["cluster"] else ""
        print(f"written to {arguments.output}{also}{of_start(result)}")
