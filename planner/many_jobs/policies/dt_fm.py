"""DT-FM: a job's pieces over the devices of all sites, by a genetic search."""

from __future__ import annotations

import math

from planner.many_jobs.jobs.records import Job
from planner.many_jobs.scheduling.sites.genetic import deal_pieces, piece_graph
from planner.many_jobs.scheduling.sites.offers import Offer
from planner.many_jobs.scheduling.sites.policy import SitePolicy
from planner.many_jobs.sites.filling import Shares


class DtFm(SitePolicy):
    """Decentralised training of one model (Yuan et al. 2022), as SpiderFlow compares with it in section 5.2: it has no
    scheduler, so its jobs are served first come, first served, each over all devices that are free at its time.

    A grid of pieces, as square as the devices allow, is dealt to the free devices of all sites that links join to the
    job's own by the genetic search of `planner.many_jobs.scheduling.sites.partition_genetic`, for the least traffic
    cut. On the devices that this takes of each site the same search makes the plan ("genetic").

    Args:
        seed: of the search over sites.
        window: how many jobs that cannot start do not hold up those behind them, and one more.
    """

    name = "dt-fm"
    planner = "genetic"

    def __init__(self, *, seed: int = 0, window: int = 1) -> None:
        super().__init__(window=window)
        self._seed = int(seed)
        self._dealt: dict[tuple[int, tuple[int, ...]], tuple[int, ...] | None] = {}

    def choose(self, offer: Offer, job: Job, home: int) -> Shares | None:
        """By the genetic search."""
        sites = [site for site in offer.joined(home) if offer.free[site]]
        if sum(offer.free[site] for site in sites) < job.devices:
            return None
        key = (job.devices, tuple(offer.free[site] for site in sites))
        if key not in self._dealt:
            stages = max(count for count in range(1, math.isqrt(job.devices) + 1) if job.devices % count == 0)
            graph = piece_graph(job.devices // stages, stages, message=1, gradient=2)
            self._dealt[key] = deal_pieces(graph, key[1], seed=self._seed)
        where = self._dealt[key]
        if where is None:
            return None
        return tuple((site, where.count(place)) for place, site in enumerate(sites) if place in where)
