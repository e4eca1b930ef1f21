"""Gavel: a linear program says how much time each job should spend on each type, and rounds follow it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import cast

import numpy as np

from planner.many_jobs.jobs.records import Decision, Grant, Job, JobState, View, Workload, grant
from planner.many_jobs.scheduling.beliefs import believed_rate
from planner.many_jobs.scheduling.queueing import Rounds, decision_for
from planner.many_jobs.scheduling.shares import Classes, fair_shares, makespan_shares, throughput_shares
from profiles.errors import InputError

OBJECTIVES = ("throughput", "fairness", "makespan")

Kind = tuple[Workload, int, str]
Shares = dict[str, dict[str, float]]


class Gavel:
    """Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020.

    The program (section 3): fractions X[job, type] of a job's time, sum_type X <= 1, sum_job devices x X <= devices of
    the type, with the rates of the data-parallel profiles on as many devices as the job asked for; counts are never
    scaled. Equal jobs (workload, devices and, for the throughput, pool asked for) are one row, so that a program has
    some hundred rows however many jobs wait. It is solved anew when the set of jobs or devices has changed since the
    last round.

    Rounds (section 5): a (job, type) has priority X / (part of the job's life that it has spent on that type), infinite
    if none; pairs are taken in that order, each job once, while devices last. What is left over goes to who has none,
    in order of submission, each on the fastest pool with room; so it does between rounds, when nobody is moved.

    Simplifications: no space sharing; time spent is counted over a job's whole life (theirs: since the last change of
    the set of jobs, which in a busy cluster is always just now).

    Args:
        objective: "throughput": the sum over jobs of the rate relative to that on the devices asked for; "fairness":
            max-min of devices x rate relative to an equal split, by water filling; "makespan": the last job ends
            soonest (one row a job, since all have other work left, and solved in every round: slower).
        round_s: the paper's six minutes.
        levels: of the water filling, at most; None: all.
    """

    name = "gavel"

    def __init__(self, *, objective: str = "throughput", round_s: float = 360.0, levels: int | None = 4) -> None:
        if objective not in OBJECTIVES:
            raise InputError(
                where="policy gavel", key="objective", found=objective, expected="one of " + ", ".join(OBJECTIVES)
            )
        self._objective, self._levels = objective, levels
        self._rounds = Rounds(round_s)
        self._received: dict[str, dict[str, float]] = {}
        self._counted_s = 0.0
        self._solved: tuple[object, dict[Kind, dict[str, float]]] | None = None

    def decide(self, view: View) -> Decision:
        """A round if it is time; else whoever fits on what is free."""
        self._count(view)
        if not self._rounds.due(view.now_s):
            left, wanted = dict(view.free), dict[str, Grant]()
            self._fill(view, view.waiting, left, wanted)
            return Decision(grants=dict(wanted))
        everyone = {**view.running, **view.waiting}
        shares = self.shares(view, everyone)
        ranked = list[tuple[float, float, float, str, str]]()
        for id_, share in shares.items():
            job, received = everyone[id_].job, self._received.get(id_, {})
            life_s = max(view.now_s - job.submit_s, 1e-9)
            for pool, part in share.items():
                spent_s = received.get(pool, 0.0)
                priority = part * life_s / spent_s if spent_s > 0 else float("inf")
                ranked.append((-priority, -part, job.submit_s, id_, pool))
        left = {name: pool.devices for name, pool in view.pools.items()}
        wanted = {}
        for *_, id_, pool in sorted(ranked):
            devices = everyone[id_].job.devices
            if id_ not in wanted and left[pool] >= devices:
                left[pool] -= devices
                wanted[id_] = grant(pool, devices)
        self._fill(view, everyone, left, wanted)
        return decision_for(view, wanted)

    def shares(self, view: View, states: Mapping[str, JobState]) -> Shares:
        """Return X[job][pool], where above 0."""
        rates, rows = self._rows(view, states)
        if not rows:
            return {}
        sizes = tuple((name, pool.devices) for name, pool in view.pools.items())
        key = (sizes, tuple((kind, len(ids)) for kind, ids in rows))
        if self._objective == "makespan" or self._solved is None or self._solved[0] != key:
            solved = self._solve(view, rows, rates, states)
            if self._objective == "makespan":
                return {ids[0]: share for (_, ids), share in zip(rows, solved, strict=True)}
            self._solved = (key, {kind: share for (kind, _), share in zip(rows, solved, strict=True)})
        return {id_: self._solved[1][kind] for kind, ids in rows for id_ in ids}

    def _rows(
        self, view: View, states: Mapping[str, JobState]
    ) -> tuple[dict[Kind, dict[str, float]], list[tuple[Kind, list[str]]]]:
        """The rates of each kind of job, and the kinds that run anywhere with the jobs of each row of the program."""
        kinds: dict[Kind, list[str]] = defaultdict(list)
        for id_, state in states.items():
            kinds[self._kind(state.job)].append(id_)
        rates = {kind: self._rates(view, kind) for kind in kinds}
        able = {kind: ids for kind, ids in kinds.items() if rates[kind]}
        if self._objective == "makespan":
            return rates, [(kind, [id_]) for kind, ids in able.items() for id_ in ids]
        return rates, list(able.items())

    def _solve(
        self,
        view: View,
        rows: list[tuple[Kind, list[str]]],
        rates: Mapping[Kind, Mapping[str, float]],
        states: Mapping[str, JobState],
    ) -> list[dict[str, float]]:
        pools = list(view.pools)
        rate = np.array([[rates[kind].get(pool, 0.0) for pool in pools] for kind, _ in rows])
        capacity = np.array([view.pools[pool].devices for pool in pools])
        classes = Classes(
            rate=rate,
            devices=np.array([kind[1] for kind, _ in rows]),
            number=np.array([len(ids) for _, ids in rows]),
            capacity=capacity,
        )
        if self._objective == "throughput":
            asked = [rates[kind].get(kind[2], 0.0) or max(rates[kind].values()) for kind, _ in rows]
            time_shares = throughput_shares(classes, 1.0 / np.array(asked))
        elif self._objective == "fairness":
            equal = rate @ capacity / max(1, capacity.sum())
            time_shares = fair_shares(classes, classes.devices / equal, levels=self._levels)
        else:
            time_shares = makespan_shares(classes, np.array([states[ids[0]].remaining_iterations for _, ids in rows]))
        return [{pool: float(part) for pool, part in zip(pools, row, strict=True) if part > 0} for row in time_shares]

    def _kind(self, job: Job) -> Kind:
        """What makes jobs equal: where the pool asked for does not count, it is left out."""
        return job.workload, job.devices, job.pool if self._objective == "throughput" else ""

    def _rates(self, view: View, kind: Kind) -> dict[str, float]:
        """Believed rates on each pool where that many devices work; the true ones if there is no belief for any."""
        workload, devices, _ = kind
        pools = [name for name, pool in view.pools.items() if devices <= pool.devices]
        believed = {name: believed_rate(view.cells, workload, name, devices) for name in pools}
        rates = {name: rate for name, rate in believed.items() if rate is not None}
        if not rates:
            best = {name: view.cells.best(workload, name, devices) for name in pools}
            rates = {name: 1.0 / option.iteration_time_s for name, option in best.items() if option is not None}
        return rates

    def _fill(self, view: View, states: Mapping[str, JobState], left: dict[str, int], wanted: dict[str, Grant]) -> None:
        """Give what is left to those who have nothing."""
        most = max(left.values(), default=0)
        idle = [state for id_, state in states.items() if id_ not in wanted and state.job.devices <= most]
        rates_of: dict[Kind, dict[str, float]] = {}
        for state in sorted(idle, key=lambda state: (state.job.submit_s, state.job.id)):
            job = state.job
            kind = self._kind(job)
            if kind not in rates_of:
                rates_of[kind] = self._rates(view, kind)
            roomy = [pool for pool in rates_of[kind] if left[pool] >= job.devices]
            if roomy:
                pool = max(roomy, key=lambda pool: rates_of[kind][pool])
                left[pool] -= job.devices
                wanted[job.id] = grant(pool, job.devices)

    def _count(self, view: View) -> None:
        """Add the time since the last call to what the running jobs have received of their pools."""
        for id_ in view.departed:
            self._received.pop(id_, None)
        for id_, state in view.running.items():
            if state.grant is not None and state.granted_s is not None:
                received = self._received.setdefault(id_, {})
                pool = state.grant.parts[0][0]
                span_s = view.now_s - max(self._counted_s, state.granted_s)
                received[pool] = received.get(pool, 0.0) + span_s
        self._counted_s = view.now_s

    def state(self) -> object:
        """Time received so far, and the clock of the rounds."""
        return {"received": self._received, "counted_s": self._counted_s, "round": self._rounds.last_s}

    def restore(self, state: object) -> None:
        """What `state` gave; the program is solved anew."""
        held = cast("dict[str, object]", state)
        self._received = cast("dict[str, dict[str, float]]", held["received"])
        self._counted_s = cast("float", held["counted_s"])
        self._rounds.last_s = cast("float | None", held["round"])
