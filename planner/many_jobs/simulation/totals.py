"""What is summed while a simulation runs: over time, and for each job that ends."""

from __future__ import annotations

from array import array
from math import nan

from profiles.records import dataclass

UNFINISHED, FINISHED, DROPPED = 0, 1, 2
STATUS = ("unfinished", "finished", "dropped")

SERIES = ("time_s", "throughput", "devices_held", "devices_working", "waiting", "running", "nodes_in_use")
"""Columns of the time series: the state from `time_s` on. `throughput` is the sum of running jobs' relative rates.
What an earlier version did not keep is NaN."""


@dataclass(slots=True, eq=False)
class Totals:
    """Integrals over time of what holds between two events, peaks, and counts. Of nodes `in_use`, with `devices_in_use`
    in all, jobs hold a device at least; `idle_nodes` work and nobody holds any; `least_nodes` is how many would hold
    what is held. All this is NaN of a run that went on from a checkpoint of a version that did not count it. Jobs stand
    still for `reopening_device_s` while their connections are opened anew."""

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
    in_use: int = 0
    idle_nodes: int = 0
    least_nodes: int = 0
    devices_in_use: int = 0
    peak_in_use: float = 0
    in_use_s: float = 0.0
    idle_nodes_s: float = 0.0
    least_nodes_s: float = 0.0
    devices_in_use_s: float = 0.0
    starts_on_several: float = 0
    scattered: float = 0
    held_back: float = 0
    reopening_device_s: float = 0.0

    def advance(self, now_s: float, waiting: int, running: int) -> None:
        """All stays as it is until `now_s`."""
        span_s = now_s - self.now_s
        self.now_s = now_s
        self.held_s += self.held * span_s
        self.working_s += self.working * span_s
        self.waiting_s += waiting * span_s
        self.jobs_s += (waiting + running) * span_s
        self.throughput_s += self.throughput * span_s
        self.in_use_s += self.in_use * span_s
        self.idle_nodes_s += self.idle_nodes * span_s
        self.least_nodes_s += self.least_nodes * span_s
        self.devices_in_use_s += self.devices_in_use * span_s
        if self.in_use > self.peak_in_use and span_s > 0:
            self.peak_in_use = self.in_use
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
    the Cell that it asked for, `nodes` on how many it started last (0: it never did), `cross_node_bytes` what it sent
    between nodes (NaN of a model that is not known), `revenue` what its devices were sold for (NaN where one has no
    price, 0 where none has), `seats_cost_s` how much longer its iterations took than on its Cells, by its seats and by
    those beside it (0 where neither has a price). Where jobs slow each other: `progress_s` is all that its iterations
    took, `lost_to_others_s` how much longer than if it had been alone where it sat, `contended_s` what those of them
    took that others slowed; where it is known what an iteration computes, `busy_device_s` the seconds in which devices
    computed, summed over them, and `flops` what they did (NaN of a job that has no model)."""

    __slots__ = (
        "asked_s",
        "attained_device_s",
        "busy_device_s",
        "contended_s",
        "cross_node_bytes",
        "end_s",
        "failures",
        "flops",
        "lost_to_others_s",
        "nodes",
        "progress_s",
        "restarts",
        "revenue",
        "seats_cost_s",
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
        self.nodes = array("q", [0]) * jobs
        self.cross_node_bytes = array("d", [0.0]) * jobs
        self.revenue = array("d", [0.0]) * jobs
        self.seats_cost_s = array("d", [0.0]) * jobs
        self.progress_s = array("d", [0.0]) * jobs
        self.lost_to_others_s = array("d", [0.0]) * jobs
        self.contended_s = array("d", [0.0]) * jobs
        self.busy_device_s = array("d", [0.0]) * jobs
        self.flops = array("d", [0.0]) * jobs
