"""The best sites by trying all sets: fewest sites, then widest, then nearest. For few sites; the others' measure."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.sites.filling import fill
from planner.many_jobs.sites.records import Choice
from planner.many_jobs.sites.sets import SiteSets
from planner.many_jobs.sites.topology import Topology

MOST_SITES = 20


def exact_search(topology: Topology, free: Sequence[int], wanted: int, local: int | None) -> Choice | None:
    """The sites of least `Score.key` with `wanted` of the `free` devices; None if there are none.

    Sets of 1, 2, ... sites, those with most devices first; a branch is left where the sites still to come have too
    little, or where it is narrower, or no nearer, than the best set of this size. ValueError for more than 20 sites
    that have free devices and are joined to `local`.
    """
    parts = topology.parts
    sites = [s for s in range(len(topology)) if free[s] and (local is None or parts[s] == parts[local])]
    if len(sites) > MOST_SITES:
        raise ValueError(f"exact search: {len(sites)} sites with free devices, expected at most {MOST_SITES}")
    for size in range(1, len(sites) + 1):
        best = SiteSets(topology, free, sites, local=local, size=size).best(wanted)
        if best is not None:
            return Choice("all sets", fill(best, free, wanted), proved=True)
    return None
