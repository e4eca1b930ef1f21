"""The simulator against one that shares nothing with it, under random decisions: to the last bit."""

from __future__ import annotations

import math
from random import Random

import pytest

from planner.many_jobs.jobs.records import Grant, Job
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.placing import devices_of
from planner.many_jobs.simulation.settings import Placement, Settings
from tests.oracles.simulation import simulate_naively
from tests.simulation_examples import PowerCells, Scripted, draw_failures, draw_jobs, small_pools, speed_over_pools

SEEDS = 120


@pytest.mark.parametrize("round_s", [None, 8.0, 64.0])
@pytest.mark.parametrize("failing", [False, True])
def test_as_the_naive_simulator(round_s: float | None, failing: bool) -> None:
    restarts = failures = dropped = 0
    for seed in range(SEEDS):
        rng = Random(seed)
        pools, jobs = small_pools(), draw_jobs(rng, rng.randrange(1, 16))
        listed = draw_failures(rng, pools, rng.randrange(1, 12)) if failing else ()
        restart_s, interval_s = float(rng.choice((0, 4, 16))), float(rng.choice((0, 4, 32)))
        placed: list[tuple[str, tuple[tuple[str, int, int], ...]]] = []

        def truth(
            job: Job,
            grant: Grant,
            placement: Placement | None,
            placed: list[tuple[str, tuple[tuple[str, int, int], ...]]] = placed,
        ) -> float | None:
            if placement is not None:
                placed.append((job.id, tuple(sorted(devices_of(placement)))))
            return speed_over_pools(job, grant)

        settings = Settings(
            round_s=round_s,
            restart_s=restart_s,
            checkpoint_interval_s=interval_s,
            truth=truth,
            failures=Failures(listed=listed),
        )
        result = simulate(jobs, pools, PowerCells(), Scripted(seed), settings=settings)
        naive, states = simulate_naively(
            jobs,
            pools,
            PowerCells(),
            Scripted(seed),
            speed=speed_over_pools,
            restart_s=restart_s,
            round_s=round_s,
            failures=[(one.time_s, one.pool, one.node, one.repair_s) for one in listed],
            checkpoint_interval_s=interval_s or math.ulp(0.0),
        )
        assert result.summary.violations == 0
        assert placed == naive.placements
        for number, job in enumerate(result.jobs):
            state, table = states[job.id], result.table
            assert result.status(number) == state.status
            assert _same(table.start_s[number], state.start_s)
            assert _same(table.end_s[number], state.end_s)
            assert table.waited_s[number] == state.waited_s
            assert table.attained_device_s[number] == state.attained_device_s
            assert (table.restarts[number], table.failures[number]) == (state.restarts, state.failures)
        span_s = result.summary.simulated_s
        assert result.summary.throughput_mean * span_s == pytest.approx(naive.throughput_s, rel=1e-12)
        assert result.summary.throughput_peak == naive.peak
        assert sum(result.table.attained_device_s) == naive.held_s
        restarts += result.summary.restarts
        failures += sum(result.table.failures)
        dropped += result.summary.dropped
    assert restarts > SEEDS
    assert dropped > 10
    assert failures > (30 if failing else -1)


def _same(value: float, expected: float | None) -> bool:
    return math.isnan(value) if expected is None else value == expected
