"""Widest, fewest-hop and quickest paths between sites, from one site to all others.

A graph is a list of neighbours for each site: (other site, bandwidth in bytes/s, latency in s). Links of bandwidth 0
are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

Neighbours = Sequence[Sequence[tuple[int, float, float]]]
Edge = tuple[int, int, float, float]
"""Two sites, bytes/s, s."""


class Groups:
    """Sets of sites that are merged (union by size, path halving)."""

    __slots__ = ("above", "size")

    def __init__(self, count: int) -> None:
        self.above = list(range(count))
        self.size = [1] * count

    def find(self, site: int) -> int:
        """The site that stands for the set of `site`."""
        above = self.above
        while above[site] != site:
            above[site] = above[above[site]]
            site = above[site]
        return site

    def merge(self, first: int, second: int) -> bool:
        """Whether they were in two sets, which are one now."""
        first, second = self.find(first), self.find(second)
        if first == second:
            return False
        if self.size[first] < self.size[second]:
            first, second = second, first
        self.above[second] = first
        self.size[first] += self.size[second]
        return True


def widest_forest(count: int, edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """The links of a forest in which every path is a widest one, widest link first; of equally wide links the quicker.

    A spanning forest of the most bandwidth (Kruskal): between two sites its one path has the bandwidth
    `beta(u -> v) = max over paths of min over links` of SpiderFlow's equation 1. Time: O(m log m).
    """
    groups = Groups(count)
    ordered = sorted(edges, key=lambda edge: (-edge[2], edge[3], edge[0], edge[1]))
    return tuple(edge for edge in ordered if groups.merge(edge[0], edge[1]))


def widest_from(forest: Neighbours, source: int) -> list[float]:
    """Bytes/s of the widest path from `source` to each site: infinite to itself, 0 where there is none. O(n)."""
    widths = [0.0] * len(forest)
    widths[source] = math.inf
    stack = [source]
    while stack:
        site = stack.pop()
        width = widths[site]
        for other, bandwidth, _ in forest[site]:
            if not widths[other]:
                widths[other] = min(width, bandwidth)
                stack.append(other)
    return widths


def hops_from(neighbours: Neighbours, source: int) -> tuple[tuple[int, ...], ...]:
    """The sites at 0, 1, 2 ... hops from `source` (breadth first). O(n + m)."""
    seen = [False] * len(neighbours)
    seen[source] = True
    layers, layer = [], [source]
    while layer:
        layers.append(tuple(layer))
        following = []
        for site in layer:
            for other, _, _ in neighbours[site]:
                if not seen[other]:
                    seen[other] = True
                    following.append(other)
        layer = following
    return tuple(layers)


def quickest_from(neighbours: Neighbours, source: int) -> list[float]:
    """Seconds of the path of least latency from `source` to each site; infinite where there is none (Dijkstra)."""
    seconds = [math.inf] * len(neighbours)
    nearer(neighbours, seconds, source)
    return seconds


def nearer(neighbours: Neighbours, far: list[float], source: int) -> None:
    """Lower `far`, the seconds from a set of sites to each site, to those with `source` in the set."""
    if not far[source]:
        return
    far[source] = 0.0
    heap = [(0.0, source)]
    while heap:
        passed, site = heappop(heap)
        if passed > far[site]:
            continue
        for other, _, latency_s in neighbours[site]:
            longer = passed + latency_s
            if longer < far[other]:
                far[other] = longer
                heappush(heap, (longer, other))


def spanning_s(neighbours: Neighbours, sites: Sequence[int]) -> float:
    """The least sum of latencies of a tree of quickest paths that spans `sites`; infinite if none does.

    Such a tree has, for each two sites that it joins, a path that stays near the two (Mehlhorn, 1988): so each site is
    reached from its nearest of `sites` once, and the links between two such regions are the tree's candidates. Time:
    O(m log m), however many `sites`.
    """
    far, owner = [math.inf] * len(neighbours), [-1] * len(neighbours)
    heap = [(0.0, site, site) for site in sites]
    while heap:
        passed, site, start = heappop(heap)
        if owner[site] >= 0:
            continue
        far[site], owner[site] = passed, start
        for other, _, latency_s in neighbours[site]:
            if owner[other] < 0:
                heappush(heap, (passed + latency_s, other, start))
    bridges = sorted(
        (far[site] + latency_s + far[other], owner[site], owner[other])
        for site, links in enumerate(neighbours)
        for other, _, latency_s in links
        if site < other and owner[site] != owner[other]
    )
    groups, total_s, left = Groups(len(neighbours)), 0.0, len(sites) - 1
    for length_s, first, second in bridges:
        if groups.merge(first, second):
            total_s += length_s
            left -= 1
    return math.inf if left else total_s


def joining_links(forest: Neighbours, sites: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the forest's links that lie between `sites`: those that their widest paths run over, in order of sites."""
    above: dict[int, int] = {}
    used: set[tuple[int, int]] = set()
    for start in sorted(sites):
        if start not in above:
            above[start] = start
            order = [start]
            for site in order:
                for other, _, _ in forest[site]:
                    if other not in above:
                        above[other] = site
                        order.append(other)
        site = start
        while site != above[site]:
            link = (min(site, above[site]), max(site, above[site]))
            if link in used:
                break
            used.add(link)
            site = above[site]
    return tuple(sorted(used))
