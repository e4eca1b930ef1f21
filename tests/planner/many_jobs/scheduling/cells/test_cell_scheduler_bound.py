"""The bounds against brute force, a linear program, and every policy's runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from planner.many_jobs.jobs.records import Decision, Grant, Job, Pool, Stateless, View, grant
from planner.many_jobs.policies.catalogue import POLICIES, make_policy
from planner.many_jobs.scheduling.bound import bound_run, shortest_first_s
from planner.many_jobs.scheduling.cells.prices import dual_value, lower_prices
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.run import bound_result
from planner.many_jobs.simulation.settings import Settings
from tests.scheduling_examples import FakeCells, make_job, make_pool
from tests.seeds import seeds
from tests.simulation_examples import Follow

MODELS = ("bert-0.8b", "bert-2.6b", "moe-1.3b", "wide-2b")


def small_pools() -> dict[str, Pool]:
    return {
        "a100": make_pool("a100", nodes=2, devices_per_node=4),
        "v100": make_pool("v100", nodes=3, devices_per_node=2),
    }


def random_jobs(
    seed: int, count: int, pools: dict[str, Pool], cells: FakeCells, *, span_s: float = 3000.0
) -> list[Job]:
    """Jobs that fit where they ask to run, of minutes to hours."""
    rng = np.random.default_rng(seed)
    jobs: list[Job] = []
    while len(jobs) < count:
        pool = str(rng.choice(list(pools)))
        job = make_job(
            str(len(jobs)),
            submit_s=float(rng.uniform(0, span_s)),
            pool=pool,
            devices=int(rng.choice([1, 2, 4])),
            model=str(rng.choice(MODELS)),
            iterations=float(rng.lognormal(5, 1)),
            checkpoint_bytes=int(rng.integers(0, 4)) * 10**10,
        )
        if cells.best(job.workload, pool, job.devices) is not None:
            jobs.append(job)
    return jobs


def random_choice(seed: int, jobs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Values and devices of Cells on two pools, their pools, and the pools' sizes."""
    rng = np.random.default_rng(seed)
    pool_of = np.array([0, 0, 1, 1])
    devices = rng.integers(1, 6, (jobs, 4))
    value = np.where(rng.random((jobs, 4)) < 0.2, -np.inf, rng.random((jobs, 4)) * devices**0.7)
    return value, devices, pool_of, [int(one) for one in rng.integers(2, 9, 2)]


def best_value(value: np.ndarray, devices: np.ndarray, pool_of: np.ndarray, sizes: list[int]) -> float:
    """The best allocation of all."""
    best = 0.0
    for choice in product(range(-1, 4), repeat=len(value)):
        used, total = [0, 0], 0.0
        for row, column in enumerate(choice):
            if column >= 0:
                used[pool_of[column]] += devices[row, column]
                total += value[row, column]
        if used[0] <= sizes[0] and used[1] <= sizes[1]:
            best = max(best, total)
    return best


def test_no_allocation_beats_the_dual_at_any_prices() -> None:
    rng = np.random.default_rng(0)
    for seed in seeds(40):
        value, devices, pool_of, sizes = random_choice(seed, 4)
        best = best_value(value, devices, pool_of, sizes)
        found = lower_prices(value, devices, pool_of, sizes, np.zeros(2))
        for prices in (found, rng.random(2), np.zeros(2)):
            assert dual_value(value, devices, pool_of, sizes, prices) >= best - 1e-9


def test_the_prices_found_are_nearly_those_of_the_linear_program() -> None:
    gaps = []
    for seed in seeds(60):
        value, devices, pool_of, sizes = random_choice(seed, 12)
        there = np.isfinite(value)
        rows = np.zeros((2 + len(value), value.size))
        for pool in range(2):
            rows[pool] = (devices * (pool_of == pool)).ravel()
        for row in range(len(value)):
            rows[2 + row, row * 4 : row * 4 + 4] = 1
        limits = [*sizes, *[1] * len(value)]
        bounds = [(0, 1 if one else 0) for one in there.ravel()]
        program = linprog(-np.where(there, value, 0).ravel(), A_ub=rows, b_ub=limits, bounds=bounds)
        prices = lower_prices(value, devices, pool_of, sizes, np.zeros(2), sweeps=4)
        bound = dual_value(value, devices, pool_of, sizes, prices)
        assert bound >= -program.fun - 1e-9
        gaps.append(bound / -program.fun - 1)
    assert np.mean(gaps) < 0.03


