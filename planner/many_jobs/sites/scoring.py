"""How good a set of sites is: what every method is compared by."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.many_jobs.sites.paths import spanning_s
from planner.many_jobs.sites.records import Score
from planner.many_jobs.sites.topology import Topology

MANY, LARGE = 16, 512
"""More sites than these, chosen or in all, are joined by regions: one pass over the graph, not one for each site."""


def score_sites(topology: Topology, sites: Sequence[int], local: int | None) -> Score:
    """Return the score of giving devices at `sites` to a job submitted at `local` (None: anywhere); see `Score`."""
    return Score(
        sites=len(sites),
        bandwidth_bytes_per_s=narrowest(topology, sites),
        distance_s=tree_s(topology, sites, local),
    )


def narrowest(topology: Topology, sites: Sequence[int]) -> float:
    """Bytes/s of the narrowest of the widest paths between two of `sites`. Those from one of them tell, since the path
    of two others is at least as wide as the narrower of theirs."""
    first, *others = sites
    widest = topology.widest(first)
    return min((widest[site] for site in others), default=math.inf)


def tree_s(topology: Topology, sites: Sequence[int], local: int | None) -> float:
    """The least sum of latencies that joins `sites` and `local`; infinite if they are not joined. Equal sets have equal
    sums to the last bit: few sites by Prim from the least number, many by
    regions."""
    left = sorted({*sites} if local is None else {*sites, local})
    if len(left) > 1 and (len(left) > MANY or len(topology) > LARGE):
        return spanning_s(topology.neighbours, left)
    added = left.pop(0)
    if not left:
        return 0.0
    total_s, near = 0.0, topology.quickest(added)
    far = {site: near[site] for site in left}
    while True:
        added = min(far, key=far.__getitem__)
        total_s += far.pop(added)
        if not far:
            return total_s
        near = topology.quickest(added)
        for site, so_far_s in far.items():
            if near[site] < so_far_s:
                far[site] = near[site]
