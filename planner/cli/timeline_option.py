"""`--timeline FILE`: the timeline of a plan that a command has made or read, as a picture or a trace."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.options import store_path
from profiles.errors import InputError

if TYPE_CHECKING:
    from planner.shared.plan import Plan


def add_timeline_option(parser: ArgumentParser) -> None:
    """`--timeline`."""
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="write when each stage works on which micro-batch: .svg a picture, .json or .json.gz a trace for Perfetto",
    )


def check_timeline(arguments: Namespace, *, of_plan: bool = True) -> None:
    """InputError, before anything is estimated, for a name that no timeline can have, or where no plan comes of it."""
    if arguments.timeline is None:
        return
    from planner.one_job.timeline.save import timeline_form

    timeline_form(arguments.timeline)
    if not of_plan:
        expected = "one plan to draw: --plan, --tp, --pp, --dp or another degree; or `cellplan plan`"
        raise InputError(where="estimate", key="--timeline", found="Cells", expected=expected)


def write_timeline(plan: Plan, arguments: Namespace) -> None:
    """Write the timeline of `plan` where `arguments` ask for it, as the command has estimated the plan."""
    if arguments.timeline is None:
        return
    from planner import api

    api.timeline(plan, output=arguments.timeline, profiles=arguments.profiles, store=store_path(arguments))
    if not arguments.json:
        print(f"timeline written to {arguments.timeline}")
