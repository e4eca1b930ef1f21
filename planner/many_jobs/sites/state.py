"""The state table: the free devices of every site by type, and the topology that joins the sites.

SpiderFlow's graph-structured state information table (section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.many_jobs.sites.records import Demand, Share
from planner.many_jobs.sites.topology import Topology, make_topology
from profiles.errors import InputError

if TYPE_CHECKING:
    from profiles.cluster import Cluster

Held = tuple[tuple[int, int, int], ...]
"""Devices taken: (site, type, count), sites and types by number."""


class SiteTable:
    """Sites by number with their free devices: `free[type][site]`, and `total[site]` over all types."""

    __slots__ = ("free", "topology", "total", "types")

    def __init__(self, topology: Topology, types: Sequence[str], free: Sequence[Sequence[int]]) -> None:
        if len(free) != len(types) or any(len(row) != len(topology) for row in free) or len(set(types)) != len(types):
            raise ValueError(f"state table: {len(free)} rows, expected {len(topology)} counts for each of {types}")
        if any(count < 0 for row in free for count in row):
            raise ValueError("state table: free devices below 0")
        self.topology = topology
        self.types = tuple(types)
        self.free = [list(map(int, row)) for row in free]
        self.total = [sum(column) for column in zip(*self.free, strict=True)] or [0] * len(topology)

    def number(self, name: str, *, key: str = "--local") -> int:
        """The number of the site called so; InputError names those that there are."""
        try:
            return self.topology.number[name]
        except KeyError:
            some_names = ", ".join(self.topology.names[:20])
            raise InputError(where="sites", key=key, found=repr(name), expected=f"one of {some_names}") from None

    def free_for(self, types: Sequence[str]) -> list[int]:
        """Free devices of these types (none: of all) of each site. Not to be changed."""
        if not types:
            return self.total
        rows = [self.free[self.types.index(name)] for name in types if name in self.types]
        if len(rows) == 1:
            return rows[0]
        return [sum(column) for column in zip(*rows, strict=True)] or [0] * len(self.topology)

    def split(self, shares: Sequence[tuple[int, int]], types: Sequence[str] = ()) -> Held:
        """So many devices of each site by type: of the type that the whole choice has most of first, so that as few
        types as may be are mixed; equal ones in the order of `types`. ValueError if a site has too few."""
        numbers = [self.types.index(name) for name in types or self.types if name in self.types]
        if len(numbers) > 1:
            usable = {n: sum(min(self.free[n][site], count) for site, count in shares) for n in numbers}
            numbers.sort(key=lambda n: -usable[n])
        held = []
        for site, count in shares:
            for number in numbers:
                taken = min(count, self.free[number][site])
                if taken:
                    held.append((site, number, taken))
                    count -= taken
            if count:
                name = self.topology.names[site]
                raise ValueError(f"{name}: {count} more devices than are free of {types or self.types}")
        return tuple(held)

    def shares(self, held: Held) -> tuple[Share, ...]:
        """Devices taken as records, in order of sites."""
        by_site: dict[int, list[tuple[str, int]]] = {}
        for site, number, count in sorted(held):
            by_site.setdefault(site, []).append((self.types[number], count))
        return tuple(Share(site=self.topology.names[site], devices=tuple(devices)) for site, devices in by_site.items())

    def with_topology(self, topology: Topology) -> SiteTable:
        """The same free devices under another topology of the same sites."""
        if topology.names != self.topology.names:
            raise ValueError("state table: another topology's sites have other names or another order")
        return SiteTable(topology, self.types, self.free)


def local_number(table: SiteTable, demand: Demand) -> int | None:
    """Return the local site's number; None if the demand names none. Raise InputError if there is no such site."""
    return None if demand.local is None else table.number(demand.local)


def table_of_cluster(cluster: Cluster) -> SiteTable:
    """Return the table of a cluster file: what is free, and the links between sites, as the file says."""
    names = [site.name for site in cluster.sites]
    number = {name: position for position, name in enumerate(names)}
    types = cluster.device_types
    free = [[0] * len(names) for _ in types]
    for position, site in enumerate(cluster.sites):
        for group in site.nodes:
            count = group.count * group.devices if group.free is None else group.free
            free[types.index(group.device.name)][position] += count
    links = [
        (number[link.between[0]], number[link.between[1]], link.bandwidth_bytes_per_s, link.latency_s)
        for link in cluster.site_links
    ]
    return SiteTable(make_topology(names, links), types, free)
