"""Reading the quality of service of a SONiC switch from its `config_db.json`.

Of the tables of SONiC's configuration manual (sonic-yang-models, Configuration.md) it reads PORT_QOS_MAP, which names
the maps of each port and the priorities that have flow control, DSCP_TO_TC_MAP, TC_TO_QUEUE_MAP,
MAP_PFC_PRIORITY_TO_QUEUE, and how QUEUE and SCHEDULER serve each queue. Names may stand as `AZURE` or, as older
releases have them, as `[DSCP_TO_TC_MAP|AZURE]`; keys of ports may be lists. A switch serves strict queues by number,
the highest first, then the others by weight.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from planner.contention.emitting.levels import MOST_LEVELS, FoundLevels, MapLevel, Service, class_dscp
from profiles.errors import InputError
from profiles.files import parse_json
from profiles.records import dataclass

GLOBAL, ALL = "global", "all ports"
EXPECTED = "SONiC's config_db.json, with DSCP_TO_TC_MAP and PORT_QOS_MAP"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binding:
    """The maps of a port by name ("" where it has none), its priorities with flow control, its queues' service."""

    dscp_to_tc: str
    tc_to_queue: str
    pfc_to_queue: str
    pfc: tuple[int, ...]
    services: tuple[tuple[int, Service], ...]


def read_sonic(text: str, *, where: str) -> FoundLevels:
    """Return what most ports of a switch have. Warned of are ports that differ.

    Raise InputError for what is no such file, a map that is named and not there, one DSCP twice (two keys `26`), and
    numbers that there are not.
    """
    tables = parse_json(text, where=where)
    if not isinstance(tables, dict) or "DSCP_TO_TC_MAP" not in tables:
        raise InputError(where=where, found="no DSCP_TO_TC_MAP", expected=EXPECTED)
    bindings = dict(_bindings(tables, where))
    chosen, _ = Counter(bindings.values()).most_common(1)[0]
    differing = [port for port, binding in bindings.items() if binding != chosen]
    warnings = []
    if differing:
        shown = ", ".join(differing[:4]) + (f" and {len(differing) - 4} more" if len(differing) > 4 else "")
        warnings.append(f"{where}: {shown} are set otherwise than most ports, which count")
    queues, classes, places = _queues(tables, chosen, where)
    ports = tuple(port for port, binding in bindings.items() if binding == chosen and port not in (ALL, GLOBAL))
    return FoundLevels(
        queues=tuple(queues),
        class_of_dscp=classes,
        warnings=tuple(warnings),
        lossless=chosen.pfc,
        queue_of_class=places,
        ports=ports,
    )


def _bindings(tables: Mapping[str, Any], where: str) -> Iterator[tuple[str, _Binding]]:
    """Each port with its maps. What a port does not name it has from the whole switch; where no port is bound, the only
    maps there are stand for all."""
    ports = _table(tables, "PORT_QOS_MAP", where)
    whole = dict(_entry(ports, GLOBAL, "PORT_QOS_MAP", where)) if GLOBAL in ports else {}
    services = _services(tables, where)
    for key in ports:
        if key == GLOBAL and len(ports) > 1:
            continue
        own = {**whole, **_entry(ports, key, "PORT_QOS_MAP", where)}
        for port in key.split(","):
            yield port, _binding(own, services.get(port, ()), f"PORT_QOS_MAP.{key}", where)
    if not ports:
        yield ALL, _binding({}, services.get("", ()), "PORT_QOS_MAP", where)


def _binding(own: Mapping[str, Any], services: tuple[tuple[int, Service], ...], key: str, where: str) -> _Binding:
    words = [word.strip() for word in str(own.get("pfc_enable", "")).split(",")]
    return _Binding(
        dscp_to_tc=_plain(own.get("dscp_to_tc_map", "")),
        tc_to_queue=_plain(own.get("tc_to_queue_map", "")),
        pfc_to_queue=_plain(own.get("pfc_to_queue_map", "")),
        pfc=tuple(_number(word, MOST_LEVELS - 1, where, f"{key}.pfc_enable") for word in words if word),
        services=services,
    )


def _services(tables: Mapping[str, Any], where: str) -> dict[str, tuple[tuple[int, Service], ...]]:
    """How each port's queues are served; keys are `Ethernet0|3`, `Ethernet0,Ethernet4|3-4`."""
    schedulers = _table(tables, "SCHEDULER", where)
    found: defaultdict[str, dict[int, Service]] = defaultdict(dict)
    queues = _table(tables, "QUEUE", where)
    for key in queues:
        ports, _, numbers = key.rpartition("|")
        name = _plain(_entry(queues, key, "QUEUE", where).get("scheduler", ""))
        if not name:
            continue
        if name not in schedulers:
            expected = "a scheduler of SCHEDULER"
            raise InputError(where=where, key=f"QUEUE.{key}.scheduler", found=name, expected=expected)
        kind = str(_entry(schedulers, name, "SCHEDULER", where).get("type", "")).upper()
        low, _, high = numbers.partition("-")
        first, last = (_number(word, 63, where, f"QUEUE.{key}") for word in (low, high or low))
        for port in ports.split(","):
            for queue in range(first, last + 1):
                found[port][queue] = "strict" if kind == "STRICT" else "weighted"
    return {port: tuple(sorted(of_port.items())) for port, of_port in found.items()}


