"""Pollux: counts of devices that make the jobs' speedups over a fair share as equal and as large as can be."""

from __future__ import annotations

import numpy as np

from planner.many_jobs.jobs.records import Decision, Grant, JobState, View, grant
from planner.many_jobs.scheduling.beliefs import Ladders, least_counts
from planner.many_jobs.scheduling.choices import Options, choose
from planner.many_jobs.scheduling.queueing import Rounds, decision_for


class Pollux(Rounds):
    """A policy like Pollux (Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning",
    OSDI 2021, section 4.2): maximise the power mean (mean of speedup^p)^(1/p), p = -1, where a job's speedup is its
    rate over its rate with a fair share, devices / jobs. A job whose devices change is taken to be slower by the factor
    (age - restarts x cost) / (age + cost), cost its restart. It keeps what it got until it has worked as long as its
    restart took: with restarts longer than rounds nobody would ever work.

    As far as it applies: the global batch is fixed, so goodput is throughput; counts are powers of two (or what was
    asked for), with the rates of data-parallel profiles. It knows one type of device: each pool is decided by itself,
    for the jobs that asked for it. Their genetic search is replaced by `planner.many_jobs.scheduling.choices`, which
    proves how far from the optimum it may be (`gap`). A job with nothing counts as having a speedup of `idle_speedup`.

    Args:
        round_s: the paper's minute; in between, free devices go to who waits, its smallest count, oldest first.
    """

    name = "pollux"

    def __init__(
        self, *, p: float = -1.0, round_s: float = 60.0, idle_speedup: float = 0.05, gap: float = 5e-3
    ) -> None:
        if not p < 0:
            raise ValueError(f"p is {p}, and must be below 0")
        super().__init__(round_s)
        self._p, self._idle, self._gap = float(p), float(idle_speedup), float(gap)
        self._ladders = Ladders()

    def decide(self, view: View) -> Decision:
        """Pool by pool."""
        due = self.due(view.now_s)
        wanted = dict[str, Grant]()
        for pool, queue in self._queues(view, due=due).items():
            if due:
                held = {state.job.id: state.grant.devices for state in queue if state.grant and just_began(view, state)}
                capacity = view.pools[pool].devices - sum(held.values())
                fair = max(1, view.pools[pool].devices // max(1, len(queue)))
                counts = held | self._counts(
                    view, capacity, [state for state in queue if state.job.id not in held], fair
                )
            else:
                ladders = {state.job.id: self._ladders.of(view, state.job) for state in queue}
                counts = least_counts(queue, ladders, view.free[pool])
            wanted.update({id_: grant(pool, count) for id_, count in counts.items()})
        return decision_for(view, wanted) if due else Decision(grants=dict(wanted))

    def _queues(self, view: View, *, due: bool) -> dict[str, list[JobState]]:
        """The jobs of each pool that are decided about: all in a round, else those that wait where devices are free."""
        queues: dict[str, list[JobState]] = {name: [] for name in view.pools if due or view.free[name] > 0}
        for states in (view.running, view.waiting) if due else (view.waiting,):
            for state in states.values():
                if state.job.pool in queues and self._ladders.of(view, state.job).counts:
                    queues[state.job.pool].append(state)
        return queues

    def _counts(self, view: View, capacity: int, states: list[JobState], fair: int) -> dict[str, int]:
        if not states:
            return {}
        columns = sorted({count for state in states for count in self._ladders.of(view, state.job).counts})
        column = {count: index for index, count in enumerate(columns)}
        cost = np.full((len(states), len(columns)), np.inf)
        for row, state in enumerate(states):
            ladder = self._ladders.of(view, state.job)
            share = ladder.rate(fair) or ladder.rates[0] * fair / ladder.counts[0]
            held = state.grant.devices if state.grant else 0
            slowed = restart_factor(view, state) if held else 1.0
            for count, rate in zip(ladder.counts, ladder.rates, strict=True):
                speedup = rate / share * (1.0 if count == held else slowed)
                cost[row, column[count]] = max(speedup, 1e-6) ** self._p
        options = Options(
            cost=cost,
            idle=np.full(len(states), self._idle**self._p),
            pool=np.zeros(len(columns), np.int64),
            count=np.array(columns),
            capacity=np.array([capacity]),
        )
        chosen = choose(options, gap=self._gap).chosen
        return {state.job.id: columns[pick] for state, pick in zip(states, chosen, strict=True) if pick >= 0}


def just_began(view: View, state: JobState) -> bool:
    """Whether a running job has worked for less time than a restart takes since it got its devices."""
    return state.granted_s is not None and view.now_s < state.granted_s + 2 * view.restart_s(state.job)


def restart_factor(view: View, state: JobState) -> float:
    """(age - restarts x cost) / (age + cost), at least 0.01 (Pollux section 4.2, Sia section 3.3): what is left of a
    running job's rate if it is changed as often as so far. 1 where a restart costs nothing."""
    cost_s = view.restart_s(state.job)
    age_s = view.now_s - state.job.submit_s
    return max(0.01, (age_s - state.restarts * cost_s) / (age_s + cost_s)) if cost_s > 0 else 1.0
