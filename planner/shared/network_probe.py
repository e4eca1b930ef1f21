"""Which UDP source ports take which way on a real network: `network probe`, and the cluster file that knows it."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from estimator.network.fabric import Fabric, fabric_of, routing_of
from estimator.network.port_paths import switch_ways
from estimator.network.probing.collecting import Collected, collect, expected_ports, likely_ports
from estimator.network.probing.hops import Trace
from estimator.network.probing.reports import read_traces
from estimator.network.probing.sockets import Probing, resolve, trace
from estimator.network.routes import NoWayError
from planner.shared.network_paths import nic_numbers
from profiles.cluster import Cluster, Site
from profiles.errors import InputError, MachineError, NothingFits
from profiles.files import read_text
from profiles.limits import LIMITS
from profiles.numerals import read_whole
from profiles.records import dataclass, replace
from profiles.routing import KnownPath, Routing
from profiles.routing_file import fold_ports, ports_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """Between which NICs of which hosts, and what is to be known of it."""

    hosts: tuple[str, str]
    nics: tuple[int, int]
    confidence: float


def own_host() -> str:
    """Return what this machine is called, without its domain."""
    return socket.gethostname().partition(".")[0]


def own_node(cluster: Cluster) -> str:
    """Return the node of the cluster that this machine is, by its name. Raise InputError where it is none."""
    own = own_host()
    if not any(own in site.network.hosts for site in cluster.sites):
        found = f"none, and this machine is called {own}, as no node of {cluster.text} is"
        raise InputError(where="network probe", key="--source", found=found, expected="the node that packets come from")
    return own


def destination_address(cluster: Cluster, host: str) -> str:
    """Return the address that packets to a host go to: the one that the cluster file has, else the name's."""
    return next((address for address, name in routing_of(cluster).addresses if name == host), None) or resolve(host)


def scattered_ports(first: int, last: int, most: int) -> list[int]:
    """Return ports from `first` to `last`, each once, `most` of them at most: neighbours far apart, as a hash or a rule
    may send whole blocks of ports one way.

    >>> scattered_ports(50000, 50009, 5)
    [50000, 50007, 50004, 50001, 50008]
    """
    count = last - first + 1
    stride = next(step for step in range(round(0.618 * count) or 1, 2 * count + 2) if gcd(step, count) == 1)
    return [first + turn * stride % count for turn in range(min(most, count))]


def sent_traces(probing: Probing, ports: Iterable[int]) -> Iterator[Trace]:
    """Yield the trace of each port that no other program has. Raise MachineError where ten traces in a row find
    nobody."""
    silent = 0
    for port in ports:
        found = trace(probing, port)
        if found is None:
            continue
        silent = 0 if found.arrived or found.hops else silent + 1
        if silent == 10:
            raise MachineError(
                f"network probe: nobody on the way to {probing.address} answers: ICMP is filtered, or no switch counts"
                " the time to live (layer 2)"
            )
        yield found


def read_reports(reports: Sequence[str]) -> list[Trace]:
    """Return the traces in files of other tools: FILE, or PORT=FILE. Raise InputError for what is none, and for a port
    that comes twice."""
    traces: list[Trace] = []
    for report in reports:
        number, _, file = report.partition("=")
        port = _port(number) if file else None
        text = read_text(Path(file or report), limit=LIMITS.text_bytes)
        traces += read_traces(text, file or report, port)
    taken: set[int] = set()
    for each in traces:
        if each.port in taken:
            raise InputError(where="network probe", key="--read", found=f"port {each.port} twice", expected="each once")
        taken.add(each.port)
    return traces


def _port(text: str) -> int:
    try:
        port = read_whole(text)
    except ValueError:
        port = 0
    if not 1 <= port <= 65535:
        raise InputError(where="network probe", key="--read", found=repr(text), expected="PORT=FILE, or FILE")
    return port


