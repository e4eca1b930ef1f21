"""All that a simulation holds at one time, and the small steps that change it."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from math import isfinite, isqrt
from traceback import extract_tb

from planner.many_jobs.jobs.records import (
    CellBook,
    Decision,
    Grant,
    Job,
    JobState,
    NodeView,
    Policy,
    Pool,
    Reservation,
    Use,
)
from planner.many_jobs.placers.moves import Seated
from planner.many_jobs.simulation.asking_placers import Sitting
from planner.many_jobs.simulation.placing import PoolNodes
from planner.many_jobs.simulation.settings import Placement, PolicyError, Settings, Truth
from planner.many_jobs.simulation.sharing import Shared
from planner.many_jobs.simulation.states import ActiveJob, Clock
from planner.many_jobs.simulation.totals import SERIES, JobTable, Totals
from planner.many_jobs.simulation.truth import cells_truth
from planner.many_jobs.simulation.turn_groups import Turns, interleaved
from profiles.cluster import SiteLink
from profiles.errors import InputError, MachineError
from profiles.network import PLAIN, Network

END, REPAIR, FAIL, RESTARTED = range(4)
"""Kinds of events, in the order in which those of one time are taken. Arrivals come after FAIL, then the decision, and
RESTARTED last: a job whose restart ends at this instant has made no progress yet."""

Event = tuple[float, int, int, int, object]
"""Time, kind, number of the job or node, version (jobs) or count (nodes), and what it is about. The first four are
unique, so the order of events of one time does not depend on when they were made."""

Slice = tuple[int, str, int, int, float, float, float]
"""Number of the job, pool, node, devices as bits, from, restarting until, to."""


Moved = tuple[int, float, float]
"""Number of a job that was moved, when, and the device-seconds that its restart takes."""


class RunState:
    """One simulation. The view, the engine's steps and the checkpoint share it."""

    def __init__(
        self, jobs: Sequence[Job], pools: Mapping[str, Pool], cells: CellBook, policy: Policy, settings: Settings
    ) -> None:
        self.jobs, self.cells, self.policy, self.settings = jobs, cells, policy, settings
        self.pools = dict(pools)
        self.nodes = {name: PoolNodes(pool.nodes, pool.devices_per_node) for name, pool in pools.items()}
        self.free = {name: pool.devices for name, pool in pools.items()}
        self.truth: Truth = settings.truth or cells_truth(cells)
        self.turns = Turns()
        self.shared = None if settings.sharing is None else Shared(settings.sharing, partial(interleaved, self.use))
        self.sitting = Sitting()
        self.asked: dict[tuple[object, str, int], float | None] = {}
        self.clock = Clock()
        self.clock.now_s = jobs[0].submit_s if jobs else 0.0
        # Before the first job comes nothing is to be decided: what is known by then is announced then.
        self.announcements = sorted(
            (max(job.planned.known_s, self.clock.now_s), number)
            for number, job in enumerate(jobs)
            if job.planned is not None
        )
        self.next_announcement = 0
        self.calendar_s = -math.inf
        self.planned: dict[str, Job] = {}
        self.reservations: dict[str, Reservation] = {}
        self.waiting: dict[str, ActiveJob] = {}
        self.place_by_s: dict[str, float] = {}
        self.running: dict[str, ActiveJob] = {}
        self.arrived: list[str] = []
        self.departed: list[str] = []
        self.events: list[Event] = []
        self.next_arrival = 0
        self.next_round = 0
        self.removed = 0
        self.stalled = 0
        self.table = JobTable(len(jobs))
        self.totals = Totals(self.clock.now_s, sum(self.free.values()))
        self.ended: list[int] = []
        self.ended_after: list[int] = []
        self.given_up: dict[int, str] = {}
        self.granted: set[tuple[tuple[str, int], ...]] = set()
        self.series: tuple[list[float], ...] = tuple([] for _ in SERIES)
        self.slices: list[Slice] = []
        self.moves: list[Moved] = []
        self.seated: dict[int, tuple[float | None, Seated]] = {}
        self.sent_up: dict[tuple[str, int, int], float] = {}
        self.calls_s, self.calls_cpu_s = array("d"), array("d")
        self.view = RunView(self)

    def push(self, time_s: float, kind: int, number: int, version: int, about: object) -> None:
        """Something will happen."""
        heappush(self.events, (time_s, kind, number, version, about))

    def pop(self) -> Event:
        """The next event, which is taken off the list."""
        return heappop(self.events)

    def ask(self) -> Decision:
        """What the policy decides now; how long it took is kept. PolicyError where it fails or answers nonsense."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        try:
            decision = self.policy.decide(self.view)
        except (InputError, MachineError):
            raise
        except Exception as error:
            last = extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            raise self.error(None, failure, "a decision") from error
        if not isinstance(decision, Decision):
            raise self.error(None, f"{type(decision).__name__} {decision!r:.80}", "a Decision")
        self.calls_cpu_s.append(time.process_time() - began_cpu_s)
        self.calls_s.append(time.perf_counter() - began_s)
        return decision

    def count_nodes(self) -> None:
        """Bring what is counted of nodes to the present state."""
        in_use = idle = least = devices = 0
        for name, nodes in self.nodes.items():
            held = self.pools[name].devices - self.free[name]
            used = nodes.nodes - nodes.idle - len(nodes.down)
            in_use, idle, devices = in_use + used, idle + nodes.idle, devices + used * nodes.size
            least -= -held // nodes.size
        totals = self.totals
        totals.in_use, totals.idle_nodes, totals.least_nodes, totals.devices_in_use = in_use, idle, least, devices

    def wait(self, state: ActiveJob) -> None:
        """The job waits, behind all who do."""
        self.waiting[state.job.id] = state

    def place_later(self, state: ActiveJob, until_s: float) -> None:
        """The rule of placement lets the job wait: no longer than it said first."""
        if state.place_by_s is None:
            state.place_by_s = self.place_by_s[state.job.id] = until_s

    def stop_waiting(self, state: ActiveJob) -> None:
        """The job waits no longer. A dict that is emptied at its head gets slow to read from there, so it is made anew
        now and then."""
        waiting = self.waiting
        del waiting[state.job.id]
        self.place_by_s.pop(state.job.id, None)
        self.removed += 1
        if self.removed > 64 + 8 * isqrt(len(waiting)):
            self.removed = 0
            kept = list(waiting.items())
            waiting.clear()
            waiting.update(kept)

    def iteration_s(self, job: Job, grant: Grant, placement: Placement | None) -> float | None:
        """What an iteration really takes; PolicyError where a truth answers nonsense."""
        seconds = self.truth(job, grant, placement)
        if seconds is not None and not (isfinite(seconds) and seconds > 0):
            raise self.error(job.id, f"{seconds} s for an iteration on {describe(grant)}", "a finite time above 0")
        return seconds

    def use(self, job: Job, grant: Grant) -> Use | None:
        """What an iteration of the job's Cell needs; None where nobody knows."""
        return None if self.settings.uses is None else self.settings.uses(job, grant)

    def error(self, job: str | None, decided: str, expected: str) -> PolicyError:
        """A PolicyError that says who, when and which job."""
        about = "" if job is None else f", job {job}"
        where = f"policy {self.policy.name} at {self.clock.now_s:g} s{about}"
        return PolicyError(where=where, found=decided, expected=expected)


