"""A priority map as what NICs and switches are set by: commands of `mlnx_qos`, and tables for SONiC. Text alone.

Strict queues are served by number, the highest first. Where the levels of a map do not fall so, their queues are dealt
out anew. Their priorities stay: flow control and the buffers behind it go by these.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from planner.contention.emitting.levels import MOST_DSCP, MOST_LEVELS, MapLevel
from planner.contention.emitting.priority_map import PriorityMap
from profiles.records import dataclass, replace

NAME = "CELLPLAN"


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A map whose queues fall from level to level. Each of its levels has a priority of its own; `queues` has the queue
    of each priority (those of one queue stay together), `lossless` the priorities with flow control, those of other
    traffic among them, `moved` those of them that have another queue than before, and `priority_of_dscp` all that is
    known of DSCPs."""

    levels: tuple[MapLevel, ...]
    queues: tuple[int, ...]
    lossless: frozenset[int]
    moved: tuple[int, ...]
    priority_of_dscp: Mapping[int, int]


def deal(of: PriorityMap, *, all_strict: bool = False) -> Dealt:
    """Return the map in order. The queues of levels, and those of other traffic that are served strictly (all of them
    where all will be: `all_strict`), are dealt out among these in the order in which the fabric serves them now; others
    stay."""
    whole = (*of.levels, *of.others)
    priorities = _priorities(whole, of.lossless)
    now = {own.traffic_class: dict(of.queue_of_class).get(own.traffic_class, own.traffic_class) for own in whole}
    strict = {own.traffic_class for own in whole if all_strict or own in of.levels or own.service == "strict"}
    by_number = sorted(priorities, key=lambda number: -priorities[number])
    turns = [number for number in of.served or by_number if number in strict]
    then = {**now, **dict(zip(turns, sorted((now[number] for number in turns), reverse=True), strict=True))}
    known = {dscp: priorities[number] for dscp, number in of.class_of_dscp if number in priorities}
    own_dscps = {own.dscp: priorities[own.traffic_class] for own in whole[::-1]}
    lossless = frozenset(priorities[own.traffic_class] for own in whole if own.pfc) | set(of.lossless)
    return Dealt(
        levels=tuple(replace(level, priority=priorities[level.traffic_class]) for level in of.levels),
        queues=_queues(priorities, then, dict(of.class_of_priority)),
        lossless=lossless,
        moved=tuple(
            sorted(
                priorities[number] for number in now if now[number] != then[number] and priorities[number] in lossless
            )
        ),
        priority_of_dscp={**known, **own_dscps},
    )


def _priorities(whole: Sequence[MapLevel], lossless: Collection[int]) -> dict[int, int]:
    """A priority for each class: its own, unless another has it, too, or flow control that the class has not."""
    used = {own.priority for own in whole} | set(lossless)
    spare = [number for number in range(MOST_LEVELS - 1, -1, -1) if number not in used]
    priorities: dict[int, int] = {}
    for own in sorted(whole, key=lambda own: not own.pfc):
        taken = own.priority in priorities.values() or (not own.pfc and own.priority in lossless)
        priorities[own.traffic_class] = spare.pop(0) if taken else own.priority
    return priorities


def _queues(
    priorities: Mapping[int, int], queue_of_class: Mapping[int, int], class_of_priority: Mapping[int, int]
) -> tuple[int, ...]:
    """The queue of each priority: that of its class; those that no DSCP leads to get the queues that are left."""
    queues = {priorities[number]: queue for number, queue in queue_of_class.items()}
    for priority, number in class_of_priority.items():
        queues.setdefault(priority, queue_of_class.get(number, number))
    left = [queue for queue in range(MOST_LEVELS) if queue not in queues.values()]
    return tuple(queues[priority] if priority in queues else left.pop(0) for priority in range(MOST_LEVELS))


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
        others = [own for own in of.others if own.service == "strict"]
        served = [level.priority for level in dealt.levels] + [dealt.priority_of_dscp[own.dscp] for own in others]
        tables["QUEUE"] = {
            f"{port}|{queue}": {"scheduler": strict}
            for port in of.ports
            for queue in sorted(dealt.queues[priority] for priority in served)
        }
    return json.dumps(tables, indent=4) + "\n"
