"""A job that has arrived and not ended, and what the policy sees of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from planner.many_jobs.jobs.records import Grant, Job
from planner.many_jobs.simulation.placing import Pieces
from profiles.records import dataclass


@dataclass(slots=True)
class Clock:
    """The time of day, which all states share."""

    now_s: float = 0.0


@dataclass(slots=True, eq=False)
class ActiveJob:
    """A `planner.many_jobs.jobs.records.JobState`. What grows with time is kept as of `since_s`, when the job
    last got or lost devices, or changed its speed, and read as of the clock; iterations fall from `progress_from_s` on,
    when its restart is over. It began to make progress under its grant at `began_s`, with `began_with` iterations to
    do. `place_by_s`: the rule of placement lets it wait until then at most. `alone_s`: what an iteration would take
    where it sits if all others were gone. `held`: its devices, of those that several take turns on its equal part."""

    job: Job
    index: int
    clock: Clock
    reference_s: float
    jobs_before: float
    grant: Grant | None = None
    granted_s: float | None = None
    first_start_s: float | None = None
    predicted_s: float | None = None
    predicted_interval_s: tuple[float, float] | None = None
    placement: Mapping[str, Pieces] = field(default_factory=dict)
    held: float = 0
    restarts: int = 0
    failures: int = 0
    version: int = 0
    producing: bool = False
    remaining_at: float = field(init=False)
    done: float = 0.0
    attained_at: float = 0.0
    waited_at: float = 0.0
    since_s: float = field(init=False)
    began_s: float = 0.0
    began_with: float = 0.0
    progress_from_s: float = 0.0
    place_by_s: float | None = None
    iteration_time_s: float = 0.0
    alone_s: float = 0.0
    relative_rate: float = 0.0

    def __post_init__(self) -> None:
        self.remaining_at, self.since_s = self.job.iterations, self.job.submit_s

    @property
    def remaining_iterations(self) -> float:
        """Iterations still to do, now."""
        if self.grant is None:
            return self.remaining_at
        ran_s = self.clock.now_s - self.progress_from_s
        return self.remaining_at if ran_s <= 0 else max(0.0, self.remaining_at - ran_s / self.iteration_time_s)

    @property
    def iteration_now_s(self) -> float | None:
        """Seconds of an iteration beside those who share something with it now; None while it waits."""
        return None if self.grant is None else self.iteration_time_s

    @property
    def iteration_alone_s(self) -> float | None:
        """Seconds of an iteration where it sits if all others were gone; None while it waits."""
        return None if self.grant is None else self.alone_s

    @property
    def unsettled_iterations(self) -> float:
        """Iterations done since the figures were last brought to now."""
        ran_s = self.clock.now_s - self.progress_from_s
        if self.grant is None or ran_s <= 0:
            return 0.0
        return min(ran_s / self.iteration_time_s, self.remaining_at)

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
        did = self.unsettled_iterations
        if self.grant is None:
            self.waited_at += span_s
        else:
            self.attained_at += self.held * span_s
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
