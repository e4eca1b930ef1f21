"""What the Cell policies promise: nobody starves, guarantees hold, changes pay, states carry over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Decision, Job, Pool, View
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.policies.crius import Crius, CriusDDL
from planner.many_jobs.policies.marginal import Marginal
from planner.many_jobs.scheduling.cells.tables import CRIUS_LEVELS, CellTables
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.settings import Settings
from profiles.errors import InputError
from tests.planner.many_jobs.scheduling.cells.test_cell_scheduler_bound import random_jobs, small_pools
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import examples

NAMES = (
    "crius",
    "crius-na",
    "crius-nh",
    "crius-ddl",
    "marginal",
    "marginal-throughput",
    "marginal-now",
    "marginal-ddl",
)


class Recorder:
    """A policy that keeps what another decided, and takes its state out and in again every time."""

    def __init__(self, policy: str, **options: object) -> None:
        self.name, self.options, self.made = policy, options, make_policy(policy, **options)
        self.decisions: list[tuple[float, Decision]] = []

    def decide(self, view: View) -> Decision:
        held = json.loads(json.dumps(self.made.state()))
        self.made = make_policy(self.name, **self.options)
        self.made.restore(held)
        found = self.made.decide(view)
        self.decisions.append((view.now_s, found))
        return found

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None: ...


def with_deadlines(jobs: list[Job], cells: FakeCells, slack: float) -> list[Job]:
    found = []
    for job in jobs:
        best = cells.best(job.workload, job.pool, job.devices)
        assert best is not None
        found.append(replace(job, deadline_s=job.submit_s + slack * job.iterations * best.iteration_time_s))
    return found


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(6, least=2), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), rounds=st.booleans(), failing=st.booleans())
def test_all_jobs_end_and_the_same_run_repeats(name: str, seed: int, rounds: bool, failing: bool) -> None:
    pools = small_pools()
    jobs = random_jobs(seed, 10, pools, FakeCells(pools))
    failures = Failures(mtbf_s=40000.0, repair_s=500.0, seed=seed) if failing else None
    chosen = Settings(round_s=120.0 if rounds else None, failures=failures)
    results = [simulate(jobs, pools, FakeCells(pools), make_policy(name), settings=chosen) for _ in range(2)]
    first, second = (result.summary for result in results)
    assert first == second
    assert first.finished == len(jobs)
    assert first.violations == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_is_stored_and_read_back_decides_alike(name: str) -> None:
    pools = small_pools()
    jobs = with_deadlines(random_jobs(5, 14, pools, FakeCells(pools)), FakeCells(pools), 4.0)
    whole = simulate(jobs, pools, FakeCells(pools), make_policy(name)).summary
    carried = simulate(jobs, pools, FakeCells(pools), Recorder(name)).summary
    assert whole == carried


def grants_of(recorder: Recorder) -> list[tuple[str, str, int]]:
    return [
        (id_, *given.parts[0])
        for _, decision in recorder.decisions
        for id_, given in decision.grants.items()
        if given is not None
    ]


def test_cells_are_half_once_and_twice_what_was_asked_for_on_every_pool() -> None:
    pools, asked = two_pools(), {}
    jobs = random_jobs(1, 20, pools, FakeCells(pools))
    for name in ("crius", "crius-na", "crius-nh"):
        recorder = Recorder(name)
        simulate(jobs, pools, FakeCells(pools), recorder)
        asked[name] = {(id_, pool, devices) for id_, pool, devices in grants_of(recorder)}
    by_id = {job.id: job for job in jobs}
    assert all(devices in {by_id[id_].devices * k / 2 for k in (1, 2, 4)} for id_, _, devices in asked["crius"])
    assert all(devices == by_id[id_].devices for id_, _, devices in asked["crius-na"])
    assert all(pool == by_id[id_].pool for id_, pool, _ in asked["crius-nh"])
    assert any(pool != by_id[id_].pool for id_, pool, _ in asked["crius"])
    assert any(devices != by_id[id_].devices for id_, _, devices in asked["crius"])


def test_a_new_job_of_a_known_model_asks_for_nothing() -> None:
    cells, pools = FakeCells(two_pools()), two_pools()
    tables = CellTables(CRIUS_LEVELS)
    tables.set_pools(tuple(pools))
    tables.row(cells, make_job("0", devices=8))
    asked = cells.asked.total()
    assert asked <= 3 * len(pools) + 1
    tables.row(cells, make_job("1", devices=8, iterations=7.0))
    assert cells.asked.total() == asked


def test_one_device_has_no_half() -> None:
    tables = CellTables(CRIUS_LEVELS)
    tables.set_pools(("a100", "v100"))
    row = tables.row(FakeCells(two_pools()), make_job(devices=1))
    assert row.devices.tolist() == [0, 1, 2, 0, 1, 2]
    assert row.rates[1] == 1.0
    assert row.rates[0] == row.rates[3] == 0.0


def test_a_running_job_is_scaled_down_for_a_new_one() -> None:
    """Eight devices, a job that holds them all, and another that wants them: both get half (Crius, Figure 3 a)."""
    pools = {"a100": make_pool("a100", nodes=1)}
    jobs = [make_job("0", devices=8, iterations=1e5), make_job("1", submit_s=100.0, devices=8, iterations=1e5)]
    recorder = Recorder("crius")
    simulate(jobs, pools, FakeCells(pools), recorder)
    assert {id_: given.devices for id_, given in recorder.decisions[1][1].grants.items() if given} == {"0": 4, "1": 4}


def test_a_change_that_does_not_pay_is_not_made() -> None:
    """The first job is about to end when the second comes: a standstill would cost it more than it has left."""
    pools = {"a100": make_pool("a100", nodes=1)}
    cells = FakeCells(pools)
    best = cells.best(make_job().workload, "a100", 8)
    assert best is not None
    jobs = [make_job("0", devices=8, iterations=110 / best.iteration_time_s), make_job("1", submit_s=100.0, devices=8)]
    summary = simulate(jobs, pools, cells, make_policy("marginal", objective="throughput-now")).summary
    assert summary.restarts == 0


@pytest.mark.parametrize("opportunistic", [True, False])
def test_small_jobs_run_while_a_big_one_waits_and_give_way(opportunistic: bool) -> None:
    """A job of 7 devices runs, one that needs 8 waits, then small ones come. They run meanwhile; when 7 come back, with
    theirs there are 8, and they are suspended."""
    pools = {"a100": make_pool("a100", nodes=1)}
    cells = FakeCells(pools, sizes={"huge": 40.0})
    first = make_job("first", devices=7, model="bert-30b", iterations=300.0)
    big = make_job("big", submit_s=10.0, devices=8, model="huge", iterations=100.0)
    small = make_job("small", submit_s=20.0, devices=1, iterations=3e4)
    recorder = Recorder("crius", opportunistic=opportunistic)
    result = simulate([first, big, small], pools, cells, recorder)
    starts = {result.jobs[number].id: result.table.start_s[number] for number in range(3)}
    ends = {result.jobs[number].id: result.table.end_s[number] for number in range(3)}
    assert starts["big"] == pytest.approx(ends["first"])
    assert (starts["small"] == 20.0) == opportunistic
    suspended = [id_ for _, decision in recorder.decisions for id_, given in decision.grants.items() if given is None]
    assert suspended == (["small"] if opportunistic else [])


def test_a_stream_of_small_jobs_does_not_starve_a_big_one() -> None:
    pools = {"a100": make_pool("a100", nodes=1)}
    cells = FakeCells(pools, sizes={"huge": 40.0})
    best = cells.best(make_job().workload, "a100", 1)
    assert best is not None
    stream = [
        make_job(str(number), submit_s=50.0 * number, devices=1, iterations=500 / best.iteration_time_s)
        for number in range(200)
    ]
    big = make_job("big", submit_s=1001.0, devices=8, model="huge", iterations=10.0)
    result = simulate([*stream, big], pools, cells, make_policy("crius"))
    number = next(index for index, job in enumerate(result.jobs) if job.id == "big")
    assert result.table.start_s[number] - 1001.0 < 1000.0


def test_whoever_runs_under_deadlines_ends_in_time() -> None:
    pools = small_pools()
    met, dropped = 0, 0
    for seed in range(10):
        cells = FakeCells(pools)
        jobs = with_deadlines(random_jobs(seed, 15, pools, cells, span_s=500.0), cells, 1.0)
        result = simulate(jobs, pools, cells, CriusDDL())
        for number, job in enumerate(result.jobs):
            started = np.isfinite(result.table.start_s[number])
            in_time = result.table.end_s[number] <= (job.deadline_s or 0) * (1 + 1e-6)
            assert (result.status(number) == "finished" and in_time) if started else result.status(number) == "dropped"
        met += result.summary.deadlines_met
        dropped += result.summary.dropped
    assert met > dropped > 0


def test_a_job_that_cannot_end_in_time_is_dropped_at_once() -> None:
    pools = two_pools()
    job = make_job(devices=1, iterations=1e6, deadline_s=10.0)
    for name in ("crius-ddl", "marginal-ddl"):
        result = simulate([job, make_job("1")], pools, FakeCells(pools), make_policy(name)).summary
        assert (result.dropped, result.finished) == (1, 1)


def totals(policy: str, figure: str, pools: Mapping[str, Pool], **options: object) -> float:
    """The mean of a figure over five workloads."""
    found = []
    for seed in range(5):
        cells = FakeCells(pools)
        jobs = random_jobs(seed, 30, dict(pools), cells, span_s=20000.0)
        summary = simulate(jobs, pools, cells, make_policy(policy, **options), settings=Settings(round_s=200.0)).summary
        found.append(getattr(summary, figure))
    return float(np.mean(found))


def test_marginal_is_better_on_its_objective_than_crius_and_fcfs() -> None:
    pools = small_pools()
    own = totals("marginal", "jct_mean_s", pools)
    assert own < totals("crius", "jct_mean_s", pools)
    assert own < totals("fcfs", "jct_mean_s", pools)
    throughput = totals("marginal-throughput", "throughput_mean", pools)
    assert throughput > totals("crius", "throughput_mean", pools)
    assert throughput > totals("fcfs", "throughput_mean", pools)


def test_the_gap_to_the_bound_is_known() -> None:
    pools, policy = small_pools(), Marginal()
    simulate(random_jobs(2, 30, pools, FakeCells(pools)), pools, FakeCells(pools), policy)
    assert 0 <= policy.gap_mean < 0.2
    assert policy.decisions > 0


def test_wrong_options_are_named() -> None:
    with pytest.raises(InputError, match="objective"):
        Crius(objective="fame")
    with pytest.raises(InputError, match="depth"):
        Crius(depth=-1)
    with pytest.raises(InputError, match="horizon_s"):
        Crius(horizon_s=0.0)
    with pytest.raises(InputError, match="levels"):
        Marginal(levels=-1)
