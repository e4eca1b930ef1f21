"""What is summed while a simulation runs: over time, and for each job that ends."""

from __future__ import annotations

from array import array
from math import nan

from profiles.records import dataclass

UNFINISHED, FINISHED, DROPPED = 0, 1, 2
STATUS = ("unfinished", "finished", "dropped")

SERIES = ("time_s", "throughput", "devices_held", "devices_working", "waiting", "running")
"""Columns of the time series: the state from `time_s` on. `throughput` is the sum of running jobs' relative rates."""


@dataclass(slots=True, eq=False)
class Totals:
    """Integrals over time of what holds between two events, peaks, and counts."""

    now_s: float
    working: int
    held: int = 0
    producing: int = 0
    decisions: int = 0
    failures: int = 0
    violations: int = 0
    throughput: float = 0.0
    peak_throughput: float = 0.0
    lost_iterations: float = 0.0
    held_s: float = 0.0
    working_s: float = 0.0
    jobs_s: float = 0.0
    waiting_s: float = 0.0
    throughput_s: float = 0.0

    def advance(self, now_s: float, waiting: int, running: int) -> None:
        """All stays as it is until `now_s`."""
        span_s = now_s - self.now_s
        self.now_s = now_s
        self.held_s += self.held * span_s
        self.working_s += self.working * span_s
        self.waiting_s += waiting * span_s
        self.jobs_s += (waiting + running) * span_s
        self.throughput_s += self.throughput * span_s
        if self.throughput > self.peak_throughput and span_s > 0:
            self.peak_throughput = self.throughput

    def produce(self, rate: float) -> None:
        """A job of that relative rate begins to make progress."""
        self.producing += 1
        self.throughput += rate

    def pause(self, rate: float) -> None:
        """It stops."""
        self.producing -= 1
        self.throughput = self.throughput - rate if self.producing else 0.0


class JobTable:
    """What became of each job, by its number in order of submission. Times are NaN where there was no such time;
    `sharing` is the time-averaged number of jobs in the system while this one was, `asked_s` an iteration's seconds on
    the Cell that it asked for."""

    __slots__ = (
        "asked_s",
        "attained_device_s",
        "end_s",
        "failures",
        "restarts",
        "sharing",
        "start_s",
        "status",
        "waited_s",
    )

    def __init__(self, jobs: int) -> None:
        self.status = bytearray(jobs)
        self.start_s = array("d", [nan]) * jobs
        self.end_s = array("d", [nan]) * jobs
        self.waited_s = array("d", [0.0]) * jobs
        self.attained_device_s = array("d", [0.0]) * jobs
        self.asked_s = array("d", [nan]) * jobs
        self.sharing = array("d", [nan]) * jobs
        self.restarts = array("q", [0]) * jobs
        self.failures = array("q", [0]) * jobs
