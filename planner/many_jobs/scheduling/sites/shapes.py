"""Allocations that are alike but for their sites' names: each is priced once, on a small cluster that stands for all.

A job's devices sit on as few nodes of a pool as hold them, near each other as the buddy rule has it, under the tree
that the site has above these: which of the nodes that are alike in it a job gets changes nothing, as for Cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from planner.many_jobs.scheduling.cell_book import pool_name
from planner.many_jobs.sites.near_nodes import TreeShape, near_slots, network_of, tree_of_nodes
from profiles.cluster import Cluster, DeviceSlot, NodeGroup, Site, SiteLink
from profiles.records import dataclass

SiteShape = tuple[int, tuple[tuple[int, int], ...], TreeShape]
"""Kind of site, for each of its groups of nodes that gives devices its kind and how many, and the tree above them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sites with devices, most first, and the links that join them: (site, site, bytes/s, s), by place in `sites`."""

    sites: tuple[SiteShape, ...]
    links: tuple[tuple[int, int, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A shape, and which site of the cluster each of its sites is."""

    shape: Shape
    names: tuple[str, ...]


class Shapes:
    """The shapes of one cluster's allocations, each kept once it was asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._pools: dict[str, tuple[Site, NodeGroup]] = {}
        self._kinds: dict[object, int] = {}
        self._groups: dict[int, NodeGroup] = {}
        self._sites: dict[int, Site] = {}
        self._links = {frozenset(link.between): link for link in cluster.site_links}
        self._clusters: dict[Shape, Cluster] = {}
        self._allocations: dict[tuple[tuple[str, int], ...], Allocation] = {}
        self._nodes: dict[tuple[str, int], tuple[int, ...]] = {}
        self._free: dict[str, list[DeviceSlot]] = {}
        by_group: dict[tuple[str, int], list[DeviceSlot]] = {}
        for slot in cluster.free_slots:
            by_group.setdefault((slot.site, slot.group), []).append(slot)
        for site in self.cluster.sites:
            for number, group in enumerate(site.nodes):
                name = pool_name(self.cluster, site, number)
                self._pools[name] = (site, group)
                self._free[name] = by_group.get((site.name, number), [])
        # Kinds are numbered by what they are, not in the order of asking or of sites: equal shapes get equal prices.
        groups = {replace(group, count=1, free=None): group for _, group in self._pools.values()}
        for group in sorted(groups, key=repr):
            self._groups[self._kind(group, "group")] = groups[group]
        fabrics = {site.fabric_link: site for site, _ in self._pools.values()}
        for fabric in sorted(fabrics, key=repr):
            self._sites[self._kind(fabric, "site")] = fabrics[fabric]

    def of(self, parts: Sequence[tuple[str, int]]) -> Allocation:
        """The shape of so many devices of these pools; KeyError for a pool that there is not."""
        key = tuple(parts)
        if key not in self._allocations:
            self._allocations[key] = self._allocation(key)
        return self._allocations[key]

    def _allocation(self, parts: Sequence[tuple[str, int]]) -> Allocation:
        by_site: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {}
        for pool, count in parts:
            site, group = self._pools[pool]
            kind = self._kind(replace(group, count=1, free=None), "group")
            by_site.setdefault(site.name, []).append((kind, count, self._near(pool, count)))
        kept = {name: self._site_shape(name, groups) for name, groups in by_site.items()}
        joined = {name: self._joined(name, kept) for name in kept}

        def order(name: str) -> tuple[object, ...]:
            devices = sum(count for _, count in kept[name][1])
            return -devices, kept[name], joined[name]

        names = tuple(sorted(kept, key=order))
        links = []
        for first, second in combinations(range(len(names)), 2):
            link = self._links.get(frozenset((names[first], names[second])))
            if link is not None:
                links.append((first, second, link.bandwidth_bytes_per_s, link.latency_s))
        shape = Shape(sites=tuple(kept[name] for name in names), links=tuple(links))
        return Allocation(shape=shape, names=names)

    def cluster_of(self, shape: Shape) -> Cluster:
        """The small cluster: all of its devices are the allocation's."""
        if shape not in self._clusters:
            sites = tuple(self._small_site(number, site) for number, site in enumerate(shape.sites))
            text = "+".join("/".join(str(count) for _, count in groups) for _, groups, _ in shape.sites)
            self._clusters[shape] = Cluster(text=f"sites of {text}", sites=sites, site_links=links_of(shape))
        return self._clusters[shape]

    def _small_site(self, number: int, shape: SiteShape) -> Site:
        kind, groups, tree = shape
        nodes = []
        for group_kind, count in groups:
            group = self._groups[group_kind]
            nodes.append(replace(group, count=math.ceil(count / group.devices), free=count))
        return replace(self._sites[kind], name=f"s{number}", nodes=tuple(nodes), network=network_of(tree))

    def _near(self, pool: str, count: int) -> tuple[int, ...]:
        """The nodes that so many devices of a pool are on, part by part of the site's tree."""
        site, group = self._pools[pool]
        if (pool, count) not in self._nodes:
            whole = math.ceil(count / group.devices) * group.devices
            chosen = near_slots(site, self._free[pool], whole)
            self._nodes[pool, count] = tuple(dict.fromkeys(slot.node for slot in chosen))
        return self._nodes[pool, count]

    def _site_shape(self, name: str, groups: Sequence[tuple[int, int, tuple[int, ...]]]) -> SiteShape:
        site = next(site for site, _ in self._pools.values() if site.name == name)
        in_order = sorted(groups)
        tree = tree_of_nodes(site, [node for _, _, nodes in in_order for node in nodes])
        return self._kind(site.fabric_link, "site"), tuple((kind, count) for kind, count, _ in in_order), tree

    def _joined(self, name: str, kept: dict[str, SiteShape]) -> tuple[tuple[float, float, SiteShape], ...]:
        """The site's links to the others, widest first."""
        joined = []
        for other, shape in kept.items():
            link = self._links.get(frozenset((name, other))) if other != name else None
            if link is not None:
                joined.append((-link.bandwidth_bytes_per_s, link.latency_s, shape))
        return tuple(sorted(joined))

    def _kind(self, what: object, of: str) -> int:
        return self._kinds.setdefault((of, what), len(self._kinds))


def links_of(shape: Shape, users: Sequence[int] = ()) -> tuple[SiteLink, ...]:
    """Return the links of a small cluster, each divided by how many use it (none given: one)."""
    shares = users or (1,) * len(shape.links)
    return tuple(
        SiteLink(between=(f"s{first}", f"s{second}"), bandwidth_bytes_per_s=width / count, latency_s=latency_s)
        for (first, second, width, latency_s), count in zip(shape.links, shares, strict=True)
    )
