"""What a policy sees of sites: devices of one type by site, the links between, and grants of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from planner.many_jobs.jobs.records import Grant, Job, Pool, View
from planner.many_jobs.sites.filling import Shares
from planner.many_jobs.sites.topology import Topology, make_topology
from profiles.cluster import SiteLink
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Devices of one type that a job may have: `free[site]` in the order of `topology.names`, and by pool."""

    topology: Topology
    free: tuple[int, ...]
    by_pool: Mapping[str, int]
    pools: Mapping[str, Pool]

    def grant(self, shares: Shares, planner: str) -> Grant:
        """So many devices of each site, of its pools with most free first. ValueError if a site has too few."""
        parts: list[tuple[str, int]] = []
        for site, wanted in shares:
            name = self.topology.names[site]
            pools_there = sorted((pool for pool in self.by_pool if self.pools[pool].site == name), key=self._fullest)
            for pool in pools_there:
                count = min(wanted, self.by_pool[pool])
                if count:
                    parts.append((pool, count))
                    wanted -= count
            if wanted:
                raise ValueError(f"{name}: {wanted} more devices than are free")
        return Grant(parts=tuple(sorted(parts)), planner=planner)

    def joined(self, site: int) -> list[int]:
        """The sites that links join to this one, itself included."""
        return [other for other, part in enumerate(self.topology.parts) if part == self.topology.parts[site]]

    def _fullest(self, pool: str) -> tuple[int, str]:
        return -self.by_pool[pool], pool


@dataclass(kw_only=True)
class Offers:
    """Makes offers from views. The only state is a cache of the topology."""

    _kept: tuple[tuple[str, ...], Sequence[SiteLink], Topology] | None = field(default=None, repr=False)

    def of(self, view: View, job: Job, free: Mapping[str, int]) -> Offer:
        """What there is for the job: devices of the type of the pool that it asked for, at every site."""
        device = view.pools[job.pool].device
        topology = self._topology(view)
        by_pool = {name: max(0, free[name]) for name, pool in view.pools.items() if pool.device == device}
        counts = [0] * len(topology)
        for name, count in by_pool.items():
            counts[topology.number[view.pools[name].site]] += count
        return Offer(topology=topology, free=tuple(counts), by_pool=by_pool, pools=view.pools)

    def _topology(self, view: View) -> Topology:
        names, links = tuple(dict.fromkeys(pool.site for pool in view.pools.values())), view.site_links
        # Thousands of links are not compared at every decision: a view's are the same object all along.
        if self._kept is None or self._kept[0] != names or self._kept[1] is not links:
            number = {name: place for place, name in enumerate(names)}
            rows = [
                (number[link.between[0]], number[link.between[1]], link.bandwidth_bytes_per_s, link.latency_s)
                for link in links
                if number.keys() >= set(link.between)
            ]
            self._kept = names, links, make_topology(names, rows)
        return self._kept[2]
