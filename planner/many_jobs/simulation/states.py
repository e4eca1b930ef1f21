"""A job that has arrived and not ended, and what the policy sees of all."""

from __future__ import annotations

from collections.abc import Mapping

from planner.many_jobs.jobs.records import Grant, Job
from planner.many_jobs.simulation.placing import Pieces


class Clock:
    """The time of day, which all states share."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0


class ActiveJob:
    """A `planner.many_jobs.jobs.records.JobState`. What grows with time is kept as of `since_s`, when the job
    last got or lost devices, or changed its speed, and read as of the clock; iterations fall from `progress_from_s` on,
    when its restart is over. It began to make progress under its grant at `began_s`, with `began_with` iterations to
    do."""

    __slots__ = (
        "attained_at",
        "began_s",
        "began_with",
        "clock",
        "done",
        "failures",
        "first_start_s",
        "grant",
        "granted_s",
        "held",
        "index",
        "iteration_time_s",
        "job",
        "jobs_before",
        "placement",
        "predicted_s",
        "producing",
        "progress_from_s",
        "reference_s",
        "relative_rate",
        "remaining_at",
        "restarts",
        "since_s",
        "version",
        "waited_at",
    )

    def __init__(self, job: Job, index: int, clock: Clock, *, reference_s: float, jobs_before: float) -> None:
        self.job, self.index, self.clock = job, index, clock
        self.grant: Grant | None = None
        self.granted_s: float | None = None
        self.first_start_s: float | None = None
        self.placement: Mapping[str, Pieces] = {}
        self.held = self.restarts = self.failures = self.version = 0
        self.remaining_at = job.iterations
        self.done = 0.0
        self.attained_at = self.waited_at = 0.0
        self.since_s = job.submit_s
        self.began_s = self.began_with = 0.0
        self.progress_from_s = self.iteration_time_s = self.relative_rate = 0.0
        self.producing = False
        self.reference_s = reference_s
        self.predicted_s: float | None = None
        self.jobs_before = jobs_before

    @property
    def remaining_iterations(self) -> float:
        """Iterations still to do, now."""
        if self.grant is None:
            return self.remaining_at
        ran_s = self.clock.now_s - self.progress_from_s
        return self.remaining_at if ran_s <= 0 else max(0.0, self.remaining_at - ran_s / self.iteration_time_s)

    @property
    def attained_device_s(self) -> float:
        """Devices times seconds held, up to now."""
        return self.attained_at + self.held * (self.clock.now_s - self.since_s)

    @property
    def waited_s(self) -> float:
        """Seconds without devices, up to now."""
        return self.waited_at if self.grant is not None else self.waited_at + (self.clock.now_s - self.since_s)

    def settle(self) -> float:
        """Bring all figures to now; returns the iterations done since they last were."""
        now_s = self.clock.now_s
        span_s = now_s - self.since_s
        did = 0.0
        if self.grant is None:
            self.waited_at += span_s
        else:
            self.attained_at += self.held * span_s
            ran_s = now_s - self.progress_from_s
            if ran_s > 0:
                did = min(ran_s / self.iteration_time_s, self.remaining_at)
                self.remaining_at -= did
        self.done += did
        self.since_s = now_s
        return did

    def change_speed(self, iteration_s: float) -> None:
        """From now on, or from the end of its restart, an iteration takes so long."""
        self.settle()
        self.progress_from_s = max(self.progress_from_s, self.clock.now_s)
        self.iteration_time_s, self.relative_rate = iteration_s, self.reference_s / iteration_s
        self.version += 1
