"""`cellplan network paths`: the ways between two nodes, for people."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from planner.cli.output import format_count, print_notes, print_table

MOST_ROWS, MOST_PORTS = 32, 20
"""Of ways that are printed, and of letters of a list of ports."""


def print_paths(answer: dict[str, Any], _: Namespace) -> None:
    """Print a row for each way."""
    first, second = (f"NIC {nic} of {host}" for nic, host in zip(answer["nics"], answer["between"], strict=True))
    routing = answer["routing"]
    by = routing["kind"]
    if by == "ecmp":
        by += f" by {routing['hash']}, seed {routing['seed']}"
    rows = [
        (
            " ".join(link.split(" -> ")[1] for link in path["links"][:-1]) or "straight",
            _shortened(path["ports"]),
            f"{path['port_count']:,}",
            f"{path['share']:.3g}" if path["share"] < 1 else None,
            format_count(path["bytes_per_s"], "B/s"),
            "known" if path["known"] else None,
        )
        for path in answer["paths"][:MOST_ROWS]
    ]
    columns = ("through (which cable)", "source ports", "of them", "share of each", "rate", "")
    print_table(f"From {first} to {second}: {answer['equal']:,} equal ways; {by}", columns, rows)
    left = len(answer["paths"]) - len(rows)
    if left > 0:
        print(f"  and {left:,} more (--json has all)")
    print_notes("Assumed:", answer["notes"])


def _shortened(ports: str) -> str:
    return ports if len(ports) <= MOST_PORTS else f"{ports[:MOST_PORTS].rpartition(',')[0]}, ..."
