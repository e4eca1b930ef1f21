"""What any policy's answer is held to: jobs that may not change, so many changes at most and what each costs, a cap on
slowdowns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import comb

from planner.contention.policies.crux import Crux
from planner.contention.policies.exhaustive import Best
from planner.contention.policies.keeping import changed_jobs, is_changed, relabelled, restored, with_paths
from planner.contention.policies.levelling import needed_levels
from planner.contention.policies.records import Decision, NetworkPolicy, View
from planner.contention.policies.refusing import refusal
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.stepwise import Start, search
from planner.contention.policies.worth import excess_of, slowdowns, work_per_s
from profiles.errors import NothingFits

MOST_SETS = 64
"""So many sets of changes are all tried."""


class Constrained:
    """Another policy, whose answer changes at most `change_at_most` jobs (None: any number), none that may not change,
    and none that costs more than it brings: a job that changes stands still for `change_s` once, while the decision
    holds for `holds_s`. Of the changes that the policy asks for those are made that bring most work: the best set of
    few, of many one after the other. No job's iteration then takes longer than `slowdown_cap` times alone (0: however
    long); where the answer breaks that, paths and levels are looked for that do not, by `plays` played cases.
    `searches`: they are also looked for where not all may change as the policy asks."""

    def __init__(
        self,
        policy: NetworkPolicy,
        *,
        change_at_most: int | None = None,
        change_s: float = 0.0,
        holds_s: float = 3600.0,
        slowdown_cap: float = 0.0,
        searches: bool = False,
        plays: int = 300,
        seed: int = 0,
    ) -> None:
        if change_at_most is not None and change_at_most < 0:
            raise ValueError(f"change_at_most {change_at_most}: not below 0")
        if not (slowdown_cap == 0 or slowdown_cap >= 1):
            raise ValueError(f"slowdown_cap {slowdown_cap}: 1 or more, or 0")
        if not (change_s >= 0 and holds_s > 0 and plays >= 0):
            raise ValueError(f"change_s {change_s}, holds_s {holds_s}, plays {plays}: not below 0")
        self.policy, self.searches, self.plays, self.seed = policy, searches, plays, seed
        self.change_at_most, self.change_s, self.holds_s = change_at_most, change_s, holds_s
        self.slowdown_cap = slowdown_cap or None

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.policy.name

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`. Raise NothingFits where nothing that was found keeps the cap: it names the job and the
        smallest cap that works."""
        rehearsals = Rehearsals(view)
        fixed = [n for n, job in enumerate(view.jobs) if not job.may_change]
        asked = self._asked(view, fixed)
        if self.change_s > 0 or self.change_at_most is not None:
            asked = relabelled(view, asked)
        decision = restored(view, asked, fixed)
        if self.change_s > 0 or self._too_many(view, decision):
            decision = self._bounded(rehearsals, decision)
        if self.searches and self.change_s == 0 and decision != asked:
            decision = self._searched(rehearsals, decision)
        if self.slowdown_cap is not None:
            decision = self._capped(rehearsals, decision, self.slowdown_cap)
        return decision

    def _asked(self, view: View, fixed: Sequence[int]) -> Decision:
        """What the policy answers where jobs that may not change have no path but theirs."""
        if not fixed:
            return self.policy.decide(view)
        alone = with_paths(view, tuple(job.now for job in view.jobs))
        jobs = tuple(alone.jobs[n] if n in fixed else job for n, job in enumerate(view.jobs))
        asked = self.policy.decide(replace(view, jobs=jobs))
        paths = tuple(view.jobs[n].now if n in fixed else its for n, its in enumerate(asked.paths))
        return replace(asked, paths=paths)

    def _too_many(self, view: View, decision: Decision) -> bool:
        return self.change_at_most is not None and len(changed_jobs(view, decision)) > self.change_at_most

    def _bounded(self, rehearsals: Rehearsals, asked: Decision) -> Decision:
        """As now, with those changes that bring most for what they cost: of few the best set of all, else one after the
        other."""
        view = rehearsals.view
        changed = changed_jobs(view, asked)
        most = len(changed) if self.change_at_most is None else min(self.change_at_most, len(changed))
        if sum(comb(len(changed), size) for size in range(most + 1)) <= MOST_SETS:
            made = [kept for size in range(most + 1) for kept in combinations(changed, size)]
            # Of sets that bring as much the first, which is none of the larger ones.
            best = max(made, key=lambda kept: self._net(rehearsals, asked, changed, kept))
            return restored(view, asked, [job for job in changed if job not in best])
        return self._one_by_one(rehearsals, asked, changed, most)

    def _net(self, rehearsals: Rehearsals, asked: Decision, changed: Sequence[int], kept: Sequence[int]) -> float:
        """Work a second with the changes that are kept, less what they cost."""
        view = rehearsals.view
        decision = restored(view, asked, [job for job in changed if job not in kept])
        return work_per_s(view.jobs, rehearsals.rates_of(decision)) - sum(self._cost(view, job) for job in kept)

    def _one_by_one(self, rehearsals: Rehearsals, asked: Decision, changed: Sequence[int], most: int) -> Decision:
        """As now, then one change after the other, each the one that brings most for what it costs."""
        view, first = rehearsals.view, rehearsals.played
        kept: list[int] = []
        at = self._net(rehearsals, asked, changed, kept)
        for _ in range(most):
            tried: list[tuple[float, int]] = []
            for job in (job for job in changed if job not in kept):
                if rehearsals.played >= first + self.plays and tried:
                    break
                tried.append((self._net(rehearsals, asked, changed, [*kept, job]), job))
            net, job = max(tried, key=lambda each: (each[0], -each[1]), default=(at, -1))
            if net <= at:
                break
            at = net
            kept.append(job)
        return restored(view, asked, [job for job in changed if job not in kept])

    def _cost(self, view: View, job: int) -> float:
        """Work that a change of a job costs, spread over the time for which the decision holds."""
        return view.jobs[job].flops / view.jobs[job].alone_s * self.change_s / self.holds_s

    def _capped(self, rehearsals: Rehearsals, decision: Decision, cap: float) -> Decision:
        view = rehearsals.view
        worst = max(slowdowns(view.jobs, rehearsals.rates_of(decision)), default=1.0)
        if excess_of(worst, cap) == 0:
            return decision
        found = self._search(rehearsals, decision, cap)
        if found.excess > 0:
            raise NothingFits(refusal(view, rehearsals, found, cap))
        return _decision_of(view, found)

    def _searched(self, rehearsals: Rehearsals, decision: Decision) -> Decision:
        """What is found from there, if it is better: what the decision has beside paths and levels gives way."""
        view = rehearsals.view
        found = self._search(rehearsals, decision, self.slowdown_cap)
        rates = rehearsals.rates_of(decision)
        excess = excess_of(max(slowdowns(view.jobs, rates), default=1.0), self.slowdown_cap)
        return _decision_of(view, found) if found.key > (-excess, work_per_s(view.jobs, rates)) else decision

    def _search(self, rehearsals: Rehearsals, decision: Decision, cap: float | None) -> Best:
        view = rehearsals.view
        free = self.change_at_most is None and all(job.may_change for job in view.jobs)
        other = restored(view, Crux().decide(view), [n for n, job in enumerate(view.jobs) if not job.may_change])
        if self._too_many(view, other):
            other = self._bounded(rehearsals, other)
        now = restored(view, decision, range(len(view.jobs)))
        starts = [self._start(view, each) for each in (decision, other, now)]
        return search(
            rehearsals,
            starts,
            plays=self.plays,
            cap=cap,
            seed=self.seed,
            allowed=None if free else lambda it: self._allowed(view, it),
        )

    def _start(self, view: View, decision: Decision) -> Start:
        levels = tuple(
            job.own_level if its is None else its for job, its in zip(view.jobs, decision.levels, strict=True)
        )
        return Start(paths=decision.paths, levels=levels)

    def _allowed(self, view: View, start: Start) -> bool:
        decision = Decision(
            paths=start.paths,
            levels=needed_levels(view, start.paths, start.levels),
            offsets_s=(0.0,) * len(view.jobs),
        )
        fixed = (n for n, job in enumerate(view.jobs) if not job.may_change)
        return not (any(is_changed(view, decision, job) for job in fixed) or self._too_many(view, decision))


def _decision_of(view: View, found: Best) -> Decision:
    return Decision(
        paths=found.paths,
        levels=needed_levels(view, found.paths, found.levels),
        offsets_s=(0.0,) * len(view.jobs),
    )
