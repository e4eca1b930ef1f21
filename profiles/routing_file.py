"""How a fabric chooses among ways, as the cluster file has it (`fabric.routing`), and back into that form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError
from profiles.limits import LIMITS
from profiles.network import Network
from profiles.routing import KnownPath, Routing
from profiles.wiring import Clos, Torus, Wired

if TYPE_CHECKING:
    from profiles.cluster_schema import KnownPathModel, RoutingModel

KEY = "fabric.routing"


def read_routing(written: RoutingModel, network: Network, nics: Sequence[int], where: str) -> Routing:
    """Return how the fabric of a site routes, whose nodes have so many NICs each. Raise InputError naming `where` and
    the site's key for a host or a switch that the site has not, and a kind that its shape cannot have."""
    torus = isinstance(network.wiring, Torus)
    if written.kind is not None and torus != (written.kind == "dimension-order"):
        expected = "dimension-order" if torus else "ecmp, spray or infiniband: it has switches"
        raise InputError(where=where, key=f"{KEY}.kind", found=written.kind, expected=expected)
    hosts = {name: number for number, name in enumerate(host_names(network, len(nics)))}
    switches = set(switch_names(network))
    paths = []
    LIMITS.cables_by_name.check(len(written.paths), where=where, key=f"{KEY}.paths")
    for number, path in enumerate(written.paths):
        reader = _PathReader(where=where, key=f"{KEY}.paths[{number}]", hosts=hosts, switches=switches, nics=nics)
        paths.append(reader.path(path))
    _check_once(paths, where)
    for address, name in written.addresses.items():
        if not _is_address(address):
            expected = "an IPv4 or IPv6 address, such as 10.0.1.2"
            raise InputError(where=where, key=f"{KEY}.addresses", found=repr(address), expected=expected)
        if name not in hosts and name not in switches:
            expected = "a node or a switch of the site"
            raise InputError(where=where, key=f"{KEY}.addresses.{address}", found=repr(name), expected=expected)
    return Routing(
        kind=written.kind,
        hash=written.hash,
        seed=written.seed,
        paths=tuple(paths),
        addresses=tuple(written.addresses.items()),
    )


def _check_once(paths: Sequence[KnownPath], where: str) -> None:
    """Raise InputError for a port that is said to lead two ways between the same NICs."""
    said: dict[tuple[str, int, str, int], list[tuple[int, int, int]]] = {}
    for number, path in enumerate(paths):
        ends = (path.source, path.source_nic, path.destination, path.destination_nic)
        said.setdefault(ends, []).extend((first, last, number) for first, last in path.ports)
    for (source, _, destination, _), ranges in said.items():
        reached, by = 0, 0
        for first, last, number in sorted(ranges):
            if first <= reached and paths[number].through != paths[by].through:
                later, before = max(number, by), min(number, by)
                found = f"port {first} from {source} to {destination}, which paths[{before}] has too"
                raise InputError(
                    where=where, key=f"{KEY}.paths[{later}].ports", found=found, expected="one way of a port"
                )
            if last > reached:
                reached, by = last, number


def _is_address(text: str) -> bool:
    from ipaddress import ip_address

    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class _PathReader:
    """Reads one way that is known."""

    def __init__(self, *, where: str, key: str, hosts: dict[str, int], switches: set[str], nics: Sequence[int]) -> None:
        self._where, self._key, self._hosts, self._switches, self._nics = where, key, hosts, switches, nics

    def path(self, written: KnownPathModel) -> KnownPath:
        numbers = written.nics or [0, 0]
        for key, host, nic in (("from", written.source, numbers[0]), ("to", written.destination, numbers[1])):
            if host not in self._hosts:
                raise self._wrong(key, repr(host), f"one of the site's {len(self._hosts)} nodes")
            if nic >= self._nics[self._hosts[host]]:
                raise self._wrong("nics", f"NIC {nic} of {host}", f"one of its {self._nics[self._hosts[host]]}")
        for name in written.through:
            if name not in self._switches:
                raise self._wrong("through", repr(name), f"one of the site's {len(self._switches)} switches")
        if written.source == written.destination:
            raise self._wrong("to", f"{written.source} again", "another node")
        return KnownPath(
            source=written.source,
            destination=written.destination,
            source_nic=numbers[0],
            destination_nic=numbers[1],
            ports=self._ports(written.ports),
            through=tuple(written.through),
        )

    def _ports(self, written: str | list[int]) -> tuple[tuple[int, int], ...]:
        text = written if isinstance(written, str) else ",".join(map(str, written))
        ranges = []
        for piece in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", piece, re.ASCII)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
            if not 1 <= first <= last <= 65535:
                raise self._wrong("ports", repr(piece), "UDP ports from 1 to 65535 such as 49152-49160,49170")
            ranges.append((first, last))
        return tuple(ranges)

    def _wrong(self, key: str, found: object, expected: str) -> InputError:
        return InputError(where=self._where, key=f"{self._key}.{key}", found=found, expected=expected)


def host_names(network: Network, nodes: int) -> tuple[str, ...]:
    """Return what the nodes of a site are called: their names, or node0, node1, ..."""
    return network.hosts or tuple(f"node{number}" for number in range(nodes))


def switch_names(network: Network) -> tuple[str, ...]:
    """Return what the switches of a site are called; of a fabric that is told by levels, its parts."""
    wiring = network.wiring
    if isinstance(wiring, Clos):
        return tuple(f"{tier}{number}" for tier, count in wiring.switches for number in range(count))
    if isinstance(wiring, Wired):
        return tuple(switch.name for switch in wiring.switches)
    if isinstance(wiring, Torus):
        return ()
    return (*(part.name for level in network.levels for part in level.parts), "above")


def fold_ports(ports: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges, first and last, that these ports fill.

    >>> fold_ports([5, 1, 2, 3])
    ((1, 3), (5, 5))
    """
    ranges: list[tuple[int, int]] = []
    for port in sorted(set(ports)):
        if ranges and ranges[-1][1] == port - 1:
            ranges[-1] = (ranges[-1][0], port)
        else:
            ranges.append((port, port))
    return tuple(ranges)


def ports_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Return ranges of ports as the cluster file has them.

    >>> ports_text(((1, 3), (5, 5)))
    '1-3,5'
    """
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def describe_routing(routing: Routing) -> dict[str, Any]:
    """Return the `routing` of a fabric that means `routing`."""
    described: dict[str, Any] = {"kind": routing.kind} if routing.kind else {}
    described |= {"hash": routing.hash, "seed": routing.seed}
    if routing.addresses:
        described["addresses"] = dict(routing.addresses)
    if routing.paths:
        described["paths"] = [
            {
                "from": path.source,
                "to": path.destination,
                "nics": [path.source_nic, path.destination_nic],
                "ports": ports_text(path.ports),
                "through": list(path.through),
            }
            for path in routing.paths
        ]
    return described
