"""Later begins, and iterations held to a common period, on top of paths and levels: kept only where the mean of runs in
which jobs are late gains.

A period that jobs just fit into helps as long as none is late: then it misses its gap, and who comes after it misses
theirs. So periods are tried with slack, by how late jobs may be: a job that computes for the share c of its iteration
is late by c times the lateness of its compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, floor

from planner.contention.policies.cassini import shifts
from planner.contention.policies.keeping import with_paths
from planner.contention.policies.loads import contending_jobs, link_seconds
from planner.contention.policies.records import Decision, View
from planner.contention.policies.rehearsals import extras_of
from planner.contention.policies.varied import GAINS, JITTER, KNOWN, Varied, worst_lateness

TURNS = 8
"""Begins that are tried for a job, evenly over its period."""
SLACKS = (0.5, 0.0, 1.0, 0.25, 0.75)
"""Of the worst lateness: what periods are longer by. A half is the mean lateness."""
COMMON = 4
"""So many of the jobs' iterations are tried as the common period, the longest first."""
MOST_HELD = 1.1
"""A job is held to no more than this of what its iteration takes."""


def with_offsets(
    view: View, decision: Decision, *, plays: int, cap: float | None = None, jitter: float = JITTER
) -> Decision:
    """Return the decision, in which jobs may begin later and be held to a period that they have in common, where that
    gains. At most `plays` cases are played to find it, and those in which it is held against the decision in the end.

    Args:
        view: the jobs on their fabric.
        decision: what to improve; its paths and levels stay.
        plays: cases that may be played.
        cap: on every job's slowdown, as nothing varies; it is broken by no more than before.
        jitter: the share by which compute varies; jobs are late by several times that (`varied`).
    """
    if not contending_jobs(link_seconds(view, decision.paths)) or plays < 2 * len(KNOWN):  # too few to try anything
        return decision
    varied = Varied(view, cap, jitter=jitter)
    best, work = decision, varied.work(decision)
    for candidate in _begins(view, decision, varied):
        if varied.played + varied.would_play(candidate) > plays:
            break
        value = varied.work(candidate)
        if value > work and varied.keeps_cap(candidate, decision):
            best, work = candidate, value
    best = _turned(view, best, decision, varied, plays)
    return best if best is not decision and varied.is_better(best, decision) else decision


def _begins(view: View, decision: Decision, varied: Varied) -> Iterator[Decision]:
    """CASSINI's shifts on the decision's paths, then with periods: what an iteration takes alone or as it is planned, a
    part or several of the others', without slack and with it."""
    on_paths = with_paths(view, decision.paths)
    seconds = link_seconds(on_paths, [job.now for job in on_paths.jobs])
    yield replace(decision, offsets_s=shifts(on_paths, seconds))
    jobs, rates = contending_jobs(seconds), varied.stated.rates_of(decision)
    alone_s = sorted({view.jobs[job].alone_s for job in jobs}, reverse=True)[:COMMON]
    planned_s = sorted({round(1 / rates[job], 9) for job in jobs if rates[job] > 0}, reverse=True)[:COMMON]
    tried: set[tuple[float | None, ...]] = set()
    for common_s, slack in product((*alone_s, *planned_s), SLACKS):
        longer_s = common_s * (1 + slack * _latest(view, jobs, rates, varied.jitter))
        periods_s = periods_of(view, jobs, rates, longer_s)
        if any(periods_s) and periods_s not in tried:
            tried.add(periods_s)
            held = tuple(
                replace(job, alone_s=max(period_s or 0.0, job.alone_s))
                for job, period_s in zip(on_paths.jobs, periods_s, strict=True)
            )
            yield replace(decision, offsets_s=shifts(replace(on_paths, jobs=held), seconds), periods_s=periods_s)


def _latest(view: View, jobs: Sequence[int], rates: Sequence[float], jitter: float) -> float:
    """The share of its iteration by which any of the jobs may be late."""
    computes = (
        min(sum(step.times * step.compute_s for step in view.jobs[job].steps) * rates[job], 1.0) for job in jobs
    )
    return max(computes, default=0.0) * worst_lateness(jitter)


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


def _turned(view: View, decision: Decision, before: Decision, varied: Varied, plays: int) -> Decision:
    """One job after the other begins when it is best beside the decision before, as long as that gains."""
    work, better = varied.work(decision), True
    order = decision.order or contending_jobs(link_seconds(view, decision.paths))
    while better:
        better = False
        for job in order[1:]:
            period_s = (extras_of(decision).periods_s[job] or view.jobs[job].alone_s) / TURNS
            for turn in range(TURNS):
                offsets_s = list(decision.offsets_s)
                offsets_s[job] = turn * period_s
                tried = replace(decision, offsets_s=tuple(offsets_s))
                if varied.played + varied.would_play(tried) > plays:
                    return decision
                value = varied.work(tried)
                if value > work * (1 + GAINS) and varied.keeps_cap(tried, before):
                    decision, work, better = tried, value, True
    return decision
