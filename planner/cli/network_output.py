"""A plan on the network above the nodes for people: how far every axis is spread, and what binds it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.cli.output import format_bytes, format_count, format_seconds, print_notes, print_table, print_text
from planner.shared.plan_network import AxisOnNetwork, PlanNetwork, UplinkUse

AXIS_NAMES = {
    "shard": "dp (state shared out)",
    "replicate": "dp (copies of it)",
    "expert_dp": "dp of experts",
    "tied": "tied embedding",
}
"""Axes that people know by another name."""
MOST_JOBS = 3
"""Of those that slow a plan, or that it slows, so many are shown."""


def print_network(network: PlanNetwork) -> None:
    """Print a row for every axis that sends, and the uplinks that are fullest over the whole iteration."""
    title = "Above the nodes: parts met, seconds an iteration"
    columns = ("axis", *network.levels, "NICs busy", "uplinks busy", "what binds")
    print_table(title, columns, [_row(axis) for axis in network.axes])
    fullest = max(network.uplinks, key=_fullness, default=None)
    if fullest is not None:
        print_text(_describe_fullest(fullest), indent="  ")
        print()


def print_flows(flows: dict[str, Any]) -> None:
    """Print the iteration by flows beside the closed form's, and a row for every collective between nodes."""
    rows = [
        (
            AXIS_NAMES.get(each["axis"], each["axis"]),
            f"{each['op']} of {format_bytes(each['size_bytes'])}",
            f"{each['groups']:,} of {each['ranks']:,}",
            f"{each['times']:,}",
            format_seconds(each["free_s"]),
            format_seconds(each["flow_s"]),
        )
        for each in flows["exchanges"]
    ]
    title = f"As flows on the fabric ({flows['routing']}), alone"
    columns = ("axis", "collective", "groups", "times", "nothing held back", "on the fabric")
    print_table(title, columns, rows)
    by_flows, closed = (format_seconds(flows[name]) for name in ("iteration_time_s", "closed_form_s"))
    print(f"  an iteration: {by_flows}; by the closed form {closed}")
    print_notes("Why:", flows["notes"])
    if flows.get("beside") is not None:
        _print_beside(flows["beside"])
    print()


def _print_beside(beside: dict[str, Any]) -> None:
    """What becomes of the plan beside other jobs, who slows it, whom it slows."""
    alone, now = (_seconds(beside[name]) for name in ("alone_s", "iteration_time_s"))
    jobs = "1 job" if beside["jobs"] == 1 else f"{beside['jobs']:,} jobs"
    print(f"  beside {jobs}: {now}; alone {alone} (modelled)")
    for each in beside["slowed_by"][:MOST_JOBS]:
        print(f"    slowed by {each['id']} by {_seconds(each['gained_s'])}{_where(each['links'])}")
    for each in beside["slows"][:MOST_JOBS]:
        print(f"    slows {each['id']} by {_seconds(each['lost_s'])}{_where(each['links'])}")
    if beside["unstable"]:
        print("    unstable: it moves by more than 5% as compute varies by up to 2%")
    if not beside["steady"]:
        print("    not settled to one rate")


def _seconds(value: float | None) -> str:
    return "for good" if value is None else format_seconds(value)


def _where(links: Sequence[str]) -> str:
    return f" on {links[0]}" if links else ""


def _row(axis: AxisOnNetwork) -> tuple[object, ...]:
    if axis.binds is not None:
        binds = f"uplinks of {axis.binds.level} {axis.binds.part}"
    else:
        binds = "NICs" if axis.nic_s else "nothing: inside nodes"
    if axis.reach < 1:
        binds += f"; {axis.reach:.0%} of the rate over so many parts"
    busy = (format_seconds(seconds) if seconds else "-" for seconds in (axis.nic_s, axis.uplink_s))
    return (AXIS_NAMES.get(axis.axis, axis.axis), *axis.parts_met, *busy, binds)


def _fullness(use: UplinkUse) -> float:
    return use.bytes_per_s / use.capacity_bytes_per_s if use.capacity_bytes_per_s else 0.0


def _describe_fullest(use: UplinkUse) -> str:
    sent = f"{format_bytes(use.up_bytes)} up and {format_bytes(use.down_bytes)} down an iteration"
    rate = format_count(use.bytes_per_s, "B/s")
    share = f", {_fullness(use):.0%} of what they carry" if use.capacity_bytes_per_s else ""
    return f"fullest uplinks: {use.uplink.level} {use.uplink.part} of {use.uplink.site}, {sent}, {rate}{share}"
