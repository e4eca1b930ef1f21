"""`cellplan comm`: link tables from torch.distributed or from the output of nccl-tests."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from planner.cli.options import (
    add_json_option,
    add_store_option,
    positive_int,
    positive_ints,
    positive_seconds,
    store_path,
    words_of,
)
from planner.cli.output import format_bytes, format_count, format_seconds, print_json, print_table, progress
from profiles.errors import InputError
from profiles.vocabulary import CollectiveOp

if TYPE_CHECKING:
    from estimator.communication.measure_torch import World

OPS = get_args(CollectiveOp)


def add_arguments(parser: ArgumentParser) -> None:
    """`comm measure`, `comm fit FILE` and `comm show`."""
    actions = parser.add_subparsers(metavar="measure|fit|show", required=True)
    measure = actions.add_parser("measure", help="run collectives through torch.distributed, here or under torchrun")
    measure.add_argument("--link", default="loopback", metavar="NAME", help="the link measured (default: %(default)s)")
    measure.add_argument(
        "--backend", choices=("gloo", "nccl", "xla"), default="gloo", help="xla: JAX (default: %(default)s)"
    )
    measure.add_argument("--ranks", type=positive_ints, default=(2,), metavar="LIST", help="rank counts (default: 2)")
    measure.add_argument("--sizes", type=positive_ints, metavar="LIST", help="bytes (default: 4 KiB to 64 MiB)")
    measure.add_argument("--ops", type=words_of(OPS), metavar="LIST", help=f"of {', '.join(OPS)} (default: all)")
    measure.add_argument("--repeats", type=positive_int, default=20, metavar="N", help="per size (default: 20)")
    measure.add_argument("--busy", action="store_true", help="compute before each call, as a training does")
    measure.add_argument(
        "--timeout", type=positive_seconds, default=120.0, metavar="SECONDS", help="give up after (default: 120)"
    )
    fit = actions.add_parser("fit", help="alpha and beta from the output of nccl-tests")
    fit.add_argument("file", type=Path, metavar="FILE", help="what all_reduce_perf and its kin printed")
    fit.add_argument("--link", required=True, metavar="NAME", help="the link measured, such as nvswitch3")
    fit.add_argument("--op", choices=OPS, help="the collective, where the file does not say which")
    show = actions.add_parser("show", help="the link tables in the store")
    show.add_argument("--link", metavar="NAME", help="of this link alone")
    show.add_argument("--size", type=positive_int, metavar="BYTES", help="also the time of that many, by each method")
    for action, run in ((measure, _measure), (fit, _fit), (show, _show)):
        add_store_option(action)
        add_json_option(action)
        action.set_defaults(run=run)


def _measure(arguments: Namespace) -> None:
    from planner import api

    world = launched_world()
    with progress(f"measuring {arguments.link}") as report:
        tables = api.comm_measure(
            link=arguments.link,
            backend=arguments.backend,
            ranks=arguments.ranks,
            sizes=arguments.sizes,
            ops=arguments.ops,
            repeats=arguments.repeats,
            busy=arguments.busy,
            timeout=arguments.timeout,
            store=store_path(arguments, to_write=True),
            progress=report,
            world=world,
        )
    if world is None or world.rank == 0:
        _print(tables, as_json=arguments.json)


def launched_world() -> World | None:
    """This process's place among torchrun's, from the variables that torchrun sets; None if it started none."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    if not all(name in os.environ for name in (*names, "MASTER_ADDR")):
        return None
    from estimator.communication.measure_torch import World

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
    from planner import api

    store = store_path(arguments, to_write=True)
    _print(api.comm_fit(arguments.file, link=arguments.link, op=arguments.op, store=store), as_json=arguments.json)


def _show(arguments: Namespace) -> None:
    from planner import api

    tables = api.comm_show(link=arguments.link, size=arguments.size, store=store_path(arguments))
    _print(tables, as_json=arguments.json)


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
