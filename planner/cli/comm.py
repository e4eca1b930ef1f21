"""`cellplan comm`: link tables from torch.distributed or from the output of nccl-tests."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import Any

from estimator.communication.measuring import World
from planner import api
from planner.cli.arguments import add_options, chosen, make_user_folder
from planner.cli.output import format_bytes, format_count, format_seconds, print_json, print_table, progress
from planner.shared.options.measuring import CommFitOptions, CommMeasureOptions, CommShowOptions
from profiles.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    """`comm measure`, `comm fit FILE` and `comm show`."""
    actions = parser.add_subparsers(metavar="measure|fit|show", required=True)
    measure = actions.add_parser("measure", help="run collectives through torch.distributed, here or under torchrun")
    fit = actions.add_parser("fit", help="alpha and beta from the output of nccl-tests")
    show = actions.add_parser("show", help="the link tables in the store")
    for action, kind, run in (
        (measure, CommMeasureOptions, _measure),
        (fit, CommFitOptions, _fit),
        (show, CommShowOptions, _show),
    ):
        add_options(action, kind)
        action.set_defaults(run=run)


def _measure(arguments: Namespace) -> None:
    world = launched_world()
    make_user_folder()
    with progress(f"measuring {arguments.link}") as report:
        tables = api.comm_measure(chosen(arguments, CommMeasureOptions, progress=report, world=world))
    if world is None or world.rank == 0:
        _print(tables, as_json=arguments.json)


def launched_world() -> World | None:
    """This process's place among torchrun's, from the variables that torchrun sets; None if it started none."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    if not all(name in os.environ for name in (*names, "MASTER_ADDR")):
        return None
    try:
        rank, world_size, ranks_per_node, port = (int(os.environ[name]) for name in names)
    except ValueError:
        found = ", ".join(f"{name}={os.environ[name]}" for name in names)
        raise InputError(where="environment", found=found, expected="the numbers that torchrun sets") from None
    return World(
        rank=rank,
        world_size=world_size,
        ranks_per_node=ranks_per_node,
        address=os.environ["MASTER_ADDR"],
        port=port,
        agent_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _fit(arguments: Namespace) -> None:
    make_user_folder()
    _print(api.comm_fit(chosen(arguments, CommFitOptions)), as_json=arguments.json)


def _show(arguments: Namespace) -> None:
    _print(api.comm_show(chosen(arguments, CommShowOptions)), as_json=arguments.json)


def _print(tables: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(tables)
        return
    rows = [
        (table["link"], table["op"], str(table["ranks"]), str(table["nodes"]), *_figures(table)) for table in tables
    ]
    if tables and "seconds" in tables[0]:
        title, columns = f"Link tables at {tables[0]['size']} bytes", tuple(tables[0]["seconds"])
    else:
        title, columns = "Link tables", ("up to", "alpha", "1/beta")
    print_table(title, ("link", "op", "ranks", "nodes", *columns, "fit error", "basis"), rows)


def _figures(table: dict[str, Any]) -> tuple[str, ...]:
    """What fits best in a row: the line's coefficients, or the seconds at the size that was asked for."""
    basis = (f"{table['fit_error']:.1%}", table["provenance"])
    if "seconds" in table:
        return (*map(format_seconds, table["seconds"].values()), *basis)
    slope = table["beta_s_per_byte"]
    largest_bytes = table["points"][-1][0]
    rate = format_count(1 / slope, "B/s") if slope else "-"
    return (format_bytes(largest_bytes), format_seconds(table["alpha_s"]), rate, *basis)
