"""What is counted of nodes: by hand, and beside a count of the timeline's slices."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest

from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.simulation.tables import jobs_csv
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.simulation_examples import PowerCells


def test_two_jobs_by_hand() -> None:
    """PowerCells: an iteration takes a second. Two nodes of four; six devices for 100 s, and from 40 s on two more."""
    jobs = (
        make_job("six", pool="a", devices=6, iterations=100.0),
        make_job("two", submit_s=40.0, pool="a", devices=2, iterations=100.0),
        make_job("late", submit_s=50.0, pool="a", devices=4, iterations=10.0),
    )
    pools = {"a": make_pool("a", nodes=2, devices_per_node=4)}

    def second(*_: object) -> float:
        return 1.0

    for placer, scattered in ((None, 0.0), (make_placer("kube-spread"), 2 / 3)):
        settings = Settings(truth=second, placer=placer, series=True)
        result = simulate(jobs, pools, PowerCells(), make_policy("fcfs"), settings=settings)
        summary = result.summary
        # six: 0 to 100; two: 40 to 140; late: 100 to 110, when four are free.
        assert result.table.end_s.tolist() == [100.0, 140.0, 110.0]
        both_s, one_s = (110.0, 30.0)
        assert summary.nodes_in_use_peak == 2
        if placer is None:
            assert summary.machine_hours == pytest.approx((2 * both_s + one_s) / 3600)
            assert summary.nodes_in_use_mean == pytest.approx((2 * both_s + one_s) / 140)
            held_s = 6 * 100 + 2 * 100 + 4 * 10
            assert summary.fragmentation_mean == pytest.approx(1 - held_s / (4 * (2 * both_s + one_s)))
            assert summary.nodes_idle_mean == pytest.approx(one_s / 140)
        # ceil(6 / 4), ceil(8 / 4), ceil(6 / 4), ceil(2 / 4).
        assert summary.nodes_least_mean == pytest.approx((2 * 110 + 30) / 140)
        assert summary.scattered_ratio == pytest.approx(scattered)
        assert summary.held_back == 0
        assert list(result.table.nodes) == [2, 1, 1] if placer is None else [2, 2, 2]


def test_who_waits_though_enough_is_free() -> None:
    """First come, first served: a job of one waits behind one of eight."""
    jobs = (
        make_job("first", devices=2),
        make_job("eight", submit_s=1.0, devices=8),
        make_job("one", submit_s=2.0, devices=1),
    )
    pools = {"a100": make_pool("a100", nodes=1)}
    result = simulate(jobs, pools, FakeCells(), make_policy("fcfs"))
    assert result.summary.held_back == 1
    assert result.summary.scattered_ratio == 0.0


@pytest.mark.parametrize("name", ["best-fit", "titan", "hived", "kube-spread", "random"])
@pytest.mark.parametrize("failing", [False, True])
def test_beside_a_count_of_the_slices(name: str, failing: bool) -> None:
    for seed, policy in enumerate(("fcfs", "elasticflow", "gavel")):
        settings = Settings(
            slices=True,
            series=True,
            until_s=100_000.0,
            placer=make_placer(name),
            failures=Failures(mtbf_s=20_000.0, repair_s=1000.0, seed=seed) if failing else None,
        )
        jobs = draw_workload(Random(seed), 40)
        result = simulate(jobs, two_pools(), FakeCells(), make_policy(policy), settings=settings)
        check_nodes(result, failing)


def check_nodes(result: Result, failing: bool) -> None:
    """Every figure again, from who sat where when."""
    summary, sizes = result.summary, {"a100": (4, 8), "v100": (4, 4)}
    times = sorted({0.0} | {time_s for one in result.slices for time_s in (one[4], one[6])})
    times = [result.jobs[0].submit_s, *[time_s for time_s in times if time_s > result.jobs[0].submit_s]]
    node_s = least_s = device_s = held_s = 0.0
    peak = 0
    for start_s, end_s in pairwise(times):
        held: defaultdict[tuple[str, int], int] = defaultdict(int)
        for _, pool, node, mask, from_s, _, to_s in result.slices:
            if from_s <= start_s and to_s >= end_s:
                held[pool, node] += mask.bit_count()
        span_s = end_s - start_s
        node_s += len(held) * span_s
        peak = max(peak, len(held))
        device_s += sum(sizes[pool][1] for pool, _ in held) * span_s
        held_s += sum(held.values()) * span_s
        for name, (_, size) in sizes.items():
            least_s += math.ceil(sum(count for (pool, _), count in held.items() if pool == name) / size) * span_s
    assert summary.machine_hours == pytest.approx(node_s / 3600)
    assert least_s <= node_s * (1 + 1e-12)
    assert summary.nodes_in_use_peak == peak
    assert summary.nodes_in_use_mean == pytest.approx(node_s / summary.simulated_s)
    assert summary.nodes_least_mean == pytest.approx(least_s / summary.simulated_s)
    assert summary.fragmentation_mean == pytest.approx(1 - held_s / device_s)
    if not failing:
        assert summary.nodes_idle_mean == pytest.approx(8 - node_s / summary.simulated_s)
    column = [int(count) for count in result.series["nodes_in_use"]]
    assert max(column) >= peak
    assert ",nodes," in jobs_csv(result).splitlines()[0]
