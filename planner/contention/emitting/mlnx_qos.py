"""Reading what `mlnx_qos -i INTERFACE` prints of an mlx5 NIC (mlnx-tools, python/mlnx_qos), and its global class.

The text has, in this order, the trust state, the priority of each DSCP (eight to a line, the highest first), which
priorities have flow control, and for each traffic class how it is served (tsa) and which priorities are in it. Between
classes the mlx5 driver serves those of tsa `vendor` first, all alike, then the strict ones by their number, the highest
first, then those of tsa `ets` by weight (mlx5e_build_tc_group of Linux).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from planner.contention.emitting.levels import MOST_LEVELS, FoundLevels, MapLevel, Service, class_dscp
from profiles.errors import InputError
from profiles.files import text_lines
from profiles.records import dataclass

_TRUST = re.compile(r"\s*Priority trust state:\s*(\S*)")
_DSCPS = re.compile(r"\s*prio:\s*(\d+)\s+dscp:\s*(\S*)\s*$")
_ENABLED = re.compile(r"\s*enabled((?:\s+[01])+)\s*$")
_CLASS = re.compile(r"\s*tc:\s*(\d+)\s.*tsa:\s*(\w+)")
_MEMBER = re.compile(r"\s*priority:\s*(\d+)\s*$")
_GLOBAL = re.compile(r"(?:.*/infiniband/([\w.-]+)/\S*)?.*?Global tclass\s*=\s*(\d+)")
LLDPAD = "lldpad service is running"
_SERVICES: dict[str, Service] = {"strict": "strict", "ets": "weighted", "vendor": "vendor"}
_ORDER: tuple[Service, ...] = ("vendor", "strict", "unsaid", "weighted")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interface:
    """What one section of the text says: the priority of each DSCP, priorities with PFC, the class of each priority,
    how each class is served."""

    priority_of_dscp: Mapping[int, int]
    pfc: frozenset[int]
    class_of_priority: Mapping[int, int]
    service_of_class: Mapping[int, Service]


def is_mlnx_qos(text: str) -> bool:
    """Whether a text may be of this kind."""
    return _TRUST.search(text) is not None or "dscp2prio mapping:" in text


def read_mlnx_qos(text: str, *, where: str) -> FoundLevels:
    """Return what a NIC has. Warned of are a global traffic class (lines of /sys/class/infiniband/*/tc/1/traffic_class
    may stand in the text), lldpad beside it, and NICs that differ.

    Raise InputError for a NIC that does not trust DSCP, a DSCP twice, numbers that there are not, and a text cut short.
    """
    sections: list[list[tuple[int, str]]] = []
    warnings: list[str] = []
    for number, line in enumerate(text_lines(text, where=where), start=1):
        if _TRUST.match(line):
            sections.append([])
        tclass = _GLOBAL.match(line)
        if tclass:
            warnings.append(_global_class(tclass[1], int(tclass[2])))
        elif sections:
            sections[-1].append((number, line))
    if not sections:
        expected = "`Priority trust state: dscp` above the mapping, as mlnx_qos prints it"
        raise InputError(where=where, found="dscp2prio mapping without it", expected=expected)
    if LLDPAD in text:
        warnings.append(f"{where}: lldpad runs on a host and may set its NICs otherwise, as mlnx_qos says")
    first, *others = [_section(section, where) for section in sections]
    differing = [str(number) for number, other in enumerate(others, start=2) if other != first]
    if differing:
        warnings.append(
            f"{where}: NIC {', '.join(differing)} of the file is set otherwise than the first, which counts"
        )
    queues, classes = _queues(first)
    return FoundLevels(
        queues=tuple(queues),
        class_of_dscp=classes,
        warnings=tuple(warnings),
        lossless=tuple(sorted(first.pfc)),
        class_of_priority=first.class_of_priority,
    )


def _global_class(device: str | None, tclass: int) -> str:
    return (
        f"{device or 'an mlx5 device'} has a global traffic_class of {tclass} (DSCP {tclass >> 2}), which overrides"
        " what any job asks for: while /sys/class/infiniband/DEVICE/tc/1/traffic_class has it, levels change nothing"
    )


def _section(lines: Iterable[tuple[int, str]], where: str) -> _Interface:
    priority_of_dscp: dict[int, int] = {}
    class_of_priority: dict[int, int] = {}
    services: dict[int, Service] = {}
    pfc: frozenset[int] | None = None
    current: int | None = None
    for number, line in lines:
        place = f"{where}, line {number}"
        if trust := _TRUST.match(line):
            if trust[1] != "dscp":
                expected = "dscp: packets are told apart by DSCP (mlnx_qos -i INTERFACE --trust dscp)"
                raise InputError(
                    where=place, key="Priority trust state", found=trust[1] or "nothing", expected=expected
                )
        elif dscps := _DSCPS.match(line):
            _add_dscps(priority_of_dscp, int(dscps[1]), dscps[2], place)
        elif (enabled := _ENABLED.match(line)) and pfc is None:
            bits = enabled[1].split()
            if len(bits) != MOST_LEVELS:
                found = f"{len(bits)} of them"
                raise InputError(where=place, key="enabled", found=found, expected="a 0 or 1 for each of 8 priorities")
            pfc = frozenset(priority for priority, bit in enumerate(bits) if bit == "1")
        elif tc := _CLASS.match(line):
            current = _number(tc[1], MOST_LEVELS - 1, place, "tc")
            if tc[2] not in _SERVICES:
                raise InputError(where=place, key="tsa", found=tc[2], expected=f"one of {', '.join(_SERVICES)}")
            services[current] = _SERVICES[tc[2]]
        elif (member := _MEMBER.match(line)) and current is not None:
            priority = _number(member[1], MOST_LEVELS - 1, place, "priority")
            if class_of_priority.setdefault(priority, current) != current:
                found = f"priority {priority} in traffic classes {class_of_priority[priority]} and {current}"
                raise InputError(where=place, key="priority", found=found, expected="each priority in one")
    if not priority_of_dscp:
        raise InputError(where=where, key="dscp2prio mapping", found="no DSCP", expected="`prio:P dscp:...` lines")
    if pfc is None:
        raise InputError(where=where, found="an end before `PFC configuration:`", expected="all that mlnx_qos prints")
    return _Interface(
        priority_of_dscp=priority_of_dscp,
        pfc=pfc,
        class_of_priority=class_of_priority or {priority: priority for priority in range(MOST_LEVELS)},
        service_of_class=services,
    )


def _add_dscps(priority_of_dscp: dict[int, int], priority: int, listed: str, place: str) -> None:
    if priority >= MOST_LEVELS:
        raise InputError(where=place, key="prio", found=priority, expected=f"0 to {MOST_LEVELS - 1}")
    for word in filter(None, listed.split(",")):
        dscp = _number(word, 63, place, "dscp")
        if dscp in priority_of_dscp:
            found = f"DSCP {dscp} twice, of priority {priority_of_dscp[dscp]} and {priority}"
            raise InputError(where=place, key="dscp", found=found, expected="each DSCP once")
        priority_of_dscp[dscp] = priority


def _number(word: str, most: int, place: str, key: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 3 and int(word) <= most):
        raise InputError(where=place, key=key, found=repr(word), expected=f"a number from 0 to {most}")
    return int(word)


def _queues(of: _Interface) -> tuple[list[MapLevel], dict[int, int]]:
    dscps: defaultdict[int, set[int]] = defaultdict(set)
    for dscp, priority in of.priority_of_dscp.items():
        dscps[priority].add(dscp)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for priority in dscps:
        members[of.class_of_priority.get(priority, priority)].append(priority)
    queues = []
    for number, priorities in members.items():
        chosen = max(priorities, key=lambda priority: (priority in of.pfc, -priority))
        queues.append(
            MapLevel(
                dscp=class_dscp(dscps[chosen], chosen),
                traffic_class=number,
                priority=chosen,
                pfc=chosen in of.pfc,
                service=of.service_of_class.get(number, "unsaid"),
            )
        )
    queues.sort(key=lambda queue: (_ORDER.index(queue.service), -queue.traffic_class))
    classes = {dscp: of.class_of_priority.get(priority, priority) for dscp, priority in of.priority_of_dscp.items()}
    return queues, classes
