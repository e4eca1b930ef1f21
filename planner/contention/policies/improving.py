"""What can be had on top of paths and levels: levels by axis, later begins, iterations held to a common period. Each is
kept only where it gains: the mean of runs in which compute varies says so, since what fits by the second may drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, floor
from statistics import mean

from planner.contention.policies.axes import AxisLevels, axes_of
from planner.contention.policies.cassini import shifts
from planner.contention.policies.keeping import with_paths
from planner.contention.policies.loads import contending_jobs, link_seconds
from planner.contention.policies.records import Decision, View
from planner.contention.policies.rehearsals import Rehearsals, extras_of, played_rates
from planner.contention.policies.worth import excess_of, slowdowns, work_per_s

GRADIENTS = "dp"
"""The axis of gradient sums, which compute hides; what other axes send blocks."""
JITTER, RUNS = 0.01, 3
"""How much compute varies where gains are asked for, and in how many runs."""
GAINS = 1e-3
"""A mean that is more by no more, relatively, is none: runs differ."""
TURNS = 8
"""Begins that are tried for a job, evenly over its period."""


class Varied:
    """Plays decisions with compute that varies, a few runs of each, and counts them."""

    def __init__(self, view: View, cap: float | None) -> None:
        self.view, self.cap = view, cap
        self.rehearsals = [Rehearsals(view, partial(played_rates, jitter=JITTER, seed=run)) for run in range(RUNS)]

    @property
    def played(self) -> int:
        """Cases so far, in all runs."""
        return sum(each.played for each in self.rehearsals)

    def worth(self, decision: Decision, runs: int = RUNS) -> tuple[float, float]:
        """Return by how much the cap is broken, below 0, and the work a second, in the mean; the greater the better."""
        rates = [each.rates_of(decision) for each in self.rehearsals[:runs]]
        means = [mean(its) for its in zip(*rates, strict=True)]
        excess = excess_of(max(slowdowns(self.view.jobs, means), default=1.0), self.cap)
        return -excess, work_per_s(self.view.jobs, means)

    def is_better(self, one: Decision, other: Decision) -> bool:
        """Whether one decision is clearly better than the other."""
        (excess, work), (excess_before, work_before) = self.worth(one), self.worth(other)
        return excess >= excess_before and work > work_before * (1 + GAINS)


def with_axis_levels(view: View, decision: Decision, *, plays: int, cap: float | None = None) -> Decision:
    """Return the decision, in which jobs may have one level for what blocks and a lower one for their gradient sums,
    where that gains. Jobs come in the order of the decision, at most `plays` cases are played."""
    several = [job for job in decision.order if {GRADIENTS} < set(axes_of(view.jobs[job]))]
    if not several or view.levels == 1:
        return decision
    varied = Varied(view, cap)
    best, worth = decision, varied.worth(decision, runs=1)
    for job in several:
        for levels in _levels_of_axes(view, best, job):
            if varied.played >= plays:
                break
            tried = _with_levels_of(best, job, levels)
            value = varied.worth(tried, runs=1)
            if value[0] >= worth[0] and value[1] > worth[1] * (1 + GAINS):
                best, worth = tried, value
    return best if best is not decision and varied.is_better(best, decision) else decision


def _levels_of_axes(view: View, decision: Decision, job: int) -> Iterator[AxisLevels]:
    """Levels for what blocks and for gradients, next to the job's own first."""
    level, most = decision.levels[job] or 0, (view.levels or len(view.jobs)) - 1
    blocking = [axis for axis in axes_of(view.jobs[job]) if axis != GRADIENTS]
    pairs = ((level - 1, level), (level, level + 1), (level - 1, level + 1), (0, level), (0, most))
    tried = set()
    for above, below in pairs:
        pair = max(above, 0), min(below, most)
        if pair[0] < pair[1] and pair not in tried:
            tried.add(pair)
            yield (*((axis, pair[0]) for axis in blocking), (GRADIENTS, pair[1]))


