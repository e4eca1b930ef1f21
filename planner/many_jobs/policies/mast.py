"""MAST: every job at one site, the best of all."""

from __future__ import annotations

from planner.many_jobs.jobs.records import Job
from planner.many_jobs.policies.opportunistic import EvenSites
from planner.many_jobs.scheduling.sites.offers import Offer
from planner.many_jobs.sites.filling import Shares


class Mast(EvenSites):
    """Global scheduling of jobs that stay in one site (Choudhury et al., OSDI 2024), as SpiderFlow compares with it.

    Of the sites with room the one with least left over, of equal ones the job's own, then the first; jobs larger than
    every site are never placed. It runs as "even" plans it (or "uniform": on one site that is nearly the same).
    """

    name = "mast"

    def choose(self, offer: Offer, job: Job, home: int) -> Shares | None:
        """The fullest site that still has room."""
        room = [site for site, count in enumerate(offer.free) if count >= job.devices]
        best = min(room, key=lambda site: (offer.free[site], site != home, site), default=None)
        return None if best is None else ((best, job.devices),)
