"""The output of `ibnetdiscover`: every switch and every host adapter of an InfiniBand subnet with its cables."""

from __future__ import annotations

import re
from collections import Counter

from profiles.errors import InputError
from profiles.host_lists import HOST_NAMES, is_host_name
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.topology_tree import HostTree
from profiles.wiring import Cables, Switch, Wired

LANE_BITS_PER_S = {
    "SDR": 2.0e9, "DDR": 4.0e9, "QDR": 8.0e9, "FDR10": 10.0e9, "FDR": 13.64e9, "EDR": 25.0e9, "HDR": 50.0e9,
    "NDR": 100.0e9, "XDR": 200.0e9,
}  # fmt: skip
"""What a lane of each speed carries, one direction, without its line code (InfiniBand Architecture Specification)."""

_BLOCK = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([^"]+)"\s*#\s*"([^"]*)"')
_CABLE = re.compile(r'\[(\d+)\](?:\([0-9a-fA-F]+\))?\s+"([^"]+)"\[(\d+)\].*?(?:\s(\d+)x([A-Z0-9]+))?\s*$')
_IGNORED = ("vendid=", "devid=", "sysimgguid=", "switchguid=", "caguid=", "rtguid=", "#")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Port:
    """One end of a cable as one block has it: whose, which port, to whom, which port there, bytes/s; and its line."""

    guid: str
    port: int
    peer: str
    peer_port: int
    bytes_per_s: float
    line: int


def is_ibnetdiscover(text: str) -> bool:
    """Return whether a text begins as the output of ibnetdiscover does."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    first = next(lines, "")
    return first.startswith(_IGNORED[:3]) or _BLOCK.match(first) is not None


def read_ibnetdiscover(text: str, where: str) -> HostTree:
    """Return the hosts of an InfiniBand subnet, in the file's order, with its switches and cables.

    A host is all adapters whose description begins with its name ("gpu01 HCA-1", "gpu01 mlx5_0"); an adapter without
    cables is left out. Raise InputError with the line of what is no such output, of a cable that one end has and the
    other has not (the output is cut short), and of ends that do not agree.
    """
    names: dict[str, tuple[str, str, int]] = {}
    ports: list[_Port] = []
    guid = ""
    for number, line in enumerate(text.splitlines(), start=1):
        at = f"{where}, line {number}"
        block, cable = _BLOCK.match(line), _CABLE.match(line)
        if block is not None:
            kind, guid = block[1], block[3]
            if guid in names:
                raise InputError(where=at, key=guid, found="it a second time", expected="each switch and adapter once")
            names[guid] = (kind, block[4], int(block[2]))
        elif cable is not None and guid:
            ports.append(_read_port(guid, cable, number, at))
            LIMITS.cables_by_name.check(len(ports) // 2, where=at, key="cables")
        elif line.strip() and not line.startswith(_IGNORED):
            expected = 'the output of ibnetdiscover: Switch, Ca, and [PORT] "PEER"[PORT] lines'
            raise InputError(where=at, found=repr(line[:60]), expected=expected)
    _check_ends(ports, names, where)
    return _tree(ports, names, where)


def _read_port(guid: str, cable: re.Match[str], number: int, at: str) -> _Port:
    width, speed = cable[4], cable[5]
    if speed not in LANE_BITS_PER_S:
        found = f"{width}x{speed}" if speed else "no speed"
        raise InputError(where=at, key="speed", found=found, expected=f"4x and one of {', '.join(LANE_BITS_PER_S)}")
    return _Port(
        guid=guid,
        port=int(cable[1]),
        peer=cable[2],
        peer_port=int(cable[3]),
        bytes_per_s=int(width) * LANE_BITS_PER_S[speed] / 8,
        line=number,
    )


def _check_ends(ports: list[_Port], names: dict[str, tuple[str, str, int]], where: str) -> None:
    """Raise InputError unless both ends of every cable are there and agree."""
    at = {(port.guid, port.port): port for port in ports}
    for port in ports:
        line = f"{where}, line {port.line}"
        if port.peer not in names:
            raise InputError(where=line, key=port.peer, found="nothing more of it", expected="all of it: cut short?")
        other = at.get((port.peer, port.peer_port))
        if other is None or (other.peer, other.peer_port) != (port.guid, port.port):
            found = "no such cable at its other end" if other is None else f"another cable there (line {other.line})"
            raise InputError(
                where=line, key=f"{port.peer}[{port.peer_port}]", found=found, expected="one cable, two ends"
            )
        if other.bytes_per_s != port.bytes_per_s:
            found = f"another speed at its other end (line {other.line})"
            raise InputError(where=line, key="speed", found=found, expected="one for both ends")


def _tree(ports: list[_Port], names: dict[str, tuple[str, str, int]], where: str) -> HostTree:
    hosts: dict[str, int] = {}
    end: dict[str, tuple[bool, int]] = {}
    switches: list[Switch] = []
    cabled = {port.guid for port in ports}
    for guid, (kind, description, most) in names.items():
        if kind == "Switch":
            end[guid] = (True, len(switches))
            switches.append(Switch(name=guid, ports=most))
        elif guid in cabled:
            words = description.split()
            host = words[0].removesuffix(":") if words else ""
            if not is_host_name(host):
                raise InputError(where=where, key=guid, found=repr(description)[:60], expected=HOST_NAMES)
            end[guid] = (False, hosts.setdefault(host, len(hosts)))
    if not hosts or not switches:
        found = f"{len(switches)} switches and {len(hosts)} hosts"
        raise InputError(where=where, found=found, expected="one or more of each")
    LIMITS.nodes.check(len(hosts), where=where)

    def vertex(guid: str) -> int:
        is_switch, number = end[guid]
        return len(hosts) + number if is_switch else number

    counts = Counter(
        (vertex(port.guid), vertex(port.peer), port.bytes_per_s)
        for port in ports
        if vertex(port.guid) < vertex(port.peer)
    )
    between = next(((low, high) for low, high, _ in counts if high < len(hosts)), None)
    if between is not None:
        both = " and ".join(list(hosts)[at] for at in between)
        raise InputError(where=where, found=f"a cable between hosts {both}", expected="a switch at one end")
    called = _called(names)
    wiring = Wired(
        nodes=len(hosts),
        switches=tuple(Switch(name=called[each.name], ports=each.ports) for each in switches),
        cables=tuple(
            Cables(ends=(low, high), count=count, bytes_per_s=rate) for (low, high, rate), count in counts.items()
        ),
    )
    return HostTree(levels=(), places=dict.fromkeys(hosts, ()), where=where, wiring=wiring)


def _called(names: dict[str, tuple[str, str, int]]) -> dict[str, str]:
    """What switches are called: the name in their description (`MF0;leaf-1:MQM9700/U1`), where each has its own."""
    short = {
        guid: re.sub(r"^[^;]*;", "", description).split(":")[0].strip() or guid
        for guid, (kind, description, _) in names.items()
        if kind == "Switch"
    }
    times = Counter(short.values())
    return {
        guid: name if times[name] == 1 and name.isprintable() and len(name) <= 253 else guid
        for guid, name in short.items()
    }
