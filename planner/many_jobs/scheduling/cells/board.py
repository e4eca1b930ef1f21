"""The numbers of one decision: what every Cell of every job is worth now, who has what, and what is free.

A Cell is worth w x rate x t / (t + restart): w is the objective's weight of the job, rate is relative to the Cell asked
for, and t the time until the job ends there or `horizon_s` is over. The factor is 1 on the Cell that a job runs on, and
for a first start, which costs nothing. All Cells of a running job are worth more by what its coming back would cost if
it were suspended. So a change pays only when its gain within the horizon outweighs the standstill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jobs.records import Grant, Job, JobState, View, grant
from planner.many_jobs.scheduling.cells.tables import CellRow, CellTables
from profiles.errors import InputError
from profiles.records import dataclass

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
NOTHING = -1
"""The column of a job without devices; it is worth 0."""
SHORTEST_S = 60.0
"""Jobs nearer to their end than this are weighed as if they had so long to go."""
NOT_DUE = 20.0
"""A job without a deadline is weighed as if it had so many times what it still takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Seconds of each job: still to run and in all on the Cell asked for, and since it was submitted; and the fewest
    devices, at their prices, for a relative rate of 1; `due_s` from now to the deadline (inf: none)."""

    remaining_s: Floats
    total_s: Floats
    age_s: Floats
    cost: Floats
    due_s: Floats


def _throughput(ages: Ages) -> Floats:
    return np.ones_like(ages.remaining_s)


def _completion(ages: Ages) -> Floats:
    return 1.0 / np.maximum(ages.remaining_s, SHORTEST_S)


def _fairness(ages: Ages) -> Floats:
    weights: Floats = (ages.age_s + ages.remaining_s) / np.maximum(ages.total_s, SHORTEST_S)
    return weights


def _critical(ages: Ages) -> Floats:
    longest = float(ages.remaining_s.max(initial=SHORTEST_S))
    weights: Floats = _finite_cost(ages) * (1.0 + ages.remaining_s / longest)
    return weights


def _ranked(ages: Ages, power: float) -> Floats:
    cost = _finite_cost(ages)
    left = ages.remaining_s * cost
    place = np.empty(len(left))
    place[np.lexsort((np.arange(len(left)), -left))] = np.arange(1, len(left) + 1)
    weights: Floats = cost * place**power
    return weights


def _urgent(ages: Ages) -> Floats:
    left_s = np.maximum(ages.remaining_s, SHORTEST_S)
    due_s = np.where(np.isfinite(ages.due_s), np.maximum(ages.due_s, SHORTEST_S), NOT_DUE * left_s)
    weights: Floats = np.minimum(1.0 / due_s, 4.0 / left_s) * np.sqrt(_finite_cost(ages))
    return weights


def _finite_cost(ages: Ages) -> Floats:
    return np.where(np.isfinite(ages.cost), ages.cost, 0.0)


Objective = Callable[[Ages], Floats]
OBJECTIVES: dict[str, Objective] = {
    "throughput": _throughput,
    "jct": _completion,
    "fairness": _fairness,
}
"""Weight of a job's relative rate: all alike; by the inverse of what remains, so that the sum is the rate at which jobs
end (shortest remaining time first, where one device serves one job); by the finish-time fairness that it would have on
the Cell it asked for (Themis: time in all over time alone)."""


LONG_RUN: dict[str, Objective] = {
    "throughput": _critical,
    "throughput-now": _throughput,
    "jct": lambda ages: _ranked(ages, 0.5),
    "fairness": lambda ages: _ranked(ages, 1.0),
    "deadlines": _urgent,
}
"""Weights that look beyond the moment.

Throughput over a whole run is all work over the makespan, so what counts is work a priced device, and the longest jobs
up to twice; `throughput-now` is the plain sum, for what is done up to a time before the jobs' end.