def _queues(
    tables: Mapping[str, Any], binding: _Binding, where: str
) -> tuple[list[MapLevel], dict[int, int], dict[int, int]]:
    """The queues that DSCPs lead to, the most urgent first, the class of each DSCP, and the queue of each class."""
    class_of_dscp = _numbers(tables, "DSCP_TO_TC_MAP", binding.dscp_to_tc, where, most=63)
    same = {number: number for number in range(MOST_LEVELS)}
    queue_of_class = same
    if binding.tc_to_queue or "TC_TO_QUEUE_MAP" in tables:
        queue_of_class = _numbers(tables, "TC_TO_QUEUE_MAP", binding.tc_to_queue, where, most=MOST_LEVELS - 1)
    queue_of_pfc = same
    if binding.pfc_to_queue:
        table = "MAP_PFC_PRIORITY_TO_QUEUE" if "MAP_PFC_PRIORITY_TO_QUEUE" in tables else "PFC_PRIORITY_TO_QUEUE_MAP"
        queue_of_pfc = _numbers(tables, table, binding.pfc_to_queue, where, most=MOST_LEVELS - 1)
    lossless = {queue_of_pfc.get(priority, priority): priority for priority in binding.pfc}
    services = dict(binding.services)
    dscps: defaultdict[int, set[int]] = defaultdict(set)
    for dscp, number in class_of_dscp.items():
        dscps[number].add(dscp)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for number in dscps:
        members[queue_of_class.get(number, number)].append(number)
    queues = []
    for queue, classes in members.items():
        number = max(classes)
        queues.append(
            MapLevel(
                dscp=class_dscp(dscps[number], number),
                traffic_class=number,
                priority=lossless.get(queue, queue),
                pfc=queue in lossless,
                service=services.get(queue, "unsaid"),
            )
        )
    place = {level.traffic_class: queue_of_class.get(level.traffic_class, level.traffic_class) for level in queues}
    queues.sort(key=lambda level: (level.service == "weighted", -place[level.traffic_class]))
    of_queue = {queue: max(classes) for queue, classes in members.items()}
    classes_of = {dscp: of_queue[queue_of_class.get(number, number)] for dscp, number in class_of_dscp.items()}
    return queues, classes_of, place


def _numbers(tables: Mapping[str, Any], table: str, name: str, where: str, *, most: int) -> dict[int, int]:
    """A map of numbers, that of `name`, or the only one where none is named."""
    maps = _table(tables, table, where)
    if not name and len(maps) != 1:
        found = f"{len(maps)} maps, and no port that names one"
        raise InputError(where=where, key=table, found=found, expected="PORT_QOS_MAP to name the map of the ports")
    chosen = name or next(iter(maps))
    if chosen not in maps:
        expected = f"a map of {table}: {', '.join(maps) or 'there is none'}"
        raise InputError(where=where, key="PORT_QOS_MAP", found=chosen, expected=expected)
    own = _entry(maps, chosen, table, where)
    if not own:
        raise InputError(where=where, key=f"{table}.{chosen}", found="nothing", expected="a number for each number")
    found_numbers: dict[int, int] = {}
    for key, value in own.items():
        number = _number(key, most, where, f"{table}.{chosen}")
        if number in found_numbers:
            found = f"{number} twice"
            raise InputError(where=where, key=f"{table}.{chosen}", found=found, expected="each number once")
        found_numbers[number] = _number(value, MOST_LEVELS - 1, where, f"{table}.{chosen}.{key}")
    return found_numbers


def _table(tables: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    return _entry(tables, name, "", where) if name in tables else {}


def _entry(table: Mapping[str, Any], name: str, of: str, where: str) -> Mapping[str, Any]:
    own = table[name]
    if not isinstance(own, dict):
        key = f"{of}.{name}" if of else name
        raise InputError(where=where, key=key, found=repr(own)[:80], expected="an object, as config_db.json has it")
    return own


def _plain(name: object) -> str:
    """The name of a map, without the table before it that older releases write."""
    text = str(name)
    return text[1:-1].replace(":", "|").rpartition("|")[2] if text.startswith("[") and text.endswith("]") else text


def _number(word: object, most: int, where: str, key: str) -> int:
    text = str(word)
    if isinstance(word, bool) or not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= most):
        raise InputError(where=where, key=key, found=repr(word)[:80], expected=f"a number from 0 to {most}")
    return int(text)