class RunView:
    """A `planner.many_jobs.jobs.records.View` of a run: live, nothing is copied."""

    __slots__ = (
        "_run",
        "cells",
        "free",
        "networks",
        "nodes",
        "planned",
        "pools",
        "reservations",
        "running",
        "site_links",
        "waiting",
    )

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.cells: CellBook = run.cells
        self.site_links: Sequence[SiteLink] = run.settings.site_links
        self.pools: Mapping[str, Pool] = run.pools
        self.free: Mapping[str, int] = run.free
        self.waiting: Mapping[str, JobState] = run.waiting
        self.running: Mapping[str, JobState] = run.running
        self.nodes: Mapping[str, NodeView] = run.nodes
        self.networks: Mapping[str, Network] = {name: run.settings.networks.get(name, PLAIN) for name in run.pools}
        self.planned: Mapping[str, Job] = run.planned
        self.reservations: Mapping[str, Reservation] = run.reservations

    @property
    def now_s(self) -> float:
        """The time of day."""
        return self._run.clock.now_s

    @property
    def arrived(self) -> Sequence[str]:
        """Ids submitted since the last decision."""
        return self._run.arrived

    @property
    def departed(self) -> Sequence[str]:
        """Ids that finished or were dropped since the last decision."""
        return self._run.departed

    def neighbours(self, id_: str) -> Collection[str]:
        """Ids of the running jobs that share something with this one."""
        state, shared = self._run.running.get(id_), self._run.shared
        if state is None:
            return ()
        mates = tuple(mate.job.id for mate in self._run.turns.mates(state) if mate is not state)
        return mates if shared is None else mates + shared.neighbours(state.index)

    def iteration_time_s(self, job: Job, grant: Grant) -> float | None:
        """What an iteration really takes, on whatever nodes the job may get."""
        return self._run.iteration_s(job, grant, None)

    def use(self, job: Job, grant: Grant) -> Use | None:
        """What an iteration of the job's Cell needs of devices and links."""
        return self._run.use(job, grant)

    def restart_s(self, job: Job) -> float:
        """One figure for all policies."""
        return restart_s(self._run.settings, job)

    def predicted_duration_s(self, job: Job) -> float | None:
        """What the predictor said when the job was submitted."""
        state = self._run.waiting.get(job.id) or self._run.running.get(job.id)
        return None if state is None else state.predicted_s

    def predicted_interval_s(self, job: Job) -> tuple[float, float] | None:
        """What the predictor said when the job was submitted."""
        state = self._run.waiting.get(job.id) or self._run.running.get(job.id)
        return None if state is None else state.predicted_interval_s


def first_multiple(time_s: float, interval_s: float) -> int:
    """Return the number of the first multiple of an interval at `time_s` or after."""
    number = math.ceil(time_s / interval_s)
    while number * interval_s < time_s:
        number += 1
    while (number - 1) * interval_s >= time_s:
        number -= 1
    return number


def restart_s(settings: Settings, job: Job) -> float:
    """Seconds that a change of grant, or coming back, costs."""
    return settings.restart_s + job.checkpoint_bytes / settings.storage_bandwidth_bytes_per_s


def describe(grant: Grant) -> str:
    """`4 of a40 + 2 of a10 in 2 stages`, `4 of a40 + 2 of a10 by tpa`."""
    parts = " + ".join(f"{count} of {pool}" for pool, count in grant.parts)
    if grant.planner:
        parts += f" by {grant.planner}"
    if grant.stages is not None:
        parts += f" in {grant.stages} stages"
    return f"{parts}, in turns {grant.turns!r}" if grant.turns else parts
