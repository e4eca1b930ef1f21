"""Lyra-like: a job runs at home, and on devices that other sites lend as long as their own jobs do not need them."""

from __future__ import annotations

from collections.abc import Mapping

from planner.many_jobs.jobs.records import Grant, Job, JobState, View
from planner.many_jobs.policies.opportunistic import EvenSites
from planner.many_jobs.scheduling.sites.offers import Offer
from planner.many_jobs.sites.filling import Shares, fill_in_order


class Lyra(EvenSites):
    """Capacity lending between sites (Li et al., EuroSys 2023), as SpiderFlow compares with it in section 5.2.

    A job runs at its home site if there is room. If there would be room without the guests there, those who came last
    are suspended until it fits, and wait again: loans are returned when their owner needs them. Else the job borrows:
    its home's idle devices first, then those of other sites, most idle ones first. Guests are jobs that have devices at
    a site that is not their home. It runs as "even" plans it. What guests lose is a restart: Lyra's own jobs shrink and
    grow, ours do not.
    """

    name = "lyra"

    def choose(self, offer: Offer, job: Job, home: int) -> Shares | None:
        """Home, or home with loans."""
        if offer.free[home] >= job.devices:
            return ((home, job.devices),)
        joined = offer.joined(home)
        lenders = sorted((site for site in joined if site != home), key=lambda site: (-offer.free[site], site))
        return fill_in_order([home, *lenders], offer.free, job.devices)

    def full(self, free: Mapping[str, int]) -> bool:
        """Never: guests may leave."""
        del free
        return False

    def serve(self, view: View, job: Job, free: dict[str, int], grants: dict[str, Grant | None]) -> Grant | None:
        """At home, at home instead of guests, or with loans."""
        return self._at_home(view, job, free, grants) or self.place(view, job, free)

    def _at_home(self, view: View, job: Job, free: dict[str, int], grants: dict[str, Grant | None]) -> Grant | None:
        """The job at its home site, for which guests are suspended; None where even that is not enough."""
        offer = self._offers.of(view, job, free)
        site = view.pools[job.pool].site
        lacking = job.devices - offer.free[offer.topology.number[site]]
        if lacking <= 0:
            return None
        leaving: list[JobState] = []
        for state in reversed(list(view.running.values())):
            if lacking <= 0:
                break
            lent = 0 if state.job.id in grants else self._lent(view, state, offer, site)
            if lent:
                leaving.append(state)
                lacking -= lent
        if lacking > 0:
            return None
        freed = dict(free)
        for state in leaving:
            for pool, count in state.grant.parts if state.grant else ():
                freed[pool] += count
        given = self.place(view, job, freed)
        if given is None:
            return None
        for state in leaving:
            grants[state.job.id] = None
        free.update(freed)
        return given

    def _lent(self, view: View, state: JobState, offer: Offer, home: str) -> int:
        """Devices of the offer's type that a job from elsewhere has at a home site."""
        if state.grant is None or view.pools[state.job.pool].site == home:
            return 0
        parts = state.grant.parts
        return sum(count for pool, count in parts if pool in offer.by_pool and view.pools[pool].site == home)
