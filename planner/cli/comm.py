"""`cellplan comm`: link tables from torch.distributed or from the output of nccl-tests."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_actions
from planner.cli.output import format_bytes, format_count, format_seconds, print_notes, print_table


def add_arguments(parser: ArgumentParser) -> None:
    """`comm measure`, `comm fit FILE` and `comm show`."""
    add_actions(
        parser,
        measure=Action(
            api.comm_measure,
            _print,
            "run collectives through torch.distributed, here or under torchrun",
            doing="measuring {link}",
            writes=True,
        ),
        fit=Action(
            api.comm_fit,
            _print_fitted,
            "alpha and beta, or a level's spread table, from the output of nccl-tests",
            writes=True,
        ),
        show=Action(api.comm_show, _print, "the link tables in the store"),
    )


def _print_fitted(fitted: list[dict[str, Any]] | dict[str, Any], arguments: Namespace) -> None:
    if isinstance(fitted, list):
        _print(fitted, arguments)
        return
    rows = [
        (
            *(run[name] for name in ("op", "ranks", "nodes", "parts")),
            format_bytes(run["size_bytes"]),
            format_seconds(run["seconds"]),
            f"{run['share']:.1%}",
        )
        for run in fitted["runs"]
    ]
    columns = ("op", "ranks", "nodes", "parts", "size", "time", "share")
    print_table(f"Runs over parts of level {fitted['level']}", columns, rows)
    print_notes("not measured:", fitted["notes"])
    print("for the level in the cluster file:")
    print(fitted["text"], end="")


def _print(tables: list[dict[str, Any]], _: Namespace) -> None:
    rows = [(table["link"], table["op"], _ranks(table), *_figures(table)) for table in tables]
    if tables and "seconds" in tables[0]:
        title, columns = f"Link tables at {tables[0]['size']} bytes", tuple(tables[0]["seconds"])
    else:
        title, columns = "Link tables", ("up to", "alpha", "1/beta")
    print_table(title, ("link", "op", "ranks", *columns, "error", "basis"), rows)


def _ranks(table: dict[str, Any]) -> str:
    """As a cluster is written: nodes by ranks on each."""
    ranks, nodes = table["ranks"], table["nodes"]
    return f"{nodes}x{ranks // nodes}" if nodes and ranks % nodes == 0 else f"{ranks} on {nodes or '?'}"


def _figures(table: dict[str, Any]) -> tuple[str, ...]:
    """What fits best in a row: the line's coefficients, or the seconds at the size that was asked for."""
    basis = (f"{table['fit_error']:.1%}", table["provenance"])
    if "seconds" in table:
        return (*map(format_seconds, table["seconds"].values()), *basis)
    slope = table["beta_s_per_byte"]
    largest_bytes = table["points"][-1][0]
    rate = format_count(1 / slope, "B/s") if slope else "-"
    return (format_bytes(largest_bytes), format_seconds(table["alpha_s"]), rate, *basis)
