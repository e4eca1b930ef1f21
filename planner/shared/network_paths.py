"""The ways between two nodes of a cluster, for people and programs: `network paths`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from estimator.network.fabric import Fabric, fabric_of
from estimator.network.links import Links
from estimator.network.port_paths import PortPath, equal_way_count, port_paths
from estimator.network.routes import NoWayError
from profiles.cluster import Cluster
from profiles.errors import InputError, NothingFits
from profiles.numerals import read_whole
from profiles.records import replace
from profiles.routing import Routing
from profiles.routing_file import fold_ports, ports_text

MOST_SPRAYED = 1000
"""So many of the ways that every connection is sprayed over are listed."""


def describe_paths(
    cluster: Cluster,
    hosts: tuple[str, str],
    nics: tuple[int, int],
    ports: tuple[int, int],
    **asked: Any,
) -> dict[str, Any]:
    """Return what `network paths --json` says of the ways from a NIC of one node to a NIC of another, for connections
    from each of `ports`, first to last; `asked` are fields of the routing that are not the cluster's own.

    Raises:
        InputError: a node or a NIC that there is not, the same node twice. NothingFits: no way leads.
    """
    fabric = fabric_of(cluster)
    routing = replace(fabric.routing, **{name: value for name, value in asked.items() if value is not None})
    _check_kind(fabric.links, routing, cluster)
    source, destination = nic_numbers(cluster, fabric, hosts, nics)
    answer: dict[str, Any] = {
        "cluster": cluster.text,
        "between": list(hosts),
        "nics": list(nics),
        "routing": {"kind": routing.kind, "hash": routing.hash, "seed": routing.seed},
        "ports": ports_text([ports]),
        "equal": 0,
        "paths": [],
        "notes": list(cluster.notes),
    }
    try:
        paths = port_paths(fabric.links, routing, source, destination, range(ports[0], ports[1] + 1), most=MOST_SPRAYED)
        answer["equal"] = equal_way_count(fabric.links, routing, source, destination)
    except NoWayError as error:
        raise NothingFits(str(error), result=answer) from None
    answer["paths"] = [_describe_path(fabric.links, path) for path in paths]
    if routing.kind == "ecmp":
        answer["notes"].append(
            f"the hash is a guess: no vendor publishes its own. Here {routing.hash} with seed {routing.seed};"
            " `cellplan network probe` finds which port takes which way"
        )
    return answer


def nic_numbers(cluster: Cluster, fabric: Fabric, hosts: Sequence[str], nics: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of NICs of two nodes. Raise InputError for a node or a NIC that there is not, and for the same
    node twice."""
    where = f"cluster {cluster.text}"
    numbers = [_node(cluster, fabric, host) for host in hosts]
    if numbers[0] == numbers[1]:
        raise InputError(where=where, key="HOST", found=f"{hosts[0]} twice", expected="two nodes")
    begins = fabric.links.nic_begins
    for node, nic in zip(numbers, nics, strict=True):
        have = int(begins[node + 1] - begins[node])
        if nic >= have:
            name = fabric.links.names[node]
            expected = f"one of its {have}, from 0" if have else "a node with NICs"
            raise InputError(where=where, key="--nics", found=f"NIC {nic} of {name}", expected=expected)
    return int(begins[numbers[0]]) + nics[0], int(begins[numbers[1]]) + nics[1]


def _node(cluster: Cluster, fabric: Fabric, host: str) -> int:
    """The number of a node that is named, or numbered through all sites."""
    names = fabric.links.names[: fabric.links.nodes]
    if names.count(host) == 1:
        return names.index(host)
    found = f"{host}, of which there are {names.count(host)}" if host in names else repr(host)
    try:
        number = read_whole(host)
    except ValueError:
        number = len(names)
    if host in names or number >= len(names):
        expected = f"one of the cluster's {len(names)} nodes, by name, or by number from 0"
        raise InputError(where=f"cluster {cluster.text}", key="HOST", found=found, expected=expected)
    return number


def _check_kind(links: Links, routing: Routing, cluster: Cluster) -> None:
    if bool(links.dimensions) != (routing.kind == "dimension-order"):
        expected = "dimension-order in a torus" if links.dimensions else "ecmp, spray or infiniband: it has switches"
        raise InputError(where=f"cluster {cluster.text}", key="--routing", found=routing.kind, expected=expected)


def _describe_path(links: Links, path: PortPath) -> dict[str, Any]:
    rate = min(float(links.bytes_per_s[link]) for link in path.way)
    return {
        "through": [links.names[links.ends[link, 1]] for link in path.way[:-1]],
        "links": [links.name(link) for link in path.way],
        "bytes_per_s": rate,
        "ports": ports_text(fold_ports(path.ports)),
        "port_count": len(path.ports),
        "share": path.share,
        "known": path.known,
    }
