"""A policy over machines that work, on machines in closed form; and the bench's queue and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.scheduling.live.calibration import Measured, measured_truth
from bench.scheduling.live.comparison import Row, describe, errors_of, figures_of
from bench.scheduling.live.driver import run_live
from bench.scheduling.live.jobs import LEAST_ITERATIONS, QueueRules, draw_queue
from bench.scheduling.live.neighbours import CrowdedCells, NodeNeighbours
from bench.scheduling.live.plans import orders_of_cells
from bench.scheduling.live.testbed import CLUSTER
from bench.scheduling.live.testbed import MENU as TESTBED_MENU
from bench.scheduling.live.testbed import testbed_cells as cells_on_testbed
from planner.many_jobs.jobs.records import (
    Announcement,
    Decision,
    Grant,
    Job,
    Stateless,
    View,
    Workload,
    grant,
)
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.policies.fcfs import Fcfs
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Placement, PolicyError, Settings
from planner.many_jobs.simulation.truth import cells_truth
from planner.shared.plan_file import parse_plan
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import seeds

MENU = (Workload(model="bert-1.3b", global_batch=256), Workload(model="moe-2.4b", global_batch=256))
POLICIES = ("fcfs", "sjf", "easy-backfill", "tiresias", "crius", "marginal", "elasticflow-ls", "gandiva")


class Clockwork:
    """`bench.scheduling.live.driver.Machines` whose iterations take what the Cells say, after `start_s`. No time
    passes but in `ended` and in `stop`, which ends iterations that have begun."""

    def __init__(self, cells: FakeCells, *, start_s: float = 0.0) -> None:
        self.cells, self.start_s = cells, start_s
        self.time_s = 0.0
        self.parts: dict[str, tuple[float, float, int]] = {}
        self.halted: dict[str, int] = {}
        self.told: set[str] = set()
        self.held: dict[str, set[tuple[str, int, int]]] = {}
        self.stops = 0

    def now_s(self) -> float:
        return self.time_s

    def start(self, job: Job, grant: Grant, placement: Placement, iterations: int) -> None:
        own = {(pool, node, bit) for pool, pieces in placement.items() for node, mask in pieces for bit in _bits(mask)}
        assert len(own) == grant.devices
        assert not any(own & seats for seats in self.held.values()), "a device used twice"
        self.held[job.id] = own
        iteration_s = cells_truth(self.cells)(job, grant, placement)
        assert iteration_s is not None
        assert iterations > 0
        self.parts[job.id] = (self.time_s + self.start_s, iteration_s, iterations)
        self.halted.pop(job.id, None)
        self.told.discard(job.id)

    def stop(self, ids: Sequence[str]) -> None:
        self.stops += len(ids)
        latest_s = self.time_s
        for id_ in ids:
            began_s, iteration_s, wanted = self.parts[id_]
            begun = math.ceil((self.time_s - began_s) / iteration_s - 1e-9)
            self.halted[id_] = min(wanted, max(0, begun))
            latest_s = max(latest_s, began_s + self.halted[id_] * iteration_s if begun > 0 else self.time_s)
            del self.held[id_]
        self.told |= set(ids)
        self.time_s = latest_s

    def done(self, id_: str) -> int:
        if id_ in self.halted:
            return self.halted[id_]
        began_s, iteration_s, wanted = self.parts[id_]
        return max(0, min(wanted, math.floor((self.time_s - began_s) / iteration_s + 1e-9)))

    def ended(self, timeout_s: float) -> Sequence[str]:
        ends = {id_: began_s + s * wanted for id_, (began_s, s, wanted) in self.parts.items() if id_ not in self.told}
        until_s = self.time_s + timeout_s
        next_s = min(ends.values(), default=math.inf)
        assert min(until_s, next_s) < math.inf, "nothing will ever happen"
        self.time_s = max(self.time_s, min(until_s, next_s))
        found = [id_ for id_, end_s in ends.items() if end_s <= self.time_s]
        self.told |= set(found)
        for id_ in found:
            del self.held[id_]
        return found


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _queue(seed: int, count: int = 24) -> tuple[Job, ...]:
    pools = two_pools()
    rules = QueueRules(count=count, least_s=200.0, most_s=900.0, load=1.5)
    return draw_queue(MENU, pools, FakeCells(pools), rules, start_s=0.0, seed=seed)


def _finished(result: Result) -> bool:
    return all(result.status(number) == "finished" for number in range(len(result.jobs)))


@pytest.mark.parametrize("seed", seeds(6, least=2))
def test_machines_that_do_as_foreseen_give_what_is_simulated(seed: int) -> None:
    jobs, pools = _queue(seed), two_pools()
    cells = FakeCells(pools)
    settings = Settings(start_s=7.0, restart_s=7.0)
    live = run_live(jobs, pools, cells, Fcfs(), Clockwork(cells, start_s=7.0), settings=settings)
    simulated = simulate(jobs, pools, cells, Fcfs(), settings=settings)
    assert live.jct_s == pytest.approx(simulated.jct_s)
    assert live.summary.queue_mean_s == pytest.approx(simulated.summary.queue_mean_s)
    assert live.summary.throughput_mean == pytest.approx(simulated.summary.throughput_mean)
    assert live.summary.utilization_mean == pytest.approx(simulated.summary.utilization_mean)
    assert live.summary.violations == 0


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", seeds(3, least=2))
def test_every_policy_drives_machines(name: str, seed: int) -> None:
    jobs, pools = _queue(seed), two_pools()
    cells = FakeCells(pools)
    settings = Settings(start_s=2.0, restart_s=2.0)
    machines = Clockwork(cells, start_s=2.0)
    live = run_live(jobs, pools, cells, make_policy(name), machines, settings=settings)
    assert _finished(live)
    assert live.summary.violations == 0
    assert not machines.held
    assert machines.stops >= live.summary.restarts
    simulated = simulate(jobs, pools, cells, make_policy(name), settings=settings)
    assert figures_of(live, cells).throughput == pytest.approx(figures_of(simulated, cells).throughput, rel=0.2)


class Turns(Stateless):
    """Gives the pool to the job that began to wait first, and after every event to the next."""

    name = "turns"

    def decide(self, view: View) -> Decision:
        grants: dict[str, Grant | None] = dict.fromkeys(view.running)
        first = next(iter(view.waiting), None)
        if first is None:
            return Decision(grants={})
        return Decision(grants={**grants, first: grant("a100", 8)})


def test_a_job_ends_the_iteration_that_it_is_in_and_does_the_rest_later() -> None:
    pools = {"a100": make_pool("a100", nodes=1)}
    cells = FakeCells(pools)
    job = make_job("a", devices=8, iterations=10)
    best = cells.best(job.workload, "a100", 8)
    assert best is not None
    iteration_s = best.iteration_time_s
    jobs = (job, replace(job, id="b", submit_s=2.5 * iteration_s, iterations=3))
    live = run_live(jobs, pools, cells, Turns(), Clockwork(cells))
    # a does three iterations, b its three, a the seven that are left.
    assert live.table.end_s[1] == pytest.approx(6 * iteration_s)
    assert live.table.end_s[0] == pytest.approx(13 * iteration_s)
    assert list(live.table.restarts) == [1, 0]
    assert live.summary.throughput_mean == pytest.approx(1.0)


@pytest.mark.parametrize("iterations", [3, 1])
def test_a_job_may_end_while_it_is_being_stopped(iterations: int) -> None:
    pools = {"a100": make_pool("a100", nodes=1)}
    cells = FakeCells(pools)
    job = make_job("a", devices=8, iterations=iterations)
    best = cells.best(job.workload, "a100", 8)
    assert best is not None
    arrival_s = (iterations - 0.5) * best.iteration_time_s
    jobs = (job, replace(job, id="b", submit_s=arrival_s, iterations=2))
    live = run_live(jobs, pools, cells, Turns(), Clockwork(cells))
    assert _finished(live)
    assert live.table.end_s[0] == pytest.approx(iterations * best.iteration_time_s)
    assert live.summary.violations == 0


class Grower(Stateless):
    """One device first, and all of them from the next event on."""

    name = "grower"

    def decide(self, view: View) -> Decision:
        if view.running:
            return Decision(grants={id_: grant("a100", 8) for id_ in view.running})
        return Decision(grants={id_: grant("a100", 1) for id_ in list(view.waiting)[:1]})


def test_a_job_that_ends_while_it_is_given_more_ends_there() -> None:
    pools = {"a100": make_pool("a100", nodes=1)}
    cells = FakeCells(pools)
    job = make_job("a", devices=1, iterations=2)
    best = cells.best(job.workload, "a100", 1)
    assert best is not None
    jobs = (job, replace(job, id="b", submit_s=1.5 * best.iteration_time_s))
    live = run_live(jobs, pools, cells, Grower(), Clockwork(cells))
    assert _finished(live)
    assert live.table.end_s[0] == pytest.approx(2 * best.iteration_time_s)
    assert live.summary.violations == 0


class Idle(Stateless):
    """Does nothing."""

    name = "idle"

    def decide(self, view: View) -> Decision:
        del view
        return Decision(grants={})


def test_a_policy_that_leaves_jobs_waiting_is_said() -> None:
    pools = two_pools()
    live = run_live([make_job()], pools, FakeCells(pools), Idle(), Clockwork(FakeCells(pools)))
    assert "leaves it waiting for ever" in live.unfinished["0"]
    with pytest.raises(ValueError, match="did not finish"):
        figures_of(live, FakeCells(pools))


class Greedy(Stateless):
    """Gives what is not there."""

    name = "greedy"

    def decide(self, view: View) -> Decision:
        return Decision(grants={id_: grant("a100", 1000) for id_ in view.waiting})


def test_decisions_are_checked_as_in_the_simulator() -> None:
    pools = two_pools()
    with pytest.raises(PolicyError, match="greedy"):
        run_live([make_job()], pools, FakeCells(pools), Greedy(), Clockwork(FakeCells(pools)))


def test_rounds_are_kept() -> None:
    pools = two_pools()
    cells = FakeCells(pools)
    jobs = (make_job("a", submit_s=10.0, iterations=50), make_job("b", submit_s=130.0, iterations=50))
    live = run_live(jobs, pools, cells, Fcfs(), Clockwork(cells), settings=Settings(round_s=60.0))
    assert list(live.table.start_s) == [60.0, 180.0]


def test_parts_of_iterations_are_refused() -> None:
    pools = two_pools()
    for wrong in (1.5, 0.0):
        job = make_job(iterations=wrong)
        with pytest.raises(InputError, match="whole number"):
            run_live([job], pools, FakeCells(pools), Fcfs(), Clockwork(FakeCells(pools)))


def test_a_queue_is_drawn_by_its_seed_alone_and_fits() -> None:
    pools = two_pools()
    cells = FakeCells(pools)
    assert _queue(3) == _queue(3)
    assert _queue(3) != _queue(4)
    for seed in range(5):
        jobs = _queue(seed)
        assert jobs[0].submit_s == 0
        assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
        for job in jobs:
            best = cells.best(job.workload, job.pool, job.devices)
            assert best is not None
            work_s = job.iterations * best.iteration_time_s
            assert (
                job.iterations == LEAST_ITERATIONS
                or 200 - best.iteration_time_s <= work_s <= 900 + best.iteration_time_s
            )
            assert job.duration_s == pytest.approx(work_s)


def test_wrong_queues_are_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"count": 0},
        {"least_s": 0.0},
        {"least_s": 5.0, "most_s": 4.0},
        {"load": 0.0},
    )
    for wrong in wrongs:
        with pytest.raises(InputError):
            QueueRules(**wrong)
    pools = {"a100": make_pool("a100", nodes=1, devices_per_node=1)}
    cells = FakeCells(pools, memory_bytes={"a100": 1.0})
    with pytest.raises(InputError, match="fits"):
        draw_queue(MENU, pools, cells, QueueRules(), start_s=0.0, seed=0)


def test_errors_are_those_of_the_figures() -> None:
    pools = two_pools()
    cells, jobs = FakeCells(pools), _queue(0)
    found = figures_of(simulate(jobs, pools, cells, Fcfs()), cells)
    same = errors_of(found, found)
    assert (same.throughput, same.jct, same.jct_each) == (0, 0, 0)
    slower = replace(
        found,
        throughput=0.8 * found.throughput,
        jct_mean_s=1.25 * found.jct_mean_s,
        jct_s=tuple(1.25 * s for s in found.jct_s),
    )
    errors = errors_of(slower, found)
    assert (errors.throughput, errors.jct, errors.jct_each) == pytest.approx((-0.2, 0.25, 0.25))
    said = describe([Row(policy="fcfs", live=found, simulated={"estimated": slower})])
    assert "throughput 20.00%" in said
    assert "JCT 25.00%" in said


def test_measured_times_stand_in_for_the_cells_that_were_measured() -> None:
    pools = two_pools()
    cells, job = FakeCells(pools), make_job(devices=2)
    best = cells.best(job.workload, "a100", 2)
    assert best is not None
    one = Measured(
        workload=job.workload,
        pool="a100",
        devices=2,
        stages=best.stages,
        estimated_s=best.iteration_time_s,
        iteration_s=123.0,
        alone_s=100.0,
        start_s=1.0,
    )
    truth = measured_truth([one], cells)
    assert truth(job, grant("a100", 2), None) == 123.0
    assert measured_truth([one], cells, alone=True)(job, grant("a100", 2), None) == 100.0
    assert truth(job, grant("a100", 2, best.stages), None) == 123.0
    assert truth(job, grant("a100", 4), None) == cells_truth(cells)(job, grant("a100", 4), None)
    assert truth(job, Grant(parts=(("a100", 2), ("v100", 2))), None) is None


def test_a_neighbour_slows_by_as_much_of_the_node_as_it_keeps_busy() -> None:
    """Between 100 s by itself and 120 s on a full node of 8; the fullest node of several counts."""
    pool, job = two_pools()["a100"], make_job(devices=4)
    size = pool.devices_per_node
    sharing = NodeNeighbours(pools={pool.name: pool}, alone=lambda *_: 100.0, crowded=lambda *_: 120.0)
    placement = {pool.name: ((0, 0b11), (3, 0b11))}
    assert sharing.uses(job, grant(pool.name, 4), placement) == {f"{pool.name}/0": 2, f"{pool.name}/3": 2}

    def beside(first: int, second: int) -> float:
        in_use = {f"{pool.name}/0": first, f"{pool.name}/3": second}
        return sharing.iteration_s(job, grant(pool.name, 4), placement, in_use)

    assert beside(2, 2) == 100.0
    assert beside(size, 2) == beside(2, size) == 120.0
    assert beside(2, 2 + (size - 2) // 2) == pytest.approx(110.0)
    whole = {pool.name: ((0, (1 << size) - 1),)}
    assert sharing.iteration_s(job, grant(pool.name, size), whole, {f"{pool.name}/0": size}) == 100.0


def test_workers_are_told_the_plan_of_the_cell_and_sleep_as_long_as_it_computes() -> None:
    cells = cells_on_testbed(load_cluster(str(CLUSTER)), ())
    orders = orders_of_cells(cells, sleeps=True)
    for workload in TESTBED_MENU:
        for option in cells.options(workload, "north/sleeper-fast", 4):
            told = orders(workload, option.pool, option.devices, option.stages)
            plan = parse_plan(told["plan"], "plan")
            assert plan.estimate.iteration_time_s == pytest.approx(option.iteration_time_s)
            assert ["dp" if stage.tp == 1 else "tp" for stage in plan.stages] == list(option.assembly)
            for stage, times in zip(plan.stages, told["times"], strict=True):
                slept_s = sum(forward_s + backward_s for forward_s, backward_s, _ in times.values())
                assert stage.compute_s == pytest.approx(slept_s)
        fastest = cells.options(workload, "north/sleeper-fast", 4)[0]
        assert orders(workload, fastest.pool, 4, None) == orders(workload, fastest.pool, 4, fastest.stages)


ONE_NODE = """
schema: cellplan.cluster/1
sites:
  - name: here
    nodes:
      - count: 1
        device:
          name: core
          memory_bytes: 17179869184
          memory_bandwidth_bytes_per_s: 20.0e9
          peak_flops_per_s: {fp32: 0.1e12}
          contention: [[2, 1.5]]
        devices: 2
        island: {link: {name: inside, kind: pcie, bandwidth_bytes_per_s: 2.0e9, latency_s: 5.0e-5}, size: 2}
        nics: {count: 1, link: ethernet-100g}
        host_link: pcie4-x16
