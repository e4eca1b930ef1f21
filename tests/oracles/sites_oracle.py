"""Brute force for `planner.many_jobs.sites`: paths by Floyd and Warshall, sets of sites one by one, SpinSearch as
written, and what devices a request could get."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from planner.many_jobs.sites.block_tree import Tree
from planner.many_jobs.sites.topology import Topology

Matrix = list[list[float]]


def all_paths(topology: Topology) -> tuple[Matrix, Matrix, Matrix]:
    """Bandwidth of widest, latency of quickest and hops of shortest paths."""
    count = range(len(topology))
    wide = [[math.inf if a == b else 0.0 for b in count] for a in count]
    far = [[0.0 if a == b else math.inf for b in count] for a in count]
    hops = [[0.0 if a == b else math.inf for b in count] for a in count]
    rows = zip(topology.ends.tolist(), topology.bandwidth_bytes_per_s, topology.latency_s, strict=True)
    for (a, b), bandwidth, latency in rows:
        if bandwidth > 0:
            wide[a][b] = wide[b][a] = float(bandwidth)
            far[a][b] = far[b][a] = float(latency)
            hops[a][b] = hops[b][a] = 1.0
    for over in count:
        for a in count:
            for b in count:
                wide[a][b] = max(wide[a][b], min(wide[a][over], wide[over][b]))
                far[a][b] = min(far[a][b], far[a][over] + far[over][b])
                hops[a][b] = min(hops[a][b], hops[a][over] + hops[over][b])
    return wide, far, hops


def tree(far: Matrix, sites: Sequence[int]) -> float:
    """Kruskal over all pairs."""
    group = {site: site for site in sites}
    found, joined = 0.0, 1
    for length, a, b in sorted((far[a][b], a, b) for a, b in combinations(sorted(group), 2)):
        if group[a] != group[b]:
            found, joined, old = found + length, joined + 1, group[b]
            group = {site: group[a] if own == old else own for site, own in group.items()}
    return found


def best_key(
    paths: tuple[Matrix, Matrix, Matrix], free: Sequence[int], wanted: int, local: int | None
) -> tuple[int, float, float] | None:
    """Fewest sites, minus their bandwidth, distance: the least over all sets of sites."""
    wide, far, _ = paths
    able = [s for s in range(len(free)) if free[s] and (local is None or wide[local][s] > 0)]
    for size in range(1, len(able) + 1):
        keys = []
        for sites in combinations(able, size):
            width = min((wide[a][b] for a, b in combinations(sites, 2)), default=math.inf)
            if sum(free[site] for site in sites) >= wanted and width > 0:
                keys.append((size, -width, tree(far, sites if local is None else (*sites, local))))
        if keys:
            return min(keys)
    return None


def expand_by_radius(
    paths: tuple[Matrix, Matrix, Matrix],
    free: Sequence[int],
    wanted: int,
    anchor: int,
    scores: Sequence[float],
    without: int | None = None,
) -> list[tuple[int, int]] | None:
    """Equations 6 and 7 as written: radius by radius, each time sorted and filled anew."""
    wide, _, hops = paths
    diameter = max(length for row in hops for length in row if length < math.inf)
    for radius in range(int(diameter) + 1):
        near = [site for site in range(len(free)) if hops[anchor][site] <= radius and site != without]
        near.sort(key=lambda site: (wide[anchor][site], free[site], scores[site], -site), reverse=True)
        left, found = wanted, []
        for site in near:
            own = min(free[site], left)
            left -= own
            found += [(site, own)] * bool(own)
        if not left:
            return found
    return None


def least_level(tree: Tree, free: set[int], wanted: int) -> int | None:
    """The level of the nearest domain that some `wanted` free devices share, over all sets of them."""
    return min((shared_level(tree, found) for found in combinations(sorted(free), wanted)), default=None)


def shared_level(tree: Tree, devices: Sequence[int]) -> int:
    """The level of the lowest block that holds all of these."""
    holds = [
        (tree.size[block], tree.level[block])
        for block in range(len(tree.size))
        if all(0 <= device - tree.first[block] < tree.size[block] for device in devices)
    ]
    return min(holds)[1]
