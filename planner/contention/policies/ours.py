"""`ours`: the paths and levels under which jobs do most work, as the simulator plays them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial

from planner.contention.policies.arithmetic import promising
from planner.contention.policies.beginning import with_offsets
from planner.contention.policies.bound import bound_flops_per_s
from planner.contention.policies.crux import Crux
from planner.contention.policies.exhaustive import Best, best_paths_and_levels, count_paths, most_plays
from planner.contention.policies.fewest import SHARE, fewer_changes, fewest_of_all
from planner.contention.policies.improving import with_axis_levels
from planner.contention.policies.loads import contending_jobs, link_seconds
from planner.contention.policies.records import Decision, View
from planner.contention.policies.refusing import refusal
from planner.contention.policies.rehearsals import Rates, Rehearsals, played_rates
from planner.contention.policies.stepwise import BETTER, Start, search, value_of
from planner.contention.policies.unmanaged import Ecmp
from planner.contention.policies.varied import JITTER, MOST_JITTER
from profiles.errors import NothingFits
from profiles.records import dataclass

EXACT_JOBS = 6
EXACT_PATHS = 4096
"""With more ways than these to give jobs paths, not all are gone through."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What was found for some jobs, and how many cases were played for it; `most_flops_per_s` is the most work that was
    found, before any was given up."""

    best: Best
    played: int
    most_flops_per_s: float

    @property
    def given_up(self) -> float:
        """The share of the most work that was given up."""
        lost = 1 - self.best.flops_per_s / self.most_flops_per_s if self.most_flops_per_s > 0 else 0.0
        return lost if lost > BETTER else 0.0


class Ours:
    """Jobs that no path joins are solved apart. Up to six jobs: all paths and levels, with proof, unless that may take
    more than `exact` plays; else from what `crux` and `ecmp` do, what looks best by arithmetic and random starts, step
    by step, by as many `plays` (0: as many as `plays_for` says). Of what does all but the share `give_up` of that work
    it answers what changes fewest jobs (by a third as many plays again, where there is no proof). Then, on top of
    these, `axes`: levels by axis, and `offsets`: later begins and common periods, each of them by as many plays again
    (a third of it for many jobs) and only where it gains as compute varies by the share `jitter` and jobs are late. No
    job's iteration takes longer than `slowdown_cap` times alone (0: however long)."""

    name = "ours"

    def __init__(
        self,
        plays: int = 0,
        exact: int = 20_000,
        slowdown_cap: float = 0.0,
        seed: int = 0,
        axes: bool = True,
        offsets: bool = True,
        give_up: float = SHARE,
        jitter: float = JITTER,
    ) -> None:
        if not 0 <= jitter <= MOST_JITTER:
            raise ValueError(f"jitter {jitter}: from 0 to {MOST_JITTER:g}")
        if not 0 <= give_up < 1:
            raise ValueError(f"give_up {give_up}: from 0 to below 1")
        if plays < 0 or exact < 0 or not (slowdown_cap == 0 or slowdown_cap >= 1):
            raise ValueError(f"plays {plays}, exact {exact}: not below 0; slowdown_cap {slowdown_cap}: 1 or more, or 0")
        self.plays, self.exact, self.seed = plays, exact, seed
        self.axes, self.offsets, self.give_up, self.jitter = axes, offsets, give_up, jitter
        self.slowdown_cap = slowdown_cap or None
        self.rates: Rates = played_rates

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`. Raise NothingFits where nothing that was found keeps the cap: it names the job and the
        smallest cap that works."""
        searched = self.solve(view, give_up=self.give_up)
        best, cap = searched.best, self.slowdown_cap
        if cap is not None and best.excess > 0:
            raise NothingFits(refusal(view, Rehearsals(view, self.rates), best, cap))
        decision = replace(decision_of(view, best), given_up=searched.given_up)
        plays = self.plays or plays_for(len(decision.order))
        plays = plays // 3 if len(decision.order) > MANY_JOBS else plays
        if self.axes:
            decision = with_axis_levels(view, decision, plays=plays, cap=cap, jitter=self.jitter)
        if self.offsets:
            decision = with_offsets(view, decision, plays=plays, cap=cap, jitter=self.jitter)
        return decision

    def solve(self, view: View, give_up: float = 0.0) -> Searched:
        """Return the best that is found, whether it keeps the cap or not, all but the share `give_up` of its work where
        fewer jobs change for it; `proved` if nothing is better in any part."""
        paths, levels = [job.now for job in view.jobs], [0] * len(view.jobs)
        flops_per_s, most, slowdown, excess, proved, played = 0.0, 0.0, 1.0, 0.0, True, 0
        parts = independent_parts(view)
        for part in parts:
            of_part = replace(view, jobs=tuple(view.jobs[job] for job in part))
            searched = self._solve_part(of_part, len(view.jobs), give_up)
            best = searched.best
            for place, job in enumerate(part):
                paths[job], levels[job] = best.paths[place], best.levels[place]
            flops_per_s, most = flops_per_s + best.flops_per_s, most + searched.most_flops_per_s
            slowdown, excess = max(slowdown, best.slowdown), max(excess, best.excess)
            proved, played = proved and best.proved, played + searched.played
        return Searched(
            best=Best(
                paths=tuple(paths),
                levels=tuple(levels),
                flops_per_s=flops_per_s,
                slowdown=slowdown,
                excess=excess,
                proved=proved,
            ),
            played=played,
            most_flops_per_s=most,
        )

    def _solve_part(self, view: View, jobs: int, give_up: float) -> Searched:
        rehearsals = Rehearsals(view, self.rates)
        few = len(view.jobs) <= EXACT_JOBS and count_paths(view) <= EXACT_PATHS
        cap = self.slowdown_cap
        if few and most_plays(rehearsals) <= self.exact:
            best = best_paths_and_levels(rehearsals, cap=cap)
            fewer = partial(fewest_of_all, rehearsals, share=give_up, cap=cap)
        else:
            plays = max((self.plays or plays_for(len(view.jobs))) * len(view.jobs) // jobs, 1)
            starts = [start_of(policy.decide(view)) for policy in (Crux(), Ecmp())]
            looked_at = promising(view, starts, seed=self.seed, visits=visits_for(len(view.jobs)) * plays)
            # What looks best comes first: where there are few plays, the rest is not looked at.
            starts = [*(start for _, start in looked_at[:1]), *starts, *(start for _, start in looked_at[1:PROMISING])]
            bound = bound_flops_per_s(view)
            best = search(rehearsals, starts, plays=plays, cap=cap, bound=bound, seed=self.seed)
            fewer = partial(fewer_changes, rehearsals, plays=plays // 3, share=give_up, cap=cap)
        most = best.flops_per_s
        if give_up:
            best = self._in_place_of(best, rehearsals, fewer(decision_of(view, best)))
        return Searched(best=best, played=rehearsals.played, most_flops_per_s=most)

    def _in_place_of(self, best: Best, rehearsals: Rehearsals, decision: Decision) -> Best:
        """What the decision is worth, which does no more than the best; proved as that is where it does no less."""
        levels = (
            job.own_level if level is None else level
            for job, level in zip(rehearsals.view.jobs, decision.levels, strict=True)
        )
        found = value_of(rehearsals, Start(paths=decision.paths, levels=tuple(levels)), self.slowdown_cap)
        return replace(found, proved=best.proved and found.flops_per_s >= best.flops_per_s * (1 - BETTER))


def plays_for(jobs: int) -> int:
    """Return how many cases are played for so many jobs where nobody says: a case of twice as many jobs costs some four
    times as much, until it is as many events as are played at most."""
    return min(max(28_000 // max(jobs, 1) ** 2, 10), 400)


MANY_JOBS = 12
"""More jobs than these gain little by beginning later."""
PROMISING = 6
"""So many of the decisions that look best by arithmetic are played."""


def visits_for(jobs: int) -> int:
    """Return how much arithmetic (pairs of jobs that are looked at) may go with a play: a part of what that costs."""
    return 1_000_000 + 20_000 * jobs


def independent_parts(view: View) -> list[tuple[int, ...]]:
    """Return the jobs in groups between which no path of one job has a link with any path of the other."""
    users: dict[int, list[int]] = defaultdict(list)
    for number, job in enumerate(view.jobs):
        for link in sorted({link for options in job.paths for path in options for link, _ in path}):
            users[link].append(number)
    part = list(range(len(view.jobs)))
    members = {job: [job] for job in part}
    for jobs in users.values():
        for other in jobs[1:]:
            kept, gone = sorted((part[jobs[0]], part[other]))
            if kept != gone:
                for moved in members[gone]:
                    part[moved] = kept
                members[kept] += members.pop(gone)
    return [tuple(sorted(jobs)) for _, jobs in sorted(members.items())]


def start_of(decision: Decision) -> Start:
    """Return a decision's paths and levels."""
    return Start(paths=decision.paths, levels=tuple(level or 0 for level in decision.levels))


def decision_of(view: View, best: Best) -> Decision:
    """Return what was found as a decision: jobs that share no link have no level, and inside a level jobs stand in the
    order of `crux`."""
    seconds = link_seconds(view, best.paths)
    contending = set(contending_jobs(seconds))
    rank = {job: place for place, job in enumerate(Crux().rank(view, seconds))}
    return Decision(
        paths=best.paths,
        levels=tuple(level if job in contending else None for job, level in enumerate(best.levels)),
        offsets_s=(0.0,) * len(view.jobs),
        order=tuple(sorted(rank, key=lambda job: (best.levels[job], rank[job]))),
        proved=best.proved,
    )