"""


def test_crowded_cells_are_priced_with_busy_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(ONE_NODE, encoding="utf-8")
    cluster = load_cluster(str(file))
    pools = pools_of(cluster)
    workload = Workload(model="wide-resnet-tiny", global_batch=16, dtype="fp32")
    alone, crowded = (cells(cluster=cluster, pools=pools) for cells in (EstimatedCells, CrowdedCells))
    one, other = alone.best(workload, "core", 1), crowded.best(workload, "core", 1)
    assert one is not None
    assert other is not None
    assert other.iteration_time_s == pytest.approx(1.5 * one.iteration_time_s, rel=0.01)
    assert crowded.options(workload, "core", 2) == alone.options(workload, "core", 2)


def test_a_reservation_holds_on_machines_too() -> None:
    """The announced job finds its nodes free of who came later, and starts when it comes."""
    pools = {"a100": make_pool("a100", nodes=2, devices_per_node=8)}
    cells = FakeCells(pools)
    best = cells.best(MENU[0], "a100", 8)
    assert best is not None
    whole = math.ceil(600.0 / best.iteration_time_s)

    def of(id_: str, submit_s: float, iterations: int) -> Job:
        length_s = iterations * best.iteration_time_s
        made = make_job(id_, submit_s=submit_s, devices=8, iterations=iterations, duration_s=length_s)
        return replace(made, workload=MENU[0])

    plan = Announcement(known_s=10.0, arrival_s=300.0)
    jobs = (of("first", 0.0, whole), replace(of("big", 300.0, 5), planned=plan), of("late", 20.0, whole))
    result = run_live(jobs, pools, cells, make_policy("arnold"), Clockwork(cells))
    starts = {job.id: result.table.start_s[number] for number, job in enumerate(result.jobs)}
    assert _finished(result)
    assert starts["big"] == 300.0
    assert starts["late"] > 300.0