Completion times: where the speed of every job grows with the devices to the power p, the mean is least when a job of
the i-th greatest remaining size of m has the share (i/m)^(1/(1-p)) - ((i-1)/m)^(1/(1-p)) of the devices (heSRPT: Berg,
Vesilo, Harchol-Balter, Performance Evaluation 144, 2020). That is nearly what maximises the sum of i^p x speed. Here
sizes and speeds are in priced devices, and p is 0.5 (0.35 to 0.65 differ by 3% on random workloads, 1 is worse).
Finish-time fairness in the mean asks for the same with more weight on small jobs. Deadlines: the less time is left, the
more (the rate of jobs that end, 1 / remaining, times the rate that a job needs), by the root of the cost."""


def weights_of(objective: str, choices: Mapping[str, Objective]) -> Objective:
    """Return the weights of an objective's name among `choices`. Raise InputError, which names what there is, for
    another."""
    if objective not in choices:
        expected = "one of " + ", ".join(sorted(choices))
        raise InputError(where="policy", key="objective", found=objective, expected=expected)
    return choices[objective]


@dataclass(slots=True, kw_only=True)
class Board:
    """`value[j, c]` of Cell c for job j (-inf: it cannot run there), `devices[j, c]` that it takes of pool
    `pool_of[c]`. `real[j]` is the column that j has, `now[j]` the one that it has virtually (NOTHING: none), `asked[j]`
    the one it asked for; `free[p]` counts what is left virtually. The first `held` rows are those that ran.

    `lasts_s[j, c]`: seconds from now to the job's end if it has the Cell from now on, its restart included (inf:
    never); `restart_s[j]`: what a restart costs it; `due_s[j]`: the clock time of its deadline (inf: none)."""

    ids: tuple[str, ...]
    value: Floats
    devices: Integers
    pool_of: Integers
    costs: Integers
    asked: list[int]
    real: list[int]
    now: list[int]
    free: list[int]
    held: int
    lasts_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    restart_s: Floats = field(default_factory=lambda: np.zeros(0))
    due_s: Floats = field(default_factory=lambda: np.zeros(0))
    version: int = 0

    def put(self, row: int, column: int) -> None:
        """Give a job another Cell, or NOTHING, virtually."""
        before = self.now[row]
        if before != NOTHING:
            self.free[int(self.pool_of[before])] += int(self.devices[row, before])
        if column != NOTHING:
            self.free[int(self.pool_of[column])] -= int(self.devices[row, column])
        self.now[row] = column
        self.version += 1

    def worth(self, row: int, column: int) -> float:
        """The value of a Cell; 0 of none."""
        return 0.0 if column == NOTHING else float(self.value[row, column])

    def total(self) -> float:
        """The value of all that jobs have virtually."""
        return sum(self.worth(row, column) for row, column in enumerate(self.now))

    def changes(self, pools: Sequence[str]) -> dict[str, Grant | None]:
        """The grants of jobs that have virtually another Cell than really (Algorithm 1, FINALIZEALLOC)."""
        grants: dict[str, Grant | None] = {}
        for row, (before, after) in enumerate(zip(self.real, self.now, strict=True)):
            if before != after:
                cell = None
                if after != NOTHING:
                    cell = grant(pools[int(self.pool_of[after])], int(self.devices[row, after]))
                grants[self.ids[row]] = cell
        return grants


class BoardMaker:
    """Makes boards, and keeps what does not change of a job from one decision to the next."""

    def __init__(self, tables: CellTables, weights: Objective, horizon_s: float) -> None:
        if not horizon_s > 0:
            raise InputError(where="policy", key="horizon_s", found=horizon_s, expected="more than 0")
        self.tables, self.weights, self.horizon_s = tables, weights, horizon_s
        self._restart_s: dict[str, float] = {}
        self._rows: dict[str, CellRow] = {}
        self._columns: dict[str, tuple[Grant, int | None]] = {}

    def make(
        self,
        view: View,
        waiting: Mapping[str, JobState],
        *,
        deadlines: bool = False,
        prices: Sequence[float] | None = None,
    ) -> Board:
        """A board of all that run, then `waiting`. With `deadlines`, Cells on which a job would end too late are none,
        but for the one that it has."""
        running = [(state, self._column(view, state)) for state in view.running.values()]
        held = [(state, column) for state, column in running if column is not None]
        states = [state for state, _ in held] + list(waiting.values())
        real = [column for _, column in held] + [NOTHING] * len(waiting)
        rows = [self.row(view, state.job) for state in states]
        width = len(self.tables.pool_of)
        rates = np.array([row.rates for row in rows]).reshape(len(rows), width)
        devices = np.array([row.devices for row in rows], dtype=np.int64).reshape(len(rows), width)
        priced = devices if prices is None else devices * np.array(prices)[self.tables.pool_of]
        with np.errstate(divide="ignore", invalid="ignore"):
            cost = np.where(rates > 0, priced / rates, np.inf).min(axis=1, initial=np.inf)
        ages = _ages(view.now_s, states, np.array([row.asked_s for row in rows]), cost)
        sizes = np.array([pool.devices for pool in view.pools.values()], dtype=np.int64)
        there = (rates > 0) & (devices <= sizes[self.tables.pool_of])
        restart_s = np.array([self._restart(view, state) for state in states]).reshape(-1, 1)
        paying = np.broadcast_to(restart_s, rates.shape).copy()
        at_own_cell = (np.arange(len(held)), np.array(real[: len(held)], dtype=np.int64))
        paying[at_own_cell] = 0.0
        there[at_own_cell] = True
        with np.errstate(divide="ignore", invalid="ignore"):
            ends_s = ages.remaining_s[:, None] / rates
            whole_s = np.where(there, paying + ends_s, np.inf)
            if deadlines:
                due_s = _deadlines(states)[:, None]
                late = view.now_s + paying + ends_s > due_s + 1e-9 * np.abs(due_s)
                late[at_own_cell] = False
                there &= ~late
            lasts_s = np.minimum(ends_s, self.horizon_s)
            useful = np.where(paying > 0, lasts_s / (lasts_s + paying), 1.0)
            weighed = self.weights(ages)[:, None] * rates
            value = np.where(there, weighed * useful, -np.inf)
        lost = restart_s[: len(held), 0] / np.maximum(restart_s[: len(held), 0] + lasts_s[at_own_cell], 1e-9)
        value[: len(held)] += (weighed[at_own_cell] * lost)[:, None]
        return Board(
            ids=tuple(state.job.id for state in states),
            value=value,
            devices=devices,
            pool_of=self.tables.pool_of,
            costs=self.tables.costs(),
            asked=[row.asked for row in rows],
            real=real,
            now=list(real),
            free=[view.free[pool] for pool in self.tables.pools],
            held=len(held),
            lasts_s=_seen_s(view, states[: len(held)], real, restart_s[:, 0], whole_s),
            restart_s=restart_s[:, 0],
            due_s=_deadlines(states),
        )

    def begin(self, view: View) -> None:
        """Before anything else in a decision: forget jobs that are gone, and everything if the pools are others."""
        for id_ in view.departed:
            self._restart_s.pop(id_, None)
            self._rows.pop(id_, None)
            self._columns.pop(id_, None)
        if self.tables.pools != tuple(view.pools):
            self.tables.set_pools(tuple(view.pools))
            self._rows, self._columns = {}, {}

    def hopeless(self, view: View) -> tuple[str, ...]:
        """Jobs that no Cell brings to their end by their deadline."""
        late = []
        for id_, state in (*view.waiting.items(), *view.running.items()):
            deadline_s = state.job.deadline_s
            if deadline_s is None:
                continue
            row = self.row(view, state.job)
            fastest = float(row.rates.max())
            least_s = state.remaining_iterations * row.asked_s / fastest if fastest > 0 else np.inf
            if state.grant is None:
                least_s += self._restart(view, state)
            if view.now_s + least_s > deadline_s + 1e-9 * abs(deadline_s):
                late.append(id_)
        return tuple(late)

    def row(self, view: View, job: Job) -> CellRow:
        """The job's Cells."""
        row = self._rows.get(job.id)
        if row is None:
            row = self._rows[job.id] = self.tables.row(view.cells, job)
        return row

    def _restart(self, view: View, state: JobState) -> float:
        if state.granted_s is None and state.attained_device_s == 0:
            return 0.0
        seconds = self._restart_s.get(state.job.id)
        if seconds is None:
            seconds = self._restart_s[state.job.id] = view.restart_s(state.job)
        return seconds

    def _column(self, view: View, state: JobState) -> int | None:
        """The column of what a job has; None where that is no Cell of its table (then it stays as it is)."""
        given = state.grant
        if given is None or len(given.parts) != 1:
            return None
        job = state.job
        kept = self._columns.get(job.id)
        if kept is None or kept[0] is not given:
            kept = (given, self.tables.column(self.row(view, job), *given.parts[0]))
            self._columns[job.id] = kept
        return kept[1]