def probe(
    cluster: Cluster, request: ProbeRequest, traces: Iterable[Trace], *, read: bool
) -> tuple[dict[str, Any], Cluster]:
    """Return what `network probe --json` says, and the cluster with the ways that were found.

    Raises:
        InputError: hosts that there are not, or of two sites; hops that are not the cluster's.
        NothingFits: the cluster file has no way between the hosts.
    """
    fabric = fabric_of(cluster)
    source, destination = nic_numbers(cluster, fabric, request.hosts, request.nics)
    site = _site_of(cluster, fabric, (source, destination))
    nodes = (int(fabric.links.node_of_nic[nic]) for nic in (source, destination))
    first, second = _inside_site((fabric.links.names[node] for node in nodes), site)
    if fabric.links.dimensions:
        found, expected = "a torus", "switches, which choose by ports"
        raise InputError(where=f"cluster {cluster.text}", key="fabric.topology", found=found, expected=expected)
    try:
        ways = switch_ways(fabric.links, source, destination)
    except NoWayError as error:
        raise NothingFits(str(error)) from None
    collected = collect(
        traces, ways, hop_names(cluster, site, fabric), confidence=request.confidence, until_all_seen=not read
    )
    paths = tuple(
        KnownPath(
            source=first,
            destination=second,
            source_nic=request.nics[0],
            destination_nic=request.nics[1],
            ports=fold_ports(ports),
            through=_inside_site(through, site),
        )
        for through, ports in collected.ports.items()
    )
    answer = {
        "cluster": cluster.text,
        "between": [first, second],
        "nics": list(request.nics),
        "traces": "read" if read else "sent",
        "asked": collected.asked,
        "equal": len(ways),
        "seen": len(collected.ports),
        "stopped": collected.stopped,
        "expected_ports": expected_ports(ways.values()),
        "likely_ports": likely_ports(ways.values(), request.confidence),
        "confidence": request.confidence,
        "paths": [
            {"through": list(path.through), "ports": ports_text(path.ports), "port_count": len(own)}
            for path, own in zip(paths, collected.ports.values(), strict=True)
        ],
        "unseen": [list(_inside_site(way, site)) for way in collected.unseen],
        "unclear": [
            {"port": each.port, "hops": [hop[0] if hop else None for hop in each.hops]} for each in collected.unclear
        ],
        "notes": _notes(collected),
    }
    return answer, with_paths(cluster, site, paths)


def _inside_site(names: Iterable[str], site: Site) -> tuple[str, ...]:
    """Names as the site itself has them."""
    return tuple(name.removeprefix(f"{site.name}/") for name in names)


def _notes(collected: Collected) -> list[str]:
    notes = []
    if collected.unclear:
        which = f"{len(collected.unclear)} of {collected.asked} traces"
        notes.append(f"{which} fit several ways, as switches on them did not answer: they are left out")
    if collected.stopped == "nothing new" and collected.unseen:
        notes.append("ways that no port was seen to take may be down, or the hash may not spread over them")
    return notes


def _site_of(cluster: Cluster, fabric: Fabric, nics: tuple[int, int]) -> Site:
    """The site of both nodes."""
    by_node = [site for site in cluster.sites for group in site.nodes for _ in range(group.count)]
    first, second = (by_node[int(fabric.links.node_of_nic[nic])] for nic in nics)
    if first is not second:
        found = f"nodes of {first.name} and {second.name}"
        raise InputError(where=f"cluster {cluster.text}", key="HOST", found=found, expected="two nodes of one site")
    return first


def hop_names(cluster: Cluster, site: Site, fabric: Fabric) -> dict[str, str]:
    """Return the names of the switches by what hops may be called on a way through a site: these names, with or without
    the site's, and addresses in the cluster file."""
    links = fabric.links
    switches = [links.names[number] for number in np.flatnonzero(links.tier_of > 0)]
    names = {name: name for name in switches}
    if len(cluster.sites) > 1:
        names |= {name.removeprefix(f"{site.name}/"): name for name in switches if name.startswith(f"{site.name}/")}
    return names | {address: name for address, name in fabric.routing.addresses if name in names}


def with_paths(cluster: Cluster, site: Site, paths: Sequence[KnownPath]) -> Cluster:
    """Return the cluster that knows these ways of a site, in place of those that it knew between the same NICs."""
    if not paths:
        return cluster
    routing = site.network.routing or Routing()

    def ends(path: KnownPath) -> tuple[str, int, str, int]:
        return path.source, path.source_nic, path.destination, path.destination_nic

    renewed = {ends(path) for path in paths}
    kept = tuple(path for path in routing.paths if ends(path) not in renewed)
    network = replace(site.network, routing=replace(routing, paths=(*kept, *paths)))
    sites = tuple(replace(each, network=network) if each is site else each for each in cluster.sites)
    return replace(cluster, sites=sites)
