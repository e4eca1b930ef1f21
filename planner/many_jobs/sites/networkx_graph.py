"""The state table as a networkx graph and back, for whoever holds one. Nothing else here knows networkx."""

from __future__ import annotations

from typing import Any

from planner.many_jobs.sites.state import SiteTable, make_table
from profiles.errors import InputError


def to_networkx(table: SiteTable) -> Any:
    """A `networkx.Graph`: nodes by name with `free` (devices by type), edges with `bandwidth_bytes_per_s` (0: the link
    is down) and `latency_s`. InputError where networkx is not installed."""
    try:
        import networkx  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(where="sites", found="no networkx", expected="pip install 'cellplan[sites]'") from None

    topology = table.topology
    graph = networkx.Graph()
    for site, name in enumerate(topology.names):
        graph.add_node(name, free={kind: row[site] for kind, row in zip(table.types, table.free, strict=True)})
    figures = zip(topology.ends, topology.bandwidth_bytes_per_s, topology.latency_s, strict=True)
    for (first, second), bandwidth, latency in figures:
        graph.add_edge(
            topology.names[first],
            topology.names[second],
            bandwidth_bytes_per_s=float(bandwidth),
            latency_s=float(latency),
        )
    return graph


def from_networkx(graph: Any) -> SiteTable:
    """The table of an undirected graph with the attributes of `to_networkx`; `free` may be a number. InputError names
    the node or edge that lacks one."""
    if graph.is_directed() or graph.is_multigraph():
        raise InputError(where="graph", found=type(graph).__name__, expected="an undirected graph of simple edges")
    free, links = {}, {}
    for name, attributes in graph.nodes(data=True):
        if "free" not in attributes:
            raise InputError(where="graph", key=f"node {name}", found="no free", expected="its free devices")
        free[str(name)] = attributes["free"]
    for first, second, attributes in graph.edges(data=True):
        try:
            figures = float(attributes["bandwidth_bytes_per_s"]), float(attributes["latency_s"])
        except KeyError as error:
            key = f"edge {first}, {second}"
            raise InputError(where="graph", key=key, found=f"no {error.args[0]}", expected="both figures") from None
        links[str(first), str(second)] = figures
    return make_table(free, links)
