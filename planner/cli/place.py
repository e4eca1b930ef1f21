"""`cellplan place`: the sites and devices of a job with its plan, and what else could be done."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import cast

from planner.cli.options import (
    add_cluster_option,
    add_json_option,
    add_model_argument,
    add_options,
    add_store_option,
    chosen_options,
    natural,
    number,
    positive_seconds,
    store_path,
)
from planner.cli.output import print_json, status
from planner.many_jobs.placement.options import METHODS, PlaceSearchOptions
from planner.shared.options import SearchOptions


def add_arguments(parser: ArgumentParser) -> None:
    """`place MODEL --cluster C --devices N`."""
    add_model_argument(parser)
    add_cluster_option(parser)
    group = parser.add_argument_group("the sites")
    group.add_argument("--local", metavar="SITE", help="the site that the job is submitted at: it is tried first")
    group.add_argument(
        "--method", choices=METHODS, default=METHODS[0], help="how sites are chosen (default: %(default)s)"
    )
    group.add_argument(
        "--types", type=_names, default=(), metavar="LIST", help="device types to take, such as a100-80gb,h100"
    )
    group.add_argument("--one-type", action="store_true", help="all devices are of one type")
    group.add_argument(
        "--all-sites", action="store_true", help="the plan uses every chosen site, also where thin links make it slower"
    )
    group.add_argument(
        "--alternatives", type=natural, default=6, metavar="N", help="other ways to plan (default: %(default)s)"
    )
    links = parser.add_argument_group("links between sites as they are now")
    links.add_argument(
        "--comm",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="what `comm measure --link north--south --json` printed, or measurements",
    )
    links.add_argument(
        "--links", type=Path, metavar="FILE", help="the state of the links: read, and written where --comm adds to it"
    )
    links.add_argument(
        "--half-life",
        type=positive_seconds,
        default=3600.0,
        metavar="S",
        help="age at which a measurement counts half (default: 3600)",
    )
    links.add_argument("--now", type=number, metavar="S", help="seconds since 1970 to count ages to (default: now)")
    add_options(parser, PlaceSearchOptions)
    add_store_option(parser)
    add_json_option(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the plan to this file")
    parser.set_defaults(run=_run)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _run(arguments: Namespace) -> None:
    from planner import api

    with status("placing"):
        result = api.place(
            arguments.model,
            cluster=arguments.cluster,
            local=arguments.local,
            method=arguments.method,
            types=arguments.types,
            one_type=arguments.one_type,
            all_sites=arguments.all_sites,
            alternatives=arguments.alternatives,
            comm=tuple(arguments.comm),
            links=arguments.links,
            half_life=arguments.half_life,
            now=arguments.now,
            output=arguments.output,
            store=store_path(arguments),
            **cast(SearchOptions, chosen_options(arguments, PlaceSearchOptions)),
        )
    if arguments.json:
        print_json(result)
        return
    from planner.cli.place_output import print_placed

    print_placed(result)
    if arguments.output is not None:
        beside = result["plan"]["cluster"]
        also = f" and {beside}" if beside != result["cluster"] else ""
        print(f"written to {arguments.output}{also}")
