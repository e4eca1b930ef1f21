"""Opportunistic: whatever is free, at the best connected sites first."""

from __future__ import annotations

from planner.many_jobs.jobs.records import Job
from planner.many_jobs.scheduling.sites.offers import Offer
from planner.many_jobs.scheduling.sites.policy import SitePolicy
from planner.many_jobs.sites.filling import Shares, fill_in_order
from profiles.errors import InputError


class EvenSites(SitePolicy):
    """The base of policies over sites that share all devices of a job alike.

    Args:
        planner: "even", or "uniform", which sees the links; InputError for another.
        window: how many jobs that cannot start do not hold up those behind them, and one more.
    """

    def __init__(self, *, planner: str = "even", window: int = 1) -> None:
        super().__init__(window=window)
        if planner not in ("even", "uniform"):
            raise InputError(where="policy", key="planner", found=planner, expected="even or uniform")
        self.planner = planner


class Opportunistic(EvenSites):
    """SpiderFlow's first baseline (section 5.2): sites by bandwidth (equation 2), idle devices handed out greedily.

    The first site with room for the whole job; where none has, over whatever is free, in the same order. The job then
    runs as "even" plans it, without an eye on links.

    Args:
        spread: False: it waits for one site with room instead, as long as there is one that large.
        planner, window: see `EvenSites`.
    """

    name = "opportunistic"

    def __init__(self, *, spread: bool = True, planner: str = "even", window: int = 1) -> None:
        super().__init__(planner=planner, window=window)
        self._spread = spread

    def choose(self, offer: Offer, job: Job, home: int) -> Shares | None:
        """By bandwidth."""
        del home
        return by_bandwidth(offer, job.devices, spread=self._spread)


def by_bandwidth(offer: Offer, devices: int, *, spread: bool) -> Shares | None:
    """The first site with room in the order of bandwidth, else all sites in that order (`spread`)."""
    order = offer.topology.order("incident", None)
    for site in order:
        if offer.free[site] >= devices:
            return ((site, devices),)
    return fill_in_order(order, offer.free, devices) if spread else None
