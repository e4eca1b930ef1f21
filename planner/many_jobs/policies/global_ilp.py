"""All sites and plans in one exact choice, for small instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from planner.many_jobs.jobs.records import Grant, Job, View
from planner.many_jobs.scheduling.sites.offers import Offer
from planner.many_jobs.scheduling.sites.policy import SitePolicy
from planner.many_jobs.sites.filling import Shares, fill_in_order


class GlobalIlp(SitePolicy):
    """The optimum that SpiderFlow compares with as "ILP" (ALPA's solver over all sites, section 5.4): of every set of
    free sites with enough devices that cannot do without one of them, filled from the fullest and from the emptiest,
    the one on which the plan "ilp" is fastest; of equal ones the fewest sites.

    The work is limited by a count, not a clock, so that runs repeat: beyond `most` sets, the smallest of them first,
    none is looked at, and the choice is the best of those. With at most 5 sites nothing is left out.
    """

    name = "global-ilp"
    planner = "ilp"

    def __init__(self, *, most: int = 32, window: int = 1) -> None:
        super().__init__(window=window)
        if most < 1:
            raise ValueError(f"most is {most}, and must be 1 or more")
        self._most = int(most)

    def choose(self, offer: Offer, job: Job, home: int) -> Shares | None:
        """The first candidate; `place` compares them all."""
        return next(self._candidates(offer, job, home), None)

    def place(self, view: View, job: Job, free: Mapping[str, int]) -> Grant | None:
        """The fastest candidate."""
        offer = self._offers.of(view, job, free)
        home = offer.topology.number[view.pools[job.pool].site]
        best: tuple[float, int, int] | None = None
        grants: list[Grant] = []
        for shares in self._candidates(offer, job, home):
            made = offer.grant(shares, self.planner)
            takes_s = view.iteration_time_s(job, made)
            grants.append(made)
            if takes_s is not None:
                key = (takes_s, len(shares), len(grants) - 1)
                best = key if best is None else min(best, key)
        return None if best is None else grants[best[2]]

    def _candidates(self, offer: Offer, job: Job, home: int) -> Iterator[Shares]:
        """At most `most`, of fewest sites first."""
        sites = sorted((site for site in offer.joined(home) if offer.free[site]), key=lambda site: -offer.free[site])
        seen: set[Shares] = set()
        for size in range(1, len(sites) + 1):
            for chosen in combinations(sites, size):
                total = sum(offer.free[site] for site in chosen)
                if total < job.devices or total - min(offer.free[site] for site in chosen) >= job.devices:
                    continue
                for order in (chosen, chosen[::-1]):
                    shares = fill_in_order(order, offer.free, job.devices)
                    if shares is None or tuple(sorted(shares)) in seen:
                        continue
                    seen.add(tuple(sorted(shares)))
                    yield shares
                    if len(seen) == self._most:
                        return
