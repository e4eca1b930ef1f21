"""Sets of sites of one size, by branch and bound: the widest with enough devices, and of those the nearest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from planner.many_jobs.sites.scoring import narrowest, tree_s
from planner.many_jobs.sites.topology import Topology


class SiteSets:
    """Sets of `size` of these sites. `limit`: so many sets and parts of sets are looked at, at most (None: all)."""

    def __init__(
        self,
        topology: Topology,
        free: Sequence[int],
        sites: Sequence[int],
        *,
        local: int | None,
        size: int,
        limit: int | None = None,
    ) -> None:
        self.topology, self.local, self.size = topology, local, size
        self.sites = sorted(sites, key=lambda site: (-free[site], site))
        self.free = [free[site] for site in self.sites]
        self.held = [0, *accumulate(self.free)]
        self.far = {site: topology.quickest(site) for site in self.sites}
        ends = self.sites if local is None else sorted({*self.sites, local})
        self.nearest_s = {
            site: min((far[other] for other in ends if other != site and far[other] < math.inf), default=0.0)
            for site, far in self.far.items()
        }
        self.left = limit if limit is not None else math.inf
        self.best_set: tuple[int, ...] | None = None
        self.key = (math.inf, math.inf)

    @property
    def complete(self) -> bool:
        """Whether the limit was not reached."""
        return self.left >= 0

    def best(self, wanted: int, start: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """The widest, then nearest, set with so many devices, in order of devices; None if there is none. `start` is a
        set with so many; it is the answer unless a better one is found."""
        if start is not None:
            self.best_set, self.key = tuple(start), self._key(start)
        self._extend((), 0, wanted, math.inf, 0.0, 0.0)
        return self.best_set

    def _key(self, chosen: Sequence[int]) -> tuple[float, float]:
        return -narrowest(self.topology, chosen), tree_s(self.topology, chosen, self.local)

    def _extend(
        self, chosen: tuple[int, ...], start: int, wanted: int, width: float, each_s: float, across_s: float
    ) -> None:
        """`wanted`: devices still lacking; `each_s`: the sum of what each chosen site's nearest neighbour is away;
        `across_s`: what the farthest two are."""
        slots = self.size - len(chosen)
        if not slots:
            key = self._key(chosen)
            if key[0] < 0 and key < self.key:
                self.key, self.best_set = key, chosen
            return
        for position in range(start, len(self.sites) - slots + 1):
            self.left -= 1
            if self.left < 0 or self.held[position + slots] - self.held[position] < wanted:
                return
            site = self.sites[position]
            narrow = min(width, self.topology.widest(chosen[0])[site]) if chosen else width
            far, each = self.far[site], each_s + self.nearest_s[site]
            across = max((far[other] for other in chosen), default=0.0)
            across = max(across, across_s, 0.0 if self.local is None else far[self.local])
            longer = (*chosen, site)
            if not narrow or (-narrow, max(across, self._branches_s(longer, each))) >= self.key:
                continue
            self._extend(longer, position + 1, wanted - self.free[position], narrow, each, across)

    def _branches_s(self, chosen: tuple[int, ...], each_s: float) -> float:
        """The tree has a branch for each chosen site but its root, none shorter than to the nearest neighbour. Its root
        is the local site, or else the one that saves most."""
        if self.local is not None and self.local not in chosen:
            return each_s
        return each_s - max(self.nearest_s[site] for site in chosen)