def test_one_server_shortest_first_is_the_best_order() -> None:
    assert shortest_first_s([0.0, 1.0], [10.0, 2.0]) == pytest.approx((12 + 2) / 2)
    assert shortest_first_s([0.0, 9.0], [10.0, 2.0]) == pytest.approx((10 + 3) / 2)
    assert shortest_first_s([5.0], [3.0]) == pytest.approx(3.0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_run_beats_the_bounds(policy: str) -> None:
    pools = small_pools()
    for seed in range(9):
        cells = FakeCells(pools)
        jobs = random_jobs(seed, 12, pools, cells, span_s=[0.0, 3000.0, 30000.0][seed % 3])
        bounds = bound_run(jobs, pools, cells)
        settings = Settings(restart_s=0.0 if seed % 2 else 60.0, round_s=None if seed % 4 else 100.0)
        result = simulate(jobs, pools, cells, make_policy(policy), settings=settings).summary
        assert result.finished == len(jobs)
        assert result.violations == 0
        assert result.jct_mean_s is not None
        assert result.jct_mean_s >= bounds.jct_mean_s * (1 - 1e-9)
        assert result.makespan_s >= bounds.makespan_s * (1 - 1e-9)
        assert result.throughput_mean <= bounds.throughput_mean * (1 + 1e-9)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_run_that_is_stopped_does_more_than_the_bound(policy: str) -> None:
    pools = small_pools()
    for seed in range(5):
        cells = FakeCells(pools)
        jobs = random_jobs(seed, 12, pools, cells)
        until_s = max(job.submit_s for job in jobs) * (0.7 if seed % 2 else 1.5)
        bounds = bound_run(jobs, pools, cells, until_s=until_s)
        result = simulate(jobs, pools, cells, make_policy(policy), settings=Settings(until_s=until_s)).summary
        done_s = result.throughput_mean * result.simulated_s
        span_s = until_s - min(job.submit_s for job in jobs)
        assert done_s <= bounds.throughput_mean * span_s * (1 + 1e-9)


def test_the_bounds_are_exact_where_nothing_is_relaxed() -> None:
    """One pool of one device, equal jobs of one device: the server of the relaxation itself."""
    pools = {"a100": make_pool("a100", nodes=1, devices_per_node=1)}
    cells = FakeCells(pools)
    jobs = [make_job(str(number), iterations=100.0) for number in range(5)]
    result = simulate(jobs, pools, cells, make_policy("fcfs")).summary
    bounds = bound_run(jobs, pools, cells)
    assert bounds.jct_mean_s == pytest.approx(result.jct_mean_s)
    assert bounds.makespan_s == pytest.approx(result.makespan_s)
    assert bounds.throughput_mean == pytest.approx(result.throughput_mean)


def test_a_job_without_a_cell_is_left_out() -> None:
    pools = small_pools()
    bounds = bound_run([make_job(model="moe-900b")], pools, FakeCells(pools))
    assert bounds.throughput_mean == bounds.jct_mean_s == 0.0


class OddCounts(Stateless):
    """Three devices for whoever comes first, then for the next."""

    name = "odd-counts"

    def decide(self, view: View) -> Decision:
        free, found = dict(view.free), dict[str, Grant | None]()
        for id_, state in view.waiting.items():
            pool = state.job.pool
            if free[pool] >= 3 and view.cells.best(state.job.workload, pool, 3):
                free[pool] -= 3
                found[id_] = grant(pool, 3)
        return Decision(grants=found)


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "odd-counts"])
def test_no_run_beats_the_bounds_that_stand_beside_it(policy: str) -> None:
    """Also a run that drops jobs, is stopped early or late, or grants what nobody foresaw."""
    pools, partial = small_pools(), 0
    for seed in range(6):
        cells = FakeCells(pools)
        jobs = random_jobs(seed, 10, pools, cells)
        if seed % 2:
            jobs = [replace(job, deadline_s=job.submit_s + 1.3 * job.duration_s) for job in jobs]
        until_s = (None, 1e6, 2000.0)[seed % 3]
        made = OddCounts() if policy == "odd-counts" else make_policy(policy)
        result = simulate(jobs, pools, cells, made, settings=Settings(until_s=until_s))
        bounds, found = bound_result(result, pools, cells), result.summary
        assert bounds is not None
        partial += found.finished < found.jobs
        assert found.throughput_mean <= bounds.throughput_mean * (1 + 1e-9)
        if found.jct_mean_s is not None:
            assert found.jct_mean_s >= bounds.jct_mean_s * (1 - 1e-9)
            assert found.makespan_s >= bounds.makespan_s * (1 - 1e-9)
    assert partial


def test_a_run_that_joins_pools_has_no_bound() -> None:
    pools, jobs = small_pools(), [make_job("x", pool="a100", devices=2, iterations=5.0)]
    joined = Grant(parts=(("a100", 2), ("v100", 2)))
    policy = Follow({0.0: Decision(grants={"x": joined})})
    result = simulate(jobs, pools, FakeCells(pools), policy, settings=Settings(truth=lambda *_: 1.0))
    assert bound_result(result, pools, FakeCells(pools)) is None
