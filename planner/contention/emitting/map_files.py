"""A priority map as what NICs and switches are set by: commands of `mlnx_qos`, and tables for SONiC. Text alone."""

from __future__ import annotations

import json

from planner.contention.emitting.levels import MOST_DSCP, MOST_LEVELS
from planner.contention.emitting.priority_map import PriorityMap
from profiles.records import replace

NAME = "CELLPLAN"


def in_order(of: PriorityMap) -> PriorityMap:
    """Return the map with priorities that fall from level to level, as strict classes are served by number: those that
    the levels have, and spare ones where two have the same, dealt out anew where they do not fall. Flow control goes
    with the level."""
    own = {level.priority for level in of.levels}
    others = {level.priority for level in of.reserved}
    spare = [number for number in range(MOST_LEVELS - 1, -1, -1) if number not in own | others]
    priorities = sorted([*own, *spare[: len(of.levels) - len(own)]], reverse=True)
    levels = (
        replace(level, priority=priority, traffic_class=priority)
        for level, priority in zip(of.levels, priorities, strict=True)
    )
    return replace(of, levels=tuple(levels))


def mlnx_qos_commands(of: PriorityMap) -> str:
    """Return the commands that give an mlx5 NIC the map: the levels' DSCPs to their priorities, each priority in a
    traffic class of its own, higher ones first, flow control for those that the map says have it.

    `--trust` and `--dscp2prio` stand in calls of their own, since mlnx_qos refuses them together.
    """
    of = in_order(of)
    lines = [
        "#!/bin/sh",
        "# Levels of a cellplan plan on one NIC: INTERFACE=ens1f0 sh mlnx_qos.sh, as root, on each NIC of each host.",
        "# What it sets is lost with the next start of the host.",
        "set -eu",
        'mlnx_qos -i "$INTERFACE" --trust dscp',
    ]
    for number, level in enumerate(of.levels):
        lines.append(f"# level {number}")
        lines.append(f'mlnx_qos -i "$INTERFACE" --dscp2prio set,{level.dscp},{level.priority}')
    numbers = ",".join(str(number) for number in range(MOST_LEVELS))
    lines.append("# Each priority in a class of its own, higher ones first.")
    lines.append(f'mlnx_qos -i "$INTERFACE" --prio_tc {numbers} --tsa {",".join(["strict"] * MOST_LEVELS)}')
    lossless = lossless_priorities(of)
    bits = ",".join(str(int(number in lossless)) for number in range(MOST_LEVELS))
    if of.assumed:
        lines.append("# Which priorities are to be lossless was not said: the list has a 1 for each of them.")
        lines.append(f'# mlnx_qos -i "$INTERFACE" --pfc {bits}')
    else:
        lines.append(f'mlnx_qos -i "$INTERFACE" --pfc {bits}')
    return "\n".join(lines) + "\n"


def sonic_tables(of: PriorityMap) -> str:
    """Return the tables that a SONiC switch takes with `config load FILE`: the map under the name CELLPLAN, queues of
    levels served strictly, bound to the map's ports where it has any. DSCPs of no level go to the class of DSCP 0."""
    of = in_order(of)
    classes = {str(number): str(number) for number in range(MOST_LEVELS)}
    by_dscp = {level.dscp: level for level in (*of.reserved, *of.levels)}
    rest = by_dscp[0].priority if 0 in by_dscp else 0
    lossless = sorted(lossless_priorities(of))
    strict = f"{NAME}.strict"
    tables: dict[str, object] = {
        "DSCP_TO_TC_MAP": {
            NAME: {str(dscp): str(by_dscp[dscp].priority if dscp in by_dscp else rest) for dscp in range(MOST_DSCP + 1)}
        },
        "TC_TO_QUEUE_MAP": {NAME: classes},
        "TC_TO_PRIORITY_GROUP_MAP": {
            NAME: {str(number): str(number if number in lossless else 0) for number in range(MOST_LEVELS)}
        },
        "MAP_PFC_PRIORITY_TO_QUEUE": {NAME: classes},
        "SCHEDULER": {strict: {"type": "STRICT"}},
    }
    if lossless:
        tables["PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"] = {NAME: {str(number): str(number) for number in lossless}}
    if of.ports:
        bound = {
            "dscp_to_tc_map": NAME,
            "tc_to_queue_map": NAME,
            "tc_to_pg_map": NAME,
            "pfc_to_queue_map": NAME,
            **({"pfc_to_pg_map": NAME, "pfc_enable": ",".join(map(str, lossless))} if lossless else {}),
        }
        tables["PORT_QOS_MAP"] = dict.fromkeys(of.ports, bound)
        tables["QUEUE"] = {
            f"{port}|{level.priority}": {"scheduler": strict} for port in of.ports for level in of.levels[::-1]
        }
    return json.dumps(tables, indent=4) + "\n"


def lossless_priorities(of: PriorityMap) -> set[int]:
    """Return the priorities that have flow control, those kept for others among them."""
    return {level.priority for level in (*of.levels, *of.reserved) if level.pfc}
