"""Sia: each round an integer program gives every job a type and a count of devices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jobs.records import Decision, Grant, Job, JobState, View, Workload, grant
from planner.many_jobs.policies.pollux import just_began, restart_factor
from planner.many_jobs.scheduling.beliefs import Ladders
from planner.many_jobs.scheduling.choices import Options, choose
from planner.many_jobs.scheduling.queueing import Rounds, decision_for

Configuration = tuple[str, int]


class Sia(Rounds):
    """A policy like Sia (Jayaram Subramanya et al., "Sia: Heterogeneity-aware, Goodput-optimized ML-cluster
    Scheduling", SOSP 2023, section 3). With p < 0:

        minimise  sum over jobs of  sum_c A[j, c] (r[j, c] G[j, c])^p + idle_cost (1 - sum_c A[j, c])

    over 0/1 matrices A with at most one configuration c = (pool, count) a job, within the devices of each pool. G is
    the job's rate divided by its smallest over all configurations, times the fewest devices that it runs on; r is 1 for
    what the job has now and the restart factor for other configurations of a running job, which keeps what it got until
    it has worked as long as its restart took.

    As far as it applies: the global batch is fixed, so goodput is throughput; rates are those of data-parallel profiles
    and known from the start, so there is no bootstrapping and no limit of doubling once a round; counts are powers of
    two (or what was asked for) within what works of a pool, and placement within it is the engine's. The program is
    solved by `planner.many_jobs.scheduling.choices`: prices first, HiGHS for what they leave open, to a relative `gap`.

    Args:
        p: fairness; the paper's default is -0.5.
        idle_cost: their lambda; the larger, the fewer wait.
        round_s: the paper's minute; in between, free devices go to who waits, oldest first, where its rate is best.
    """

    name = "sia"

    def __init__(self, *, p: float = -0.5, idle_cost: float = 1.1, round_s: float = 60.0, gap: float = 5e-3) -> None:
        if not p < 0:
            raise ValueError(f"p is {p}, and must be below 0")
        super().__init__(round_s)
        self._p, self._idle_cost, self._gap = float(p), float(idle_cost), float(gap)
        self._ladders = Ladders()
        self._rows: dict[tuple[Workload, str, int], NDArray[np.float64]] = {}
        self._columns: tuple[tuple[Configuration, ...], tuple[tuple[str, int], ...]] = ((), ())

    def decide(self, view: View) -> Decision:
        """The program once a round."""
        if not self.due(view.now_s):
            return self._fill(view)
        held = {id_: state.grant for id_, state in view.running.items() if state.grant and just_began(view, state)}
        states = [state for state in (*view.running.values(), *view.waiting.values()) if state.job.id not in held]
        columns = self._configurations(view, states)
        if not states or not columns:
            return decision_for(view, held)
        pools = list(view.pools)
        options = Options(
            cost=self._costs(view, states, columns),
            idle=np.full(len(states), self._idle_cost),
            pool=np.array([pools.index(pool) for pool, _ in columns]),
            count=np.array([count for _, count in columns]),
            capacity=np.array([view.pools[pool].devices - _held(held.values(), pool) for pool in pools]),
        )
        chosen = choose(options, gap=self._gap).chosen
        wanted = {state.job.id: grant(*columns[pick]) for state, pick in zip(states, chosen, strict=True) if pick >= 0}
        if not wanted and not held:
            return self._fill(view)
        return decision_for(view, held | wanted)

    def _costs(self, view: View, states: list[JobState], columns: tuple[Configuration, ...]) -> NDArray[np.float64]:
        """(r G)^p of every job on every configuration, infinite where it does not fit."""
        column = {configuration: index for index, configuration in enumerate(columns)}
        rates = np.array([self._row(view, state.job, columns) for state in states])
        kept = np.ones_like(rates)
        for row, state in enumerate(states):
            if state.grant is not None:
                kept[row] = restart_factor(view, state)
                if state.grant.parts[0] in column:
                    kept[row, column[state.grant.parts[0]]] = 1.0
        with np.errstate(divide="ignore"):
            return np.where(rates > 0, (np.maximum(rates, 1e-300) * kept) ** self._p, np.inf)

    def _configurations(self, view: View, states: list[JobState]) -> tuple[Configuration, ...]:
        """All (pool, count): powers of two, and what some job asked for. The rows are dropped when they change."""
        sizes = {name: pool.devices for name, pool in view.pools.items()}
        wanted = {(name, 1 << power) for name, size in sizes.items() for power in range(size.bit_length())}
        wanted |= {(state.job.pool, state.job.devices) for state in states}
        columns = tuple(sorted((pool, count) for pool, count in wanted if count <= sizes.get(pool, 0)))
        key = (columns, tuple(sizes.items()))
        if key != self._columns:
            self._columns, self._rows = key, {}
        return columns

    def _row(self, view: View, job: Job, columns: tuple[Configuration, ...]) -> NDArray[np.float64]:
        """The job's rates on all configurations, normalised; 0 where it does not fit."""
        asked = job.devices if job.devices & (job.devices - 1) else 0
        key = (job.workload, job.pool, asked)
        rates = self._rows.get(key)
        if rates is None:
            rates = np.zeros(len(columns))
            column = {configuration: index for index, configuration in enumerate(columns)}
            for pool in view.pools:
                ladder = self._ladders.of(view, job, pool)
                for count, rate in zip(ladder.counts, ladder.rates, strict=True):
                    rates[column[pool, count]] = rate
            if rates.any():
                least = min(count for (_, count), rate in zip(columns, rates, strict=True) if rate > 0)
                rates = rates / rates[rates > 0].min() * least
            self._rows[key] = rates
        return rates

    def _fill(self, view: View) -> Decision:
        """Hand out free devices without moving anybody."""
        left, grants = dict(view.free), dict[str, Grant | None]()
        for id_, state in view.waiting.items():
            if not any(left.values()):
                break
            best: tuple[float, str, int] | None = None
            for pool, free in left.items():
                ladder = self._ladders.of(view, state.job, pool) if free else None
                if ladder and ladder.counts and ladder.counts[0] <= free:
                    best = max(best or (0.0, "", 0), (ladder.rates[0] / ladder.counts[0], pool, ladder.counts[0]))
            if best is not None:
                left[best[1]] -= best[2]
                grants[id_] = grant(best[1], best[2])
        return Decision(grants=grants)


def _held(grants: Iterable[Grant], pool: str) -> int:
    return sum(count for grant in grants for name, count in grant.parts if name == pool)
