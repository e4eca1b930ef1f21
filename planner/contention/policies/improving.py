"""Levels by axis on top of paths and levels: what blocks before what hides, where the mean of runs in which jobs vary
gains."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from planner.contention.policies.axes import AxisLevels, axes_of
from planner.contention.policies.records import Decision, View
from planner.contention.policies.varied import GAINS, JITTER, KNOWN, Varied

GRADIENTS = "dp"
"""The axis of gradient sums, which compute hides; what other axes send blocks."""


def with_axis_levels(
    view: View, decision: Decision, *, plays: int, cap: float | None = None, jitter: float = JITTER
) -> Decision:
    """Return the decision, in which jobs may have one level for what blocks and a lower one for their gradient sums,
    where that gains. Jobs come in the order of the decision. At most `plays` cases are played to find it, and those in
    which it is held against the decision in the end.

    Args:
        view: the jobs on their fabric.
        decision: what to improve; its paths and levels stay.
        plays: cases that may be played.
        cap: on every job's slowdown, as nothing varies; it is broken by no more than before.
        jitter: the share by which compute varies.
    """
    several = [job for job in decision.order if {GRADIENTS} < set(axes_of(view.jobs[job]))]
    if not several or view.levels == 1 or plays < 2 * len(KNOWN):  # too few to try anything
        return decision
    varied = Varied(view, cap, jitter=jitter)
    best, work, better = decision, varied.work(decision), True
    while better:
        better = False
        for job in several:
            for levels in _levels_of_axes(view, best, job):
                tried = _with_levels_of(best, job, levels)
                if varied.played + varied.would_play(tried) > plays:
                    continue
                value = varied.work(tried)
                if value > work * (1 + GAINS) and varied.keeps_cap(tried, decision):
                    best, work, better = tried, value, True
    return best if best is not decision and varied.is_better(best, decision) else decision


def _levels_of_axes(view: View, decision: Decision, job: int) -> list[AxisLevels]:
    """Levels for what blocks, and lower ones for gradients; those next to the job's own first."""
    own, count = decision.levels[job] or 0, view.levels or len(view.jobs)
    blocking = [axis for axis in axes_of(view.jobs[job]) if axis != GRADIENTS]
    pairs = sorted(combinations(range(count), 2), key=lambda it: (abs(it[0] - own) + abs(it[1] - own), it))
    return [(*((axis, above) for axis in blocking), (GRADIENTS, below)) for above, below in pairs]


def _with_levels_of(decision: Decision, job: int, levels: AxisLevels) -> Decision:
    axis_levels = list(decision.axis_levels or ((),) * len(decision.paths))
    axis_levels[job] = levels
    return replace(decision, axis_levels=tuple(axis_levels))
