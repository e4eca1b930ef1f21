"""A priority map as what NICs and switches are set by: commands of `mlnx_qos`, and tables for SONiC. Text alone.

Strict queues are served by number, the highest first. Where the levels of a map do not fall so, their queues are dealt
out anew. Their priorities stay: flow control and the buffers behind it go by these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from planner.contention.emitting.levels import MOST_DSCP, MOST_LEVELS, MapLevel
from planner.contention.emitting.priority_map import PriorityMap
from profiles.records import dataclass, replace

NAME = "CELLPLAN"


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A map whose queues fall from level to level. Each of its levels has a priority of its own; `queues` has the queue
    of each priority (those of one queue stay together), `lossless` the priorities with flow control, those of other
    traffic among them, and `priority_of_dscp` all that is known of DSCPs."""

    levels: tuple[MapLevel, ...]
    queues: tuple[int, ...]
    lossless: frozenset[int]
    priority_of_dscp: Mapping[int, int]


def deal(of: PriorityMap, *, all_strict: bool = False) -> Dealt:
    """Return the map in order. A queue keeps its priority unless another has it, too: then the one without flow control
    gets a spare one. `all_strict`: queues of other traffic are served strictly, too, so that theirs are dealt out as
    well, in the order in which the fabric serves them now."""
    whole = (*of.levels, *of.others)
    used = {own.priority for own in whole} | set(of.lossless)
    spare = [number for number in range(MOST_LEVELS - 1, -1, -1) if number not in used]
    priorities: dict[int, int] = {}
    for own in sorted(whole, key=lambda own: not own.pfc):
        taken = own.priority in priorities.values()
        priorities[own.traffic_class] = spare.pop(0) if taken else own.priority
    levels = tuple(replace(level, priority=priorities[level.traffic_class]) for level in of.levels)
    in_order = [level.traffic_class for level in levels]
    if all_strict:
        by_number = sorted(priorities, key=lambda number: -priorities[number])
        in_order = [number for number in of.served if number in priorities] or by_number
    numbers = [priorities[number] for number in in_order]
    queues = list(range(MOST_LEVELS))
    for priority, queue in zip(numbers, sorted(numbers, reverse=True), strict=True):
        queues[priority] = queue
    for priority, number in of.class_of_priority:
        if priority not in priorities.values() and number in priorities:
            queues[priority] = queues[priorities[number]]
    known = {dscp: priorities[number] for dscp, number in of.class_of_dscp if number in priorities}
    own_dscps = {own.dscp: priorities[own.traffic_class] for own in whole[::-1]}
    return Dealt(
        levels=levels,
        queues=tuple(queues),
        lossless=frozenset(priorities[own.traffic_class] for own in whole if own.pfc) | set(of.lossless),
        priority_of_dscp={**known, **own_dscps},
    )


def mlnx_qos_commands(of: PriorityMap) -> str:
    """Return the commands that give an mlx5 NIC the map: the levels' DSCPs to their priorities, each level in a traffic
    class of its own, higher ones first, flow control for those that the map says have it. Classes of other traffic
    become strict, too, before or behind the levels as they were.

    Classes and flow control come before the DSCPs that lead to them, so that nothing is dropped meanwhile. `--trust`
    and `--dscp2prio` stand in calls of their own, since mlnx_qos refuses them together.
    """
    dealt = deal(of, all_strict=True)
    bits = ",".join(str(int(number in dealt.lossless)) for number in range(MOST_LEVELS))
    pfc = f'mlnx_qos -i "$INTERFACE" --pfc {bits}'
    strict, no_shares = ",".join(["strict"] * MOST_LEVELS), ",".join(["0"] * MOST_LEVELS)
    lines = [
        "#!/bin/sh",
        "# Levels of a cellplan plan on one NIC: INTERFACE=ens1f0 sh mlnx_qos.sh, as root, on each NIC of each host,",
        "# after the switches have theirs and before jobs start.",
        "# What was set before is kept in mlnx_qos.ens1f0.before, to set it back by; a start of the host does so, too.",
        "set -eu",
        'test -e "mlnx_qos.$INTERFACE.before" || mlnx_qos -i "$INTERFACE" > "mlnx_qos.$INTERFACE.before"',
        "# Each level in a class of its own, higher classes first.",
        f'mlnx_qos -i "$INTERFACE" --prio_tc {",".join(map(str, dealt.queues))} --tsa {strict} --tcbw {no_shares}',
    ]
    if of.assumed:
        lines.append("# Which priorities are to be lossless was not said: the list has a 1 for each of them.")
        lines.append(f"# {pfc}")
    else:
        lines.append(pfc)
    lines.append('mlnx_qos -i "$INTERFACE" --trust dscp')
    for number, level in enumerate(dealt.levels):
        lines.append(f"# level {number}")
        lines.append(f'mlnx_qos -i "$INTERFACE" --dscp2prio set,{level.dscp},{level.priority}')
    return "\n".join(lines) + "\n"


def sonic_tables(of: PriorityMap) -> str:
    """Return the tables that a SONiC switch takes with `config load FILE`: the map under the name CELLPLAN, queues of
    levels served strictly, bound to the map's ports where it has any. A DSCP of no level stays with its queue, as far
    as the map that was read says it; else it goes with DSCP 0."""
    dealt = deal(of)
    rest = dealt.priority_of_dscp.get(0, 0)
    same = {str(number): str(number) for number in range(MOST_LEVELS)}
    queues = {str(number): str(queue) for number, queue in enumerate(dealt.queues)}
    lossless = sorted(dealt.lossless)
    strict = f"{NAME}.strict"
    tables: dict[str, object] = {
        "DSCP_TO_TC_MAP": {
            NAME: {str(dscp): str(dealt.priority_of_dscp.get(dscp, rest)) for dscp in range(MOST_DSCP + 1)}
        },
        "TC_TO_QUEUE_MAP": {NAME: queues},
        "TC_TO_PRIORITY_GROUP_MAP": {
            NAME: {number: number if int(number) in dealt.lossless else "0" for number in same}
        },
        "MAP_PFC_PRIORITY_TO_QUEUE": {NAME: queues},
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
            f"{port}|{dealt.queues[level.priority]}": {"scheduler": strict}
            for port in of.ports
            for level in dealt.levels[::-1]
        }
    return json.dumps(tables, indent=4) + "\n"
