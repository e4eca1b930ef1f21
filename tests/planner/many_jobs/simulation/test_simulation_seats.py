"""What jobs send between nodes and what their devices are sold for: by hand, and beside a count of the slices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from estimator.communication.phases import Algorithm, bytes_across, collective_phases
from estimator.communication.rank_order import best_order
from planner.many_jobs.jobs.records import AS_LOGGED, Workload
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.scheduling.cell_book import pool_prices
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.seat_costs import cross_node_bytes
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.simulation.tables import jobs_csv
from planner.many_jobs.traces.assign import count_parameters
from profiles.cluster_file import load_cluster
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.simulation_examples import PowerCells

ZOO = ("bert-1.3b", "bert-2.6b")
PRICES = {"a100": 2.0, "v100": 0.5}


def two_seconds(*_: object) -> float:
    return 2.0


def test_two_jobs_by_hand() -> None:
    """Two nodes of four: six devices sit on both for 200 s, two more on one of them from 100 to 300 s."""
    jobs = (
        make_job("six", pool="a", devices=6, iterations=100.0),
        make_job("two", submit_s=100.0, pool="a", devices=2, iterations=100.0),
    )
    pools = {"a": make_pool("a", nodes=2, devices_per_node=4)}
    settings = Settings(truth=two_seconds, prices={"a": 3.0})
    result = simulate(jobs, pools, PowerCells(), make_policy("fcfs"), settings=settings)
    summary, gradients = result.summary, 2 * count_parameters("bert-1.3b")
    # A ring over six leaves each of the two nodes once, with 2 x 5 / 6 of the gradients.
    sent = 100 * 2 * 2 * 5 / 6 * gradients
    assert result.table.cross_node_bytes.tolist() == [pytest.approx(sent), 0.0]
    assert summary.cross_node_bytes_per_s == pytest.approx(sent / 300)
    device_s, node_s = 6 * 200 + 2 * 200, 2 * 200 + 1 * 100
    assert summary.device_hours_per_machine_hour == pytest.approx(device_s / node_s)
    assert summary.revenue_per_machine_hour == pytest.approx(3 * device_s / node_s)
    assert result.table.revenue.tolist() == pytest.approx([1.0, 1 / 3.0])
    # K = 400 / 300 run at a time, P = 800 device-seconds, N = 500 / 300 nodes, T = 200 s: equal lengths, nobody waits.
    assert summary.device_hours_as_printed == pytest.approx((4 / 3) * 800 / ((5 / 3) * 200))
    assert summary.revenue_as_printed == pytest.approx(3 * (4 / 3) * 800 / ((5 / 3) * 200))
    assert ",cross_node_bytes," in jobs_csv(result).splitlines()[0]


def test_as_printed_mixes_lengths_and_waits() -> None:
    """A node of four: one waits for the other. What was sold is the same, the printed figure is not."""
    pools = {"a": make_pool("a", nodes=1, devices_per_node=4)}
    jobs = tuple(make_job(name, pool="a", devices=4, iterations=10.0) for name in ("first", "second"))
    summary = simulate(jobs, pools, PowerCells(), make_policy("fcfs"), settings=Settings(truth=two_seconds)).summary
    assert summary.device_hours_per_machine_hour == pytest.approx(4.0)
    # K = 1, P = 80 device-seconds, N = 1, T = (20 + 40) / 2 s.
    assert summary.device_hours_as_printed == pytest.approx(80 / 30)


def test_what_is_not_known_is_null() -> None:
    pools = {"a": make_pool("a", nodes=2, devices_per_node=4)}
    spread = make_job("spread", pool="a", devices=8, iterations=10.0)
    for model in (AS_LOGGED, "no-such-model", "module:Class"):
        unknown = Workload(model=model, global_batch=8)
        for devices, told in ((8, False), (4, True)):
            job = replace(spread, workload=unknown, devices=devices)
            settings = Settings(truth=two_seconds, prices={"b": 1.0})
            result = simulate((job,), pools, PowerCells(), make_policy("fcfs"), settings=settings)
            # On one node nothing is sent, whatever the model.
            assert result.summary.cross_node_bytes_per_s == (0.0 if told else None)
            assert result.summary.revenue_per_machine_hour is None
    free = simulate((spread,), pools, PowerCells(), make_policy("fcfs"), settings=Settings(truth=two_seconds)).summary
    assert (free.revenue_per_machine_hour, free.revenue_as_printed) == (None, None)
    nobody = simulate((), pools, PowerCells(), make_policy("fcfs")).summary
    assert (nobody.cross_node_bytes_per_s, nobody.device_hours_as_printed) == (None, None)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling"])
def test_the_fewer_the_nodes_the_less_is_sent(algorithm: Algorithm) -> None:
    workload = Workload(model="bert-1.3b", global_batch=8, dtype="fp32")
    spans = [{"a": tuple((node, (1 << size) - 1) for node, size in enumerate(sizes))} for sizes in ((4, 4), (2,) * 4)]
    less, more = (cross_node_bytes(algorithm, workload, placement) for placement in spans)
    assert 4 * count_parameters("bert-1.3b") <= less < more


@pytest.mark.parametrize("name", ["best-fit", "hived", "random"])
@pytest.mark.parametrize("until_s", [None, 9000.0])
def test_beside_a_count_of_the_slices(name: str, until_s: float | None) -> None:
    for seed, policy in enumerate(("fcfs", "elasticflow", "gavel")):
        settings = Settings(
            slices=True,
            until_s=until_s,
            placer=make_placer(name),
            prices=PRICES,
            all_reduce="halving-doubling" if seed else "ring",
            failures=Failures(mtbf_s=20_000.0, repair_s=1000.0, seed=seed),
        )
        jobs = tuple(job for job in draw_workload(Random(seed), 60) if job.workload.model in ZOO)
        result = simulate(jobs, two_pools(), FakeCells(), make_policy(policy), settings=settings)
        assert result.summary.cross_node_bytes_per_s
        check_seats(result, settings.all_reduce)


def check_seats(result: Result, algorithm: Algorithm) -> None:
    """Every figure again, from who sat where when."""
    cells, seats = FakeCells(), defaultdict[tuple[int, str, float, float, float], list[int]](list)
    for number, pool, _, mask, from_s, restarted_s, to_s in result.slices:
        seats[number, pool, from_s, restarted_s, to_s].append(mask.bit_count())
    sent, sold, held_s = defaultdict[int, float](float), 0.0, 0.0
    for (number, pool, from_s, restarted_s, to_s), counts in seats.items():
        workload, devices = result.jobs[number].workload, sum(counts)
        held_s += devices * (to_s - from_s)
        sold += devices * (to_s - from_s) / 3600 * PRICES[pool]
        cell = cells.best(workload, pool, devices)
        assert cell is not None
        phases = collective_phases(algorithm, "all_reduce", devices, 2.0 * count_parameters(workload.model))
        across = bytes_across(phases, best_order(algorithm, counts))
        sent[number] += across * (to_s - restarted_s) / cell.iteration_time_s
    for number, value in enumerate(result.table.cross_node_bytes):
        assert value == pytest.approx(sent[number], rel=1e-9, abs=1.0)
    summary = result.summary
    assert summary.cross_node_bytes_per_s == pytest.approx(sum(sent.values()) / summary.simulated_s)
    assert summary.machine_hours is not None
    assert summary.device_hours_per_machine_hour == pytest.approx(held_s / 3600 / summary.machine_hours)
    assert summary.revenue_per_machine_hour == pytest.approx(sold / summary.machine_hours)


def test_prices_come_from_the_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "schema: cellplan.cluster/1\nsites:\n- name: here\n  nodes:\n"
        "  - {device: a100-80gb, devices: 8, count: 2, price_per_device_hour: 1.5}\n"
        "  - {device: h100, devices: 8, count: 1}\n"
    )
    assert pool_prices(load_cluster(str(path))) == {"a100-80gb": 1.5}
