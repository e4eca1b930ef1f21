"""SpiderFlow: sites by SpinSearch or ours, plans by TPA."""

from __future__ import annotations

from collections.abc import Mapping

from planner.many_jobs.jobs.records import Grant, Job, View
from planner.many_jobs.policies.opportunistic import by_bandwidth
from planner.many_jobs.scheduling.sites.offers import Offer
from planner.many_jobs.scheduling.sites.policy import SitePolicy, without
from planner.many_jobs.sites.choosing import METHODS
from planner.many_jobs.sites.filling import Shares
from profiles.errors import InputError


class SpiderFlow(SitePolicy):
    """A job goes to as few sites as can be, well joined and near (`planner.many_jobs.sites`), and TPA plans it there.

    Args:
        spin: how sites are chosen: "compact" (ours, the default), "spin-search" (the paper's), any other method of
            `planner.many_jobs.sites.choosing`, or "none": as Opportunistic chooses.
        tpa: whether TPA plans; False: "even".
        trim: whether sites are given back at once without which the plan is as fast, since TPA leaves devices idle
            where links are too thin; ours, the paper says nothing of it. Only with `tpa`.
        window: how many jobs that cannot start do not hold up those behind them, and one more.
    """

    name = "spiderflow"

    def __init__(self, *, spin: str = "compact", tpa: bool = True, trim: bool = True, window: int = 1) -> None:
        super().__init__(window=window)
        if spin != "none" and spin not in METHODS:
            raise InputError(where="policy", key="spin", found=spin, expected="none or one of " + ", ".join(METHODS))
        self._spin, self._trim = spin, bool(trim and tpa)
        self.planner = "tpa" if tpa else "even"

    def choose(self, offer: Offer, job: Job, home: int) -> Shares | None:
        """By the search."""
        if self._spin == "none":
            return by_bandwidth(offer, job.devices, spread=True)
        choice = METHODS[self._spin](offer.topology, offer.free, job.devices, home)
        return None if choice is None else choice.shares

    def refine(self, view: View, job: Job, made: Grant) -> Grant:
        """Without the sites that make the job no faster, those that give fewest devices first."""
        return trimmed(view, job, made) if self._trim else made


def trimmed(view: View, job: Job, made: Grant) -> Grant:
    """The grant less the sites without which the job is as fast."""
    sites = {name: pool.site for name, pool in view.pools.items()}
    takes_s = view.iteration_time_s(job, made)
    for site in _smallest_first(made, sites):
        smaller = without(made, sites, site)
        if takes_s is None or not smaller.parts:
            break
        other_s = view.iteration_time_s(job, smaller)
        if other_s is not None and other_s <= takes_s * (1 + 1e-9):
            made, takes_s = smaller, other_s
    return made


def _smallest_first(made: Grant, sites: Mapping[str, str]) -> list[str]:
    held: dict[str, int] = {}
    for pool, count in made.parts:
        held[sites[pool]] = held.get(sites[pool], 0) + count
    return sorted(held, key=lambda site: (held[site], site))


class SpiderFlowNoSpin(SpiderFlow):
    """Without the search: sites as Opportunistic chooses them, plans by TPA."""

    name = "spiderflow-no-spin"

    def __init__(self, *, trim: bool = True, window: int = 1) -> None:
        super().__init__(spin="none", trim=trim, window=window)


class SpiderFlowNoTpa(SpiderFlow):
    """Without TPA: sites by the search, plans that do not look at links."""

    name = "spiderflow-no-tpa"

    def __init__(self, *, spin: str = "compact", window: int = 1) -> None:
        super().__init__(spin=spin, tpa=False, window=window)