def _ages(now_s: float, states: Sequence[JobState], asked_s: Floats, cost: Floats) -> Ages:
    """The times of jobs whose iterations take `asked_s` seconds on the Cells asked for."""
    return Ages(
        cost=cost,
        due_s=_deadlines(states) - now_s,
        remaining_s=np.array([state.remaining_iterations for state in states]) * asked_s,
        total_s=np.array([state.job.iterations for state in states]) * asked_s,
        age_s=now_s - np.array([state.job.submit_s for state in states]),
    )


def _seen_s(view: View, running: Sequence[JobState], real: Sequence[int], restart_s: Floats, lasts_s: Floats) -> Floats:
    """Fill in what running jobs still take on the Cells that they have: at the pace they are seen to run there, after
    what is left of their last restart."""
    for row, state in enumerate(running):
        seen_s = view.iteration_time_s(state.job, state.grant) if state.grant is not None else None
        if seen_s is not None:
            lasts_s[row, real[row]] = seen_s * state.remaining_iterations
        if state.restarts and state.granted_s is not None:
            lasts_s[row, real[row]] += max(0.0, state.granted_s + restart_s[row] - view.now_s)
    return lasts_s


def _deadlines(states: Sequence[JobState]) -> Floats:
    given = [state.job.deadline_s for state in states]
    return np.array([np.inf if deadline_s is None else deadline_s for deadline_s in given])