def _with_levels_of(decision: Decision, job: int, levels: AxisLevels) -> Decision:
    axis_levels = list(decision.axis_levels or ((),) * len(decision.paths))
    axis_levels[job] = levels
    return replace(decision, axis_levels=tuple(axis_levels))


def with_offsets(view: View, decision: Decision, *, plays: int, cap: float | None = None) -> Decision:
    """Return the decision, in which jobs may begin later and be held to a period that they have in common, where that
    gains; at most `plays` cases are played, and no more are begun."""
    seconds = link_seconds(view, decision.paths)
    if not contending_jobs(seconds):
        return decision
    varied = Varied(view, cap)
    best, worth = decision, varied.worth(decision, runs=1)
    for candidate in _begins(view, decision, varied):
        if varied.played >= plays:
            break
        value = varied.worth(candidate, runs=1)
        if value > worth:
            best, worth = candidate, value
    best = _turned(view, best, varied, plays)
    return best if best is not decision and varied.is_better(best, decision) else decision


def _begins(view: View, decision: Decision, varied: Varied) -> Iterator[Decision]:
    """CASSINI's shifts on the decision's paths, then with periods: each iteration as it is planned, a part or several
    of the others'."""
    on_paths = with_paths(view, decision.paths)
    seconds = link_seconds(on_paths, [job.now for job in on_paths.jobs])
    yield replace(decision, offsets_s=shifts(on_paths, seconds))
    rates = varied.rehearsals[0].rates_of(decision)
    jobs = contending_jobs(seconds)
    planned_s = sorted({round(1 / rates[job], 9) for job in jobs if rates[job] > 0}, reverse=True)
    for common_s in planned_s[:4]:
        for longer in (1.0, 1.03):
            periods_s = periods_of(view, jobs, rates, common_s * longer)
            if any(periods_s):
                held = replace(
                    on_paths,
                    jobs=tuple(
                        replace(job, alone_s=max(period_s or 0.0, job.alone_s))
                        for job, period_s in zip(on_paths.jobs, periods_s, strict=True)
                    ),
                )
                offsets_s = shifts(held, seconds)
                yield replace(decision, offsets_s=offsets_s, periods_s=periods_s)


def periods_of(view: View, jobs: Sequence[int], rates: Sequence[float], common_s: float) -> tuple[float | None, ...]:
    """Return the periods that jobs can be held to: whole parts of the common one, or several of it; None of one that
    would be held much longer than it takes anyway."""
    periods_s: list[float | None] = [None] * len(view.jobs)
    for job in jobs:
        alone_s = view.jobs[job].alone_s
        period_s = common_s / floor(common_s / alone_s) if alone_s <= common_s else common_s * ceil(alone_s / common_s)
        if period_s * rates[job] <= MOST_HELD:
            periods_s[job] = period_s
    return tuple(periods_s)


MOST_HELD = 1.05
"""A job is held to no more than this of what its iteration takes."""


def _turned(view: View, decision: Decision, varied: Varied, plays: int) -> Decision:
    """One job after the other begins when it is best, as long as that gains."""
    worth, better = varied.worth(decision, runs=1), True
    order = decision.order or contending_jobs(link_seconds(view, decision.paths))
    while better and varied.played < plays:
        better = False
        for job in order[1:]:
            period_s = (extras_of(decision).periods_s[job] or view.jobs[job].alone_s) / TURNS
            for turn in range(TURNS):
                if varied.played >= plays:
                    return decision
                offsets_s = list(decision.offsets_s)
                offsets_s[job] = turn * period_s
                tried = replace(decision, offsets_s=tuple(offsets_s))
                value = varied.worth(tried, runs=1)
                if value[0] >= worth[0] and value[1] > worth[1] * (1 + GAINS):
                    decision, worth, better = tried, value, True
    return decision
