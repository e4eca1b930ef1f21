"""Shortest job first, by predicted completion time."""

from __future__ import annotations

from planner.many_jobs.jobs.records import Decision, Grant, JobState, Stateless, View
from planner.many_jobs.scheduling.queueing import (
    as_asked,
    can_run,
    decision_for,
    expected_duration_s,
    expected_remaining_s,
    take_in_order,
)


class ShortestFirst(Stateless):
    """The waiting jobs by predicted duration, shortest first (with a predictor of completion times as in Arnold
    appendix G; without one, by the duration that the job came with).

    Each starts with what it asked for where that is free. One that does not fit is passed over; with `strict` it stops
    its pool's queue instead, so that large short jobs are not starved by small long ones.

    Args:
        preemptive: shortest *remaining* time first: running jobs are suspended for shorter ones. A waiting job's
            remaining time counts the restart that displacing somebody costs, so that equals do not alternate.
        strict: see above; without preemption only.
        by_area: devices times seconds instead of seconds (smallest area first, the better rule for the mean where
            jobs are of many sizes).
    """

    name = "sjf"

    def __init__(self, *, preemptive: bool = False, strict: bool = False, by_area: bool = False) -> None:
        self._preemptive, self._strict, self._by_area = preemptive, strict, by_area

    def decide(self, view: View) -> Decision:
        """The shortest that fit."""
        if self._preemptive:
            everyone = [*view.running.values(), *view.waiting.values()]
            ordered = sorted(everyone, key=lambda state: self._remaining(view, state))
            return decision_for(view, take_in_order(view, ordered))
        free, grants, closed = dict(view.free), dict[str, Grant | None](), set[str]()
        candidates = [state for state in view.waiting.values() if self._strict or _fits(free, state)]
        for state in sorted(candidates, key=lambda state: self._length(view, state)):
            job = state.job
            if job.pool in closed or not can_run(view, job):
                continue
            if _fits(free, state):
                free[job.pool] -= job.devices
                grants[job.id] = as_asked(job)
            elif self._strict:
                closed.add(job.pool)
        return Decision(grants=grants)

    def _length(self, view: View, state: JobState) -> float:
        return expected_duration_s(view, state.job) * self._weight(state)

    def _remaining(self, view: View, state: JobState) -> float:
        restart_s = view.restart_s(state.job) if state.grant is None and not state.attained_device_s else 0.0
        return (expected_remaining_s(view, state) + restart_s) * self._weight(state)

    def _weight(self, state: JobState) -> int:
        return state.job.devices if self._by_area else 1


def _fits(free: dict[str, int], state: JobState) -> bool:
    return free.get(state.job.pool, 0) >= state.job.devices
