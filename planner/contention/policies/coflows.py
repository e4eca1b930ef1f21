"""Schedulers of coflows, an iteration's bytes being a coflow: Sincronia (SIGCOMM'18) and Varys (SIGCOMM'14)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.intensity import bottleneck_s
from planner.contention.policies.levelling import compressed_levels
from planner.contention.policies.loads import LinkSeconds, contending_jobs, link_seconds, paths_now, users_of_links
from planner.contention.policies.option_names import known_name
from planner.contention.policies.records import Decision, View


class Sincronia:
    """`sincronia`: bottleneck, select, scale, iterate, on the paths that are; the first jobs of that order have a level
    of their own and the rest the last (as Crux's figure 13 has it)."""

    name = "sincronia"

    def __init__(self, compression: str = "first-alone") -> None:
        self.compression = known_name("compression", compression, COMPRESSIONS)

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        seconds = link_seconds(view, paths_now(view))
        return _decision(view, seconds, bssi_order(view, seconds), self.compression)


class Varys:
    """`varys`: the smallest effective bottleneck first, on the paths that are; levels of equally many jobs."""

    name = "varys"

    def __init__(self, compression: str = "equal-parts") -> None:
        self.compression = known_name("compression", compression, COMPRESSIONS)

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        seconds = link_seconds(view, paths_now(view))
        return _decision(view, seconds, shortest_first(view, seconds), self.compression)


def shortest_first(view: View, seconds: Sequence[LinkSeconds]) -> tuple[int, ...]:
    """Return the jobs that share links, the one whose bytes keep its bottleneck busy for the shortest first."""
    times = {job: bottleneck_s(view.jobs[job], seconds[job]) for job in contending_jobs(seconds)}
    return tuple(sorted(times, key=lambda job: (times[job], view.jobs[job].id)))


def bssi_order(view: View, seconds: Sequence[LinkSeconds]) -> list[int]:
    """Return the jobs that share links in Sincronia's order, algorithm 1: of the link that is busy longest with those
    who have no place yet, the one of least weight for its time there gets the last place that is left; the weights of
    the others sink by what they hold it up. All weights are 1 at first."""
    left = set(contending_jobs(seconds))
    weights = dict.fromkeys(left, 1.0)
    users = users_of_links({} if job not in left else its for job, its in enumerate(seconds))
    busy = {link: sum(seconds[job][link] for job in jobs) for link, jobs in users.items()}
    fullest_first = [(-its_s, link) for link, its_s in busy.items()]
    heapify(fullest_first)
    backwards = []
    while left:
        while -fullest_first[0][0] != busy[fullest_first[0][1]]:
            heappop(fullest_first)  # It has less by now, and stands where that puts it too.
        fullest = fullest_first[0][1]
        on_it = [job for job in users[fullest] if job in left]
        last = min(on_it, key=lambda job: (weights[job] / seconds[job][fullest], view.jobs[job].id))
        for job in on_it:
            if job != last:
                weights[job] -= weights[last] * seconds[job][fullest] / seconds[last][fullest]
        left.remove(last)
        backwards.append(last)
        for link in seconds[last]:
            busy[link] = sum(seconds[job][link] for job in users[link] if job in left)
            heappush(fullest_first, (-busy[link], link))
    return backwards[::-1]


def _decision(view: View, seconds: Sequence[LinkSeconds], order: Sequence[int], compression: str) -> Decision:
    return Decision(
        paths=paths_now(view),
        levels=compressed_levels(view, seconds, order, compression),
        offsets_s=(0.0,) * len(view.jobs),
        order=tuple(order),
    )
