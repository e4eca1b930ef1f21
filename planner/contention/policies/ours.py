"""`ours`: the paths and levels under which jobs do most work, as the simulator plays them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from planner.contention.policies.arithmetic import promising
from planner.contention.policies.bound import bound_flops_per_s
from planner.contention.policies.crux import Crux
from planner.contention.policies.exhaustive import Best, best_paths_and_levels, count_paths, most_plays
from planner.contention.policies.improving import with_axis_levels, with_offsets
from planner.contention.policies.loads import contending_jobs, link_seconds
from planner.contention.policies.records import Decision, View
from planner.contention.policies.refusing import refusal
from planner.contention.policies.rehearsals import Rates, Rehearsals, played_rates
from planner.contention.policies.stepwise import Start, search
from planner.contention.policies.unmanaged import Ecmp
from profiles.errors import NothingFits
from profiles.records import dataclass

EXACT_JOBS = 6
EXACT_PATHS = 4096
"""With more ways than these to give jobs paths, not all are gone through."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What was found for some jobs, and how many cases were played for it."""

    best: Best
    played: int


class Ours:
    """Jobs that no path joins are solved apart. Up to six jobs: all paths and levels, with proof, unless that may take
    more than `exact` plays; else from what `crux` and `ecmp` do, what looks best by arithmetic and random starts, step
    by step, by as many `plays` (0: as many as `plays_for` says). Then, on top of these, `axes`: levels by axis, and
    `offsets`: later begins and common periods, each of them by as many plays again (a third of it for many jobs) and
    only where it gains. No job's iteration takes longer than `slowdown_cap` times alone (0: however long)."""

    name = "ours"

    def __init__(
        self,
        plays: int = 0,
        exact: int = 20_000,
        slowdown_cap: float = 0.0,
        seed: int = 0,
        axes: bool = True,
        offsets: bool = True,
    ) -> None:
        if plays < 0 or exact < 0 or not (slowdown_cap == 0 or slowdown_cap >= 1):
            raise ValueError(f"plays {plays}, exact {exact}: not below 0; slowdown_cap {slowdown_cap}: 1 or more, or 0")
        self.plays, self.exact, self.seed = plays, exact, seed
        self.axes, self.offsets = axes, offsets
        self.slowdown_cap = slowdown_cap or None
        self.rates: Rates = played_rates

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`. Raise NothingFits where nothing that was found keeps the cap: it names the job and the
        smallest cap that works."""
        best = self.solve(view).best
        cap = self.slowdown_cap
        if cap is not None and best.excess > 0:
            raise NothingFits(refusal(view, Rehearsals(view, self.rates), best, cap))
        decision = decision_of(view, best)
        plays = self.plays or plays_for(len(decision.order))
        plays = plays // 3 if len(decision.order) > MANY_JOBS else plays
        if self.axes:
            decision = with_axis_levels(view, decision, plays=plays, cap=cap)
        return with_offsets(view, decision, plays=plays, cap=cap) if self.offsets else decision

    def solve(self, view: View) -> Searched:
        """Return the best that is found, whether it keeps the cap or not; `proved` if every part is."""
        paths, levels = [job.now for job in view.jobs], [0] * len(view.jobs)
        flops_per_s, slowdown, excess, proved, played = 0.0, 1.0, 0.0, True, 0
        parts = independent_parts(view)
        for part in parts:
            searched = self._solve_part(replace(view, jobs=tuple(view.jobs[job] for job in part)), len(view.jobs))
            best = searched.best
            for place, job in enumerate(part):
                paths[job], levels[job] = best.paths[place], best.levels[place]
            flops_per_s += best.flops_per_s
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
        )

    def _solve_part(self, view: View, jobs: int) -> Searched:
        rehearsals = Rehearsals(view, self.rates)
        few = len(view.jobs) <= EXACT_JOBS and count_paths(view) <= EXACT_PATHS
        if few and most_plays(rehearsals) <= self.exact:
            best = best_paths_and_levels(rehearsals, cap=self.slowdown_cap)
        else:
            plays = max((self.plays or plays_for(len(view.jobs))) * len(view.jobs) // jobs, 1)
            starts = [start_of(policy.decide(view)) for policy in (Crux(), Ecmp())]
            looked_at = promising(view, starts, seed=self.seed, visits=visits_for(len(view.jobs)) * plays)
            starts += [start for _, start in looked_at][: min(PROMISING, plays)]
            bound = bound_flops_per_s(view)
            best = search(rehearsals, starts, plays=plays, cap=self.slowdown_cap, bound=bound, seed=self.seed)
        return Searched(best=best, played=rehearsals.played)


def plays_for(jobs: int) -> int:
    """Return how many cases are played for so many jobs where nobody says: a case of twice as many jobs costs some four
    times as much, until it is as many events as are played at most."""
    return min(max(40_000 // max(jobs, 1) ** 2, 10), 400)


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
