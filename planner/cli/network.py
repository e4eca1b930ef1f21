"""`cellplan network`: the switches and cables between the nodes of a cluster."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_actions
from planner.cli.network_measure import print_measured
from planner.cli.network_paths import print_paths, print_probe
from planner.cli.output import format_count, format_seconds, print_notes, print_table


def add_arguments(parser: ArgumentParser) -> None:
    """`network show C`, `network paths C HOST HOST`, `network probe C HOST`, `network measure COUNTERS`."""
    add_actions(
        parser,
        show=Action(api.network_show, _print_network, "tiers of switches, what their cables carry, equal ways"),
        paths=Action(api.network_paths, print_paths, "ways between two nodes, and the ports of each"),
        probe=Action(api.network_probe, print_probe, "find the ports of each way by sending, or in traces"),
        measure=Action(api.network_measure, print_measured, "what a job sends in an iteration, from counters"),
    )


def _print_network(shown: dict[str, Any], _: Namespace) -> None:
    for site in shown["sites"]:
        _print_site(site)
    links = [
        (
            " and ".join(link["between"]),
            format_count(link["bandwidth_bytes_per_s"], "B/s"),
            format_seconds(link["latency_s"]),
        )
        for link in shown["links_between_sites"]
    ]
    if links:
        print_table("Between sites (one direction)", ("sites", "bandwidth", "latency"), links)
    print_notes("Assumed:", shown["notes"])
    if shown["output"] is not None:
        print(f"written to {shown['output']}")


def _print_site(site: dict[str, Any]) -> None:
    named = f" ({site['hosts']})" if site["hosts"] and len(site["hosts"]) <= 60 else ""
    title = f"{site['name']}: {site['topology']}, {site['nodes']:,} nodes{named}, {site['devices']:,} devices"
    rows = [
        (
            tier["name"],
            f"{tier['switches']:,}",
            f"{tier['ports']:,}",
            f"{tier['cables_up']:,}" if tier["cables_up"] else None,
            format_count(tier["below_bytes_per_s"], "B/s"),
            format_count(tier["up_bytes_per_s"], "B/s") if tier["cables_up"] else None,
            f"{tier['oversubscription']:.3g}" if tier["oversubscription"] else None,
        )
        for tier in site["tiers"]
    ]
    columns = ("tier", "switches", "ports", "cables up", "from below", "up", "below : up")
    print_table(f"{title}; line rates", columns, rows)
    half = site["nic_bytes_per_s"] / 2
    share = f", {site['halves_bytes_per_s'] / half:.0%} of what its NICs send" if half else ""
    print(f"  from the first half of the nodes to the other: {format_count(site['halves_bytes_per_s'], 'B/s')}{share}")
    ways = site["ways"]
    if ways["cables"]:
        first, second = ways["between"]
        number = f"{ways['equal']:,} equal {'way' if ways['equal'] == 1 else 'ways'}"
        print(f"  from {first} to {second}: {number} of {ways['cables']} cables")
    levels = ", ".join(
        f"{level['parts']:,} of {level['name']} (oversubscription {level['oversubscription']:.3g})"
        for level in site["levels"]
    )
    print(f"  levels that estimates read: {levels or 'none; nothing above the NICs holds back'}")
    print()
