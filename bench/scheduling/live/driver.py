"""A policy over machines that really work: the simulator's view, checks and placement, with a clock on the wall.

What the simulator foresees is seen here: how far a job is, and when it ends, its machines say. All else is the code
that simulates: the policy gets the same view, its decision is checked and placed by
`planner.many_jobs.simulation.applying`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from planner.many_jobs.jobs.records import CellBook, Grant, Job, Policy, Pool
from planner.many_jobs.simulation.applying import apply_decision, end_job, finish, give_up
from planner.many_jobs.simulation.engine import STALLED_DECISIONS, take_arrivals
from planner.many_jobs.simulation.result import Result, make_result
from planner.many_jobs.simulation.run_state import RunState
from planner.many_jobs.simulation.settings import Placement, Settings
from planner.many_jobs.simulation.states import ActiveJob
from planner.many_jobs.simulation.totals import FINISHED
from planner.many_jobs.simulation.zones import next_in_calendar_s, turn_calendar
from profiles.errors import InputError


class Machines(Protocol):
    """What the jobs run on. Iterations are counted from a job's last start."""

    def now_s(self) -> float:
        """Seconds since the beginning."""

    def start(self, job: Job, grant: Grant, placement: Placement, iterations: int) -> None:
        """Let the job do so many iterations there; does not wait for it."""

    def stop(self, ids: Sequence[str]) -> None:
        """Stop these jobs when each has ended the iteration that it is in, and wait until all have. One that has done
        all its iterations meanwhile counts as stopped, and is no longer among `ended`."""

    def done(self, id_: str) -> int:
        """Iterations that the job has done since its last start, also after it was stopped or ended."""

    def ended(self, timeout_s: float) -> Sequence[str]:
        """The jobs that did all their iterations, each told once; waits so long (infinity: for ever) for the first."""


def run_live(
    jobs: Sequence[Job],
    pools: Mapping[str, Pool],
    cells: CellBook,
    policy: Policy,
    machines: Machines,
    *,
    settings: Settings | None = None,
) -> Result:
    """Run all jobs under the policy on real machines until none is left, and return what became of them.

    Of `settings` what policies see counts (`truth`, `restart_s`, `predictor`) and `round_s`; costs of starts are
    whatever they are. In the result the throughput is that of iterations really done, and has no peak (0). A job loses
    nothing by being stopped but the time; its iterations must be whole.

    Raises:
        InputError: a job of a part of an iteration.
        settings.PolicyError: the policy decides what cannot be.
    """
    settings = settings or Settings()
    for job in jobs:
        if not (float(job.iterations).is_integer() and job.iterations > 0):
            where = f"job {job.id}"
            raise InputError(where=where, key="iterations", found=job.iterations, expected="a whole number above 0")
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    live = _Live(RunState(ordered, pools, cells, policy, settings), machines)
    live.run_all()
    return make_result(live.run)


class _Live:
    """One live run. `before` holds the iterations that each job did before its last start; `on` who works."""

    def __init__(self, run: RunState, machines: Machines) -> None:
        self.run, self.machines = run, machines
        self.before: dict[str, int] = {}
        self.on: dict[str, ActiveJob] = {}

    def run_all(self) -> None:
        run = self.run
        while run.waiting or run.running or run.next_arrival < len(run.jobs):
            ended = self.machines.ended(max(0.0, self._next_s() - self.machines.now_s()))
            self._read_clock()
            for id_ in ended:
                self.before[id_] += self.machines.done(id_)
                finish(run, self.on.pop(id_))
            happened = take_arrivals(run, run.clock.now_s) or bool(ended)
            happened = turn_calendar(run, run.clock.now_s) or happened
            if self._is_due(happened=happened):
                self._decide()
            over = not run.running and not run.reservations and run.next_arrival == len(run.jobs)
            if over and self._stalls():
                for state in list(run.waiting.values()):
                    give_up(run, state, f"policy {run.policy.name} leaves it waiting for ever")
        done = ((number, self.before.get(job.id, 0)) for number, job in enumerate(run.jobs))
        run.totals.throughput_s = math.fsum(count * run.table.asked_s[number] for number, count in done if count)
        run.totals.peak_throughput = 0.0

    def _next_s(self) -> float:
        """When the next thing is due that no machine tells."""
        run, round_s = self.run, self.run.settings.round_s
        next_s = run.jobs[run.next_arrival].submit_s if run.next_arrival < len(run.jobs) else math.inf
        next_s = min(next_s, next_in_calendar_s(run))
        if round_s is None:
            return next_s
        if not (run.waiting or run.running):  # The first round is the one after the next arrival.
            run.next_round = max(run.next_round, math.ceil(next_s / round_s))
            return next_s
        return min(next_s, run.next_round * round_s)

    def _read_clock(self) -> None:
        """All figures as of now: who works is as far as the machines say."""
        run = self.run
        now_s = max(run.clock.now_s, self.machines.now_s())
        run.totals.advance(now_s, len(run.waiting), len(run.running))
        run.clock.now_s = now_s
        for id_, state in self.on.items():
            self._count(state, self.before[id_] + self.machines.done(id_))

    def _count(self, state: ActiveJob, done: int) -> None:
        state.done = float(done)
        state.remaining_at = state.job.iterations - done
        state.progress_from_s = self.run.clock.now_s

    def _is_due(self, *, happened: bool) -> bool:
        run, round_s = self.run, self.run.settings.round_s
        if round_s is None:
            return happened
        if run.clock.now_s < run.next_round * round_s:
            return False
        run.next_round = math.floor(run.clock.now_s / round_s) + 1
        return True

    def _stalls(self) -> bool:
        self.run.stalled += 1
        return self.run.settings.round_s is None or self.run.stalled > STALLED_DECISIONS

    def _decide(self) -> None:
        """Decide and carry it out; again, as long as jobs end while they are being stopped."""
        run = self.run
        again = True
        while again and (run.waiting or run.running or run.departed or run.planned):
            versions = {id_: state.version for id_, state in self.on.items()}
            decision = run.ask()
            run.totals.decisions += 1
            run.arrived, run.departed = [], []
            apply_decision(run, decision)
            run.events.clear()  # What is foreseen there, the machines will tell.
            again = self._stop([id_ for id_, version in versions.items() if self.on[id_].version != version])
            for id_, state in run.running.items():
                if id_ not in self.on and state.grant is not None:
                    self.on[id_] = state
                    self.before.setdefault(id_, 0)
                    self.machines.start(state.job, state.grant, state.placement, int(state.remaining_at))

    def _stop(self, ids: Sequence[str]) -> bool:
        """Stop them, and count what they did until then; whether any has ended meanwhile."""
        run = self.run
        if not ids:
            return False
        self.machines.stop(ids)
        stopped = [self.on.pop(id_) for id_ in ids]
        self._read_clock()
        ended = False
        for state in stopped:
            id_ = state.job.id
            self.before[id_] += self.machines.done(id_)
            self._count(state, self.before[id_])
            if state.remaining_at > 0 or not (id_ in run.running or id_ in run.waiting):
                continue
            ended = True
            if id_ in run.running:
                finish(run, state)
            else:
                state.settle()
                run.stop_waiting(state)
                end_job(run, state, FINISHED)
        return ended
