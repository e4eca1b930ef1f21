"""Deadlines: the schedule against a naive one and brute force, guarantees in whole runs, who is dropped and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Decision, Job, Pool, View
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.policies.crius import CriusDDL
from planner.many_jobs.scheduling.cells.timeline import Cadence, Timeline
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.settings import Settings
from tests.planner.many_jobs.scheduling.cells.test_cell_scheduler_bound import random_jobs, small_pools
from tests.scheduling_examples import FakeCells, make_job, make_pool
from tests.seeds import examples

COUNTS = (1, 2, 4, 8, 16)


def drawn(seed: int, count: int, *, span_s: float, slack: tuple[float, float]) -> tuple[list[Job], FakeCells]:
    """Jobs due between so many times what they take as submitted."""
    pools = small_pools()
    cells, rng = FakeCells(pools), np.random.default_rng(seed + 10**6)
    found = []
    for job in random_jobs(seed, count, pools, cells, span_s=span_s):
        best = cells.best(job.workload, job.pool, job.devices)
        assert best is not None
        found.append(
            replace(job, deadline_s=job.submit_s + rng.uniform(*slack) * job.iterations * best.iteration_time_s)
        )
    return found, cells


def fastest_s(cells: FakeCells, pools: Mapping[str, Pool], job: Job) -> float:
    """The least time of an iteration, on any count of any pool."""
    found = [cells.best(job.workload, pool, count) for pool in pools for count in COUNTS]
    return min(cell.iteration_time_s for cell in found if cell is not None)


class Watched:
    """Crius-DDL or another, with what it decided when: who was admitted, who was dropped with what left."""

    def __init__(self, policy: str, **options: object) -> None:
        self.made, self.name = make_policy(policy, **options), policy
        self.admitted: set[str] = set()
        self.dropped: list[tuple[float, Job, float]] = []

    def decide(self, view: View) -> Decision:
        found = self.made.decide(view)
        known = {**view.waiting, **view.running}
        self.dropped += [(view.now_s, known[id_].job, known[id_].remaining_iterations) for id_ in found.dropped]
        held = self.made.state()
        assert isinstance(held, dict)
        self.admitted |= {id_ for id_, given in found.grants.items() if given is not None} | set(held["places"])
        return found

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None: ...


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None, derandomize=True)
def test_a_timeline_says_what_a_list_of_its_rectangles_says(data: st.DataObject) -> None:
    line = Timeline(0.0, 6)
    taken: list[tuple[int, int, int]] = []
    times = st.integers(0, 12)
    for undo in data.draw(st.lists(st.booleans(), min_size=1, max_size=6)):
        if taken and undo:
            start, end, count = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            line.take(start, end, -count)
            continue
        start, lasts, count = data.draw(times), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
        line.take(start, start + lasts, count)
        taken.append((start, start + lasts, count))
    free = [6 - sum(count for start, end, count in taken if start <= at < end) for at in range(40)]
    start, lasts, count, latest = data.draw(times), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6)), 12
    assert line.room(start, start + lasts) == min(free[start : start + lasts])
    able = [at for at in range(latest + 1) if min(free[at : at + lasts]) >= count]
    assert line.earliest(count, lasts, latest) == (able[0] if able else None)


def most_in_time(jobs: list[Job], cells: FakeCells, pools: Mapping[str, Pool]) -> int:
    """How many jobs of time 0 can be in time at most, each on one Cell from its start to its end: every order of every
    choice of jobs and Cells, each as early as it can (some such schedule is the best of all)."""
    options = {}
    for job in jobs:
        cells_of = [cells.best(job.workload, pool, job.devices * 2**level) for pool in pools for level in range(3)]
        cells_of += [cells.best(job.workload, pool, job.devices // 2) for pool in pools if job.devices > 1]
        cells_of += [cells.best(job.workload, pool, job.devices // 4) for pool in pools if job.devices > 2]
        options[job.id] = [(one.pool, one.devices, one.iteration_time_s * job.iterations) for one in cells_of if one]
    by_id = {job.id: job for job in jobs}
    best = 0

    def start_of(placed: list[tuple[str, int, float, float]], pool: str, devices: int, lasts_s: float) -> float:
        same = [one for one in placed if one[0] == pool]
        for at_s in sorted({0.0, *(end_s for _, _, _, end_s in same)}):
            moments = [at_s, *(start_s for _, _, start_s, _ in same if at_s < start_s < at_s + lasts_s)]
            held = [sum(count for _, count, first, last in same if first <= moment < last) for moment in moments]
            if max(held) + devices <= pools[pool].devices:
                return at_s
        raise AssertionError("at the last end everything is free")

    def go(left: frozenset[str], placed: list[tuple[str, int, float, float]]) -> None:
        nonlocal best
        best = max(best, len(placed))
        if best == len(jobs) or len(placed) + len(left) <= best:
            return
        for id_ in sorted(left):
            for pool, devices, lasts_s in options[id_]:
                start_s = start_of(placed, pool, devices, lasts_s)
                if start_s + lasts_s <= (by_id[id_].deadline_s or 0.0):
                    go(left - {id_}, [*placed, (pool, devices, start_s, start_s + lasts_s)])

    go(frozenset(by_id), [])
    return best


def test_admission_against_brute_force() -> None:
    """Four jobs at once on six devices: never more than can be, all of them in most cases where that can be."""
    pools = {
        "a100": make_pool("a100", nodes=1, devices_per_node=4),
        "v100": make_pool("v100", nodes=1, devices_per_node=2),
    }
    lost = {"crius-ddl": 0, "marginal-ddl": 0}
    possible = tight = 0
    for seed in range(60):
        cells, rng = FakeCells(pools), np.random.default_rng(seed)
        jobs = []
        for job in random_jobs(seed, 4, pools, cells):
            best = cells.best(job.workload, job.pool, job.devices)
            assert best is not None
            due_s = float(rng.uniform(0.7, 2.5)) * job.iterations * best.iteration_time_s
            jobs.append(replace(job, submit_s=0.0, deadline_s=due_s))
        most = most_in_time(jobs, cells, pools)
        possible += most
        tight += most < 4
        for name in lost:
            watched = Watched(name)
            simulate(jobs, pools, cells, watched, settings=Settings(until_s=1e-6))
            assert len(watched.admitted) <= most
            lost[name] += most - len(watched.admitted)
    assert tight >= 10
    assert lost["crius-ddl"] <= 0.1 * possible
    assert lost["marginal-ddl"] <= 0.1 * possible


@pytest.mark.parametrize("round_s", [None, 50.0])
@settings(max_examples=examples(12), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), span_s=st.sampled_from([200.0, 1000.0, 5000.0]))
def test_whoever_is_admitted_ends_in_time(round_s: float | None, seed: int, span_s: float) -> None:
    jobs, cells = drawn(seed, 40, span_s=span_s, slack=(0.5, 2.5))
    watched = Watched("crius-ddl")
    result = simulate(jobs, small_pools(), cells, watched, settings=Settings(round_s=round_s))
    for number, job in enumerate(result.jobs):
        assert (result.status(number) == "finished") == (job.id in watched.admitted)
        if job.id in watched.admitted:
            assert result.table.end_s[number] <= (job.deadline_s or 0.0) * (1 + 1e-9)
    assert result.summary.finished + result.summary.dropped == len(jobs)


@pytest.mark.parametrize("name", ["crius-ddl", "marginal-ddl"])
@settings(max_examples=examples(12), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_nobody_is_dropped_whom_some_cell_could_bring_to_its_end(name: str, seed: int) -> None:
    jobs, cells = drawn(seed, 25, span_s=300.0, slack=(0.3, 2.0))
    pools, watched = small_pools(), Watched(name)
    result = simulate(jobs, pools, cells, watched)
    assert result.summary.dropped == len(watched.dropped)
    for now_s, job, left in watched.dropped:
        # One that ran pays for coming back too.
        restart_s = 60.0 + job.checkpoint_bytes / 2e9 if left < job.iterations else 0.0
        assert now_s + restart_s + left * fastest_s(cells, pools, job) > (job.deadline_s or 0.0)


def test_more_deadlines_than_elasticflow_and_marginal_has_most() -> None:
    met: dict[str, list[float]] = {}
    for name in ("elasticflow", "crius-ddl", "marginal-ddl"):
        for seed in range(100, 105):
            jobs, cells = drawn(seed, 30, span_s=300.0, slack=(0.5, 1.5))
            summary = simulate(jobs, small_pools(), cells, make_policy(name), settings=Settings(round_s=20.0)).summary
            met.setdefault(name, []).append(summary.deadlines_met_ratio or 0.0)
    assert np.mean(met["elasticflow"]) < np.mean(met["crius-ddl"]) < np.mean(met["marginal-ddl"])


def one_pool() -> dict[str, Pool]:
    return {"a100": make_pool("a100", nodes=1)}


def work_for(seconds: float, devices: int) -> float:
    best = FakeCells(one_pool()).best(make_job().workload, "a100", devices)
    assert best is not None
    return seconds / best.iteration_time_s


def test_running_jobs_give_what_they_do_not_need_to_a_tight_one() -> None:
    """The first has all eight devices and much time; the second needs all but a few of them at once."""
    loose = make_job("loose", devices=1, iterations=work_for(2000.0, 8), deadline_s=40_000.0)
    tight = make_job("tight", submit_s=100.0, devices=4, iterations=work_for(500.0, 4), deadline_s=620.0)
    summary = simulate([loose, tight], one_pool(), FakeCells(one_pool()), CriusDDL()).summary
    assert (summary.deadlines_met, summary.dropped) == (2, 0)


def test_a_job_without_a_deadline_gives_way_and_comes_back() -> None:
    other = make_job("other", devices=8, iterations=work_for(2000.0, 8))
    tight = make_job("tight", submit_s=100.0, devices=8, iterations=work_for(500.0, 8), deadline_s=610.0)
    result = simulate([other, tight], one_pool(), FakeCells(one_pool()), CriusDDL())
    assert result.summary.deadlines_met == 1
    assert result.summary.finished == 2


def test_a_job_waits_for_a_departure_that_will_do() -> None:
    """Nothing is free before the first ends, which cannot spare a device; the second has the time."""
    first = make_job("first", devices=8, iterations=work_for(1000.0, 8), deadline_s=1010.0)
    second = make_job("second", submit_s=100.0, devices=8, iterations=work_for(500.0, 8), deadline_s=1600.0)
    result = simulate([first, second], one_pool(), FakeCells(one_pool()), CriusDDL())
    assert result.summary.deadlines_met == 2
    assert result.table.start_s[1] == pytest.approx(1000.0)


@pytest.mark.parametrize(("name", "met"), [("crius-ddl", 1), ("marginal-ddl", 2)])
def test_two_small_jobs_take_the_place_of_a_large_one(name: str, met: int) -> None:
    """The large one needs all devices to its deadline. A guarantee of Crius-DDL is final; the other counts."""
    large = make_job("large", devices=8, iterations=work_for(10_000.0, 8), deadline_s=10_010.0)
    small = [
        make_job(str(number), submit_s=100.0, devices=4, iterations=work_for(500.0, 4), deadline_s=700.0)
        for number in range(2)
    ]
    assert simulate([large, *small], one_pool(), FakeCells(one_pool()), make_policy(name)).summary.deadlines_met == met


def test_the_rounds_are_seen_and_carried_over() -> None:
    class Seen:
        def __init__(self, now_s: float, submit_s: float | None) -> None:
            self.now_s = now_s
            self.arrived = () if submit_s is None else ("0",)
            self.waiting = {} if submit_s is None else {"0": type("State", (), {"job": make_job(submit_s=submit_s)})()}

    cadence = Cadence(300.0)
    cadence.see(Seen(100.0, 100.0))  # type: ignore[arg-type]
    assert cadence.gap_s == 0.0
    cadence = Cadence(300.0)
    cadence.see(Seen(100.0, 90.0))  # type: ignore[arg-type]
    assert cadence.gap_s == 300.0
    cadence.see(Seen(150.0, None))  # type: ignore[arg-type]
    assert cadence.gap_s == 50.0
    other = Cadence(300.0)
    other.restore(cadence.state())
    assert other.gap_s == 50.0
    assert other.state() == cadence.state()
    assert math.isfinite(cadence.gap_s)
