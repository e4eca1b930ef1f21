"""What all policies over sites share, so that they differ in placement alone: the queue, and when a job is passed over.

The queue is first in, first out, as SpiderFlow's (section 3.1), one for all sites, in the order in which jobs began to
wait. Who cannot be placed now holds up all behind it; `window` > 1 looks at so many jobs that cannot, so that small
jobs pass large ones (a large one may then wait long). Who could not be placed even if all that works were free is
passed over: larger than the cluster, or than a site where jobs keep to one, or no plan fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.many_jobs.jobs.records import Decision, Grant, Job, Stateless, View, Workload
from planner.many_jobs.scheduling.sites.offers import Offer, Offers
from planner.many_jobs.sites.filling import Shares


class SitePolicy(Stateless):
    """First in, first out; a concrete policy says which devices (`choose`) and who plans on them (`planner`). Devices
    are of the type of the pool that the job asked for, whose site is its home."""

    name = "sites"
    planner = "even"

    def __init__(self, *, window: int = 1) -> None:
        if window < 1:
            raise ValueError(f"window is {window}, and must be 1 or more")
        self._window = int(window)
        self._offers = Offers()
        self._alone: dict[tuple[Workload, int, str, tuple[int, ...]], bool] = {}

    def choose(self, offer: Offer, job: Job, home: int) -> Shares | None:
        """Which sites give how many of `offer.free`; None: it waits. `home` is the job's own site by number."""
        raise NotImplementedError

    def decide(self, view: View) -> Decision:
        """Start from the head of the queue."""
        free, grants, blocked = dict(view.free), dict[str, Grant | None](), 0
        for id_, state in view.waiting.items():
            if blocked == self._window or self.full(free):
                break
            given = None if self._never(view, state.job) else self.serve(view, state.job, free, grants)
            if given is None:
                blocked += self._could_run(view, state.job)
                continue
            grants[id_] = given
            for pool, count in given.parts:
                free[pool] -= count
        return Decision(grants=grants)

    def full(self, free: Mapping[str, int]) -> bool:
        """Whether nobody can be placed any more."""
        return not any(free.values())

    def serve(self, view: View, job: Job, free: dict[str, int], grants: dict[str, Grant | None]) -> Grant | None:
        """The job's grant out of what is free; a policy that suspends others writes them into `found`, and what they
        leave into `free`."""
        del grants
        return self.place(view, job, free)

    def place(self, view: View, job: Job, free: Mapping[str, int]) -> Grant | None:
        """The job's grant out of what is free; None where it has to wait, or nothing fits there."""
        offer = self._offers.of(view, job, free)
        if sum(offer.free) < 1:
            return None
        home = offer.topology.number[view.pools[job.pool].site]
        shares = self.choose(offer, job, home)
        if shares is None:
            return None
        made = offer.grant(shares, self.planner)
        return None if view.iteration_time_s(job, made) is None else self.refine(view, job, made)

    def refine(self, view: View, job: Job, made: Grant) -> Grant:
        """What the job takes of the devices chosen: all."""
        del view, job
        return made

    def _could_run(self, view: View, job: Job) -> bool:
        """Whether it could be placed, were all that works free."""
        key = self._key(view, job)
        if key not in self._alone:
            everything = dict(zip(view.pools, key[3], strict=True))
            self._alone[key] = self.place(view, job, everything) is not None
        return self._alone[key]

    def _never(self, view: View, job: Job) -> bool:
        """Whether it is known by now that it could not."""
        return not self._alone.get(self._key(view, job), True)

    def _key(self, view: View, job: Job) -> tuple[Workload, int, str, tuple[int, ...]]:
        return job.workload, job.devices, job.pool, tuple(pool.devices for pool in view.pools.values())


def without(made: Grant, pools: Mapping[str, str], site: str) -> Grant:
    """Return the grant less its devices at a site; `pools` gives each pool's site."""
    return replace(made, parts=tuple(part for part in made.parts if pools[part[0]] != site))
