"""`cellplan network paths` and `probe`: the ways between two nodes, for people."""

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
    sprayed = any(path["share"] < 1 for path in answer["paths"])
    rows = [
        (
            " ".join(link.split(" -> ")[1] for link in path["links"][:-1]) or "straight",
            _shortened(path["ports"]),
            f"{path['port_count']:,}",
            *([f"{path['share']:.3g}"] if sprayed else []),
            format_count(path["bytes_per_s"], "B/s"),
            "known" if path["known"] else "",
        )
        for path in answer["paths"][:MOST_ROWS]
    ]
    columns = ("through", "source ports", "of them", *(["share of each"] if sprayed else []), "rate", "")
    print_table(f"From {first} to {second}: {answer['equal']:,} equal ways; {by}", columns, rows)
    left = len(answer["paths"]) - len(rows)
    if left > 0:
        print(f"  and {left:,} more (--json has all)")
    print_notes("Assumed:", answer["notes"])


def print_probe(answer: dict[str, Any], _: Namespace) -> None:
    """Print a row for each way that was seen, and how many ports that took."""
    first, second = (f"NIC {nic} of {host}" for nic, host in zip(answer["nics"], answer["between"], strict=True))
    rows = [
        (" ".join(path["through"]), _shortened(path["ports"]), f"{path['port_count']:,}") for path in answer["paths"]
    ]
    title = f"From {first} to {second}: {answer['seen']:,} of {answer['equal']:,} equal ways seen"
    print_table(title, ("through", "source ports", "of them"), rows[:MOST_ROWS])
    print(
        f"  measured: {answer['asked']:,} ports {answer['traces']}, {answer['stopped']}; by chance it takes"
        f" {answer['expected_ports']:.1f} in the mean, {answer['likely_ports']:,} with a confidence of"
        f" {answer['confidence']:g}"
    )
    if answer["unseen"]:
        left = f" and {len(answer['unseen']) - 4:,} more" if len(answer["unseen"]) > 4 else ""
        print(f"  not seen: {'; '.join(' '.join(way) for way in answer['unseen'][:4])}{left}")
    print_notes("Of note:", answer["notes"])
    if answer["output"] is not None:
        print(f"written to {answer['output']}")


def _shortened(ports: str) -> str:
    return ports if len(ports) <= MOST_PORTS else f"{ports[:MOST_PORTS].rpartition(',')[0]}, ..."
