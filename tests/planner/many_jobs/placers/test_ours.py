"""Ours beside every way there is; when it waits; and that whoever waits is placed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Grant, Job, NodeCounts
from planner.many_jobs.placers.best_fit import BestFit
from planner.many_jobs.placers.dividing import evenest, fullest, partitions
from planner.many_jobs.placers.ours import EQUAL, MORE_NODES, Ours, standing
from planner.many_jobs.placers.records import FreeNodes, Later, Request
from planner.many_jobs.placers.whole_nodes import whole_nodes_from
from planner.many_jobs.policies.catalogue import POLICIES, make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import CheckpointFile, Placement, PlacerError, Settings
from planner.many_jobs.simulation.truth import cells_truth
from profiles.network import FabricLevel, FabricPart, Network
from tests.oracles.ours_oracle import best_standing, whole_from_s
from tests.planner.many_jobs.placers.placer_examples import Nodes, request
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.planner.many_jobs.simulation.test_simulation_policies import run_policy
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import examples, seeds


def drawn_times(draw: Random) -> dict[tuple[int, ...], float]:
    """Seconds by the counts of the nodes, the largest first, as `price` fills it."""
    return {(): draw.choice((0.0, 0.2, 1.0))}


def price_by(times: dict[tuple[int, ...], float], draw: Random, counts: NodeCounts) -> float:
    shape = tuple(sorted((count for _, count in counts), reverse=True))
    return times.setdefault(shape, 1.0 + times[()] * draw.random())


@pytest.mark.parametrize("seed", seeds(300, least=60))
def test_no_way_on_so_few_nodes_is_faster_nor_as_fast_and_stands_better(seed: int) -> None:
    draw = Random(seed)
    size = draw.choice((2, 4, 8))
    free = tuple(draw.randint(0, size) for _ in range(draw.randint(1, 6)))
    wanted = draw.randint(1, max(1, min(10, sum(free))))
    if wanted > sum(free):
        return
    times = drawn_times(draw)

    def price(counts: NodeCounts) -> float:
        return price_by(times, draw, counts)

    chosen = Ours().place(Nodes(free), replace(request(wanted, size=size), iteration_s=price))
    assert not isinstance(chosen, Later)
    least_s, best = best_standing(free, size, wanted, price, equal=EQUAL, more=MORE_NODES)
    assert price(chosen) <= least_s * (1 + EQUAL)
    assert standing(free, size, chosen) == best


@pytest.mark.parametrize("seed", seeds(300, least=60))
def test_when_whole_nodes_come_free_is_when_the_first_end_makes_them(seed: int) -> None:
    draw = Random(seed)
    size, now_s = draw.choice((2, 4, 8)), 10.0
    free, ends = list[int](), dict[int, list[tuple[float, int]]]()
    for node in range(draw.randint(1, 6)):
        left = size
        ends[node] = []
        while left and draw.random() < 0.7:
            held = draw.randint(1, left)
            left -= held
            if draw.random() < 0.9:
                ends[node].append((float(draw.randint(5, 30)), held))
        free.append(left)
    wanted = draw.randint(1, size * (len(free) + 1))
    found = whole_nodes_from(Nodes(free, ends=ends), replace(request(wanted, size=size), now_s=now_s))
    assert (None if found is None else found[0]) == whole_from_s(free, size, wanted, ends, now_s)
    if found is not None:
        assert sum(count for _, count in found[1]) == wanted
        assert len({node for node, _ in found[1]}) == len(found[1]) == -(-wanted // size)


@given(st.integers(1, 14), st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_the_fullest_and_the_evenest_division_are_the_first_and_the_last(devices: int, caps: list[int]) -> None:
    caps.sort(reverse=True)
    every = list(partitions(devices, caps))
    if every:
        assert fullest(devices, caps) == every[0]
        assert evenest(devices, caps) == every[-1]


@pytest.mark.parametrize("seed", seeds(200, least=40))
def test_one_node_is_in_use_for_the_least_time_more(seed: int) -> None:
    draw = Random(seed)
    free = tuple(draw.randint(0, 4) for _ in range(draw.randint(1, 8)))
    ends_s = {node: float(draw.randint(0, 9)) for node, count in enumerate(free) if count < 4 and draw.random() < 0.9}
    wanted, end_s = draw.randint(1, max(1, *free)), float(draw.randint(3, 9))
    if wanted > max(free):
        return
    asked = replace(request(wanted, size=4, end_s=end_s), now_s=2.0)
    chosen = Ours().place(Nodes(free, ends_s), asked)
    assert isinstance(chosen, tuple)
    ((node, count),) = chosen
    assert count == wanted

    def in_use_s(there: int | None) -> float:
        """Seconds for which the nodes are in use, as far as is known, with the job on one of them."""
        until_s = [max(2.0, ends_s.get(other, 2.0), end_s * (other == there)) for other in range(len(free))]
        return sum(until_s) - 2.0 * len(free)

    holding = [other for other, count in enumerate(free) if count >= wanted]
    assert in_use_s(node) == min(map(in_use_s, holding))
    assert free[node] == min(free[other] for other in holding if in_use_s(other) == in_use_s(node))


FREE = (4, 4, 1)
ENDS = {0: [(100.0, 4)], 1: [(40.0, 4)], 2: [(20.0, 3), (900.0, 4)]}


def slower(share: float, counts: NodeCounts) -> float:
    """An iteration takes so much longer on several nodes."""
    return 1.0 + share * (len(counts) > 1)


@pytest.mark.parametrize(
    ("share", "end_s", "expected"),
    [
        # It waits for node 1, 40 s, if its own 100 s would be 50 s longer, and not if they would be 30 s longer.
        (0.5, 100.0, Later(until_s=40.0)),
        (0.3, 100.0, ((0, 4), (1, 4))),
        (0.3, 200.0, Later(until_s=40.0)),
        # Nobody knows how long it runs.
        (0.5, None, ((0, 4), (1, 4))),
    ],
)
def test_it_waits_where_slower_iterations_would_cost_more(
    share: float, end_s: float | None, expected: NodeCounts | Later
) -> None:
    asked = replace(request(8, end_s=end_s), iteration_s=lambda counts: slower(share, counts), may_wait=True)
    assert Ours().place(Nodes(FREE, ends=ENDS), asked) == expected
    # Where it may not wait, or nobody says what places cost, it starts.
    for other in (replace(asked, may_wait=False), replace(asked, iteration_s=lambda _: None)):
        assert Ours().place(Nodes(FREE, ends=ENDS), other) == ((0, 4), (1, 4))
    assert Ours(wait=False).place(Nodes(FREE, ends=ENDS), asked) == ((0, 4), (1, 4))


def test_one_part_of_the_network_is_chosen_where_an_iteration_is_faster_there() -> None:
    level = FabricLevel(name="rack", parts=(FabricPart(name="r0"), FabricPart(name="r1")), part_of=(0, 1, 0, 1))
    asked = replace(request(6), network=Network(levels=(level,)))

    def price(counts: NodeCounts) -> float:
        return 1.0 + 0.5 * (len({node % 2 for node, _ in counts}) > 1)

    nodes = Nodes((3, 3, 4, 4))
    assert Ours().place(nodes, replace(asked, iteration_s=price)) == ((2, 4), (0, 2))
    assert Ours().place(nodes, asked) == ((0, 3), (1, 3))
    nodes = Nodes((2, 3, 3, 4))
    assert Ours().place(nodes, replace(asked, iteration_s=price)) == ((3, 4), (1, 2))
    assert Ours().place(nodes, asked) == ((3, 4), (0, 2))


class Reluctant:
    """Lets every job wait as long as it may, then best-fit."""

    name = "reluctant"

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts | Later:
        if request.may_wait:
            return Later(until_s=request.now_s + self.wait_s)
        return BestFit().place(nodes, request)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=examples(6, least=2), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), count=st.integers(1, 25), failing=st.booleans())
def test_nobody_starves_by_a_rule_that_lets_all_wait(policy: str, seed: int, count: int, failing: bool) -> None:
    run_policy(policy, seed, count, None, failing, announced=True, placer=Reluctant(100.0))


def test_who_waits_is_asked_for_again_and_placed_in_time() -> None:
    jobs = (
        make_job("one", devices=4, duration_s=1000.0),
        make_job("two", submit_s=10.0, devices=4, duration_s=30.0),
        make_job("three", submit_s=500.0, devices=1, duration_s=5.0),
    )
    options = Settings(placer=Reluctant(100.0), truth=truth_of)
    result = run_until(jobs, options, pools={"a100": make_pool("a100", nodes=1)})
    assert list(result.table.start_s) == [100.0, 110.0, 600.0]
    assert result.summary.held_back == 3


def run_until(jobs: tuple[Job, ...], options: Settings, policy: str = "fcfs", pools: object = None) -> Result:
    return simulate(jobs, pools or two_pools(), FakeCells(), make_policy(policy), settings=options)  # type: ignore[arg-type]


def test_a_rule_that_waits_where_it_may_not_ends_the_run() -> None:
    class Endless(Reluctant):
        def place(self, nodes: FreeNodes, request: Request) -> NodeCounts | Later:
            del nodes
            return Later(until_s=request.now_s + self.wait_s)

    jobs = (make_job("first", submit_s=25.0, devices=4),)
    with pytest.raises(PlacerError, match="may not wait longer"):
        run_until(jobs, Settings(placer=Endless(50.0)))
    with pytest.raises(PlacerError, match="a time after now"):
        run_until(jobs, Settings(placer=Endless(-1.0)))


def test_a_run_in_which_jobs_wait_goes_on_the_same(tmp_path: Path) -> None:
    jobs = draw_workload(Random(3), 30)
    options = Settings(slices=True, until_s=40_000.0, placer=Reluctant(3000.0))
    whole = run_until(jobs, options)
    for looks_taken in (3, 10, 25):
        looks = iter(range(10**9))
        file = CheckpointFile(path=tmp_path / f"{looks_taken}.json", resume=True)
        stopping = replace(options, look_every=1, checkpoint=file)

        def stop(most: int = looks_taken, looks: object = looks) -> bool:
            return next(looks) >= most  # type: ignore[call-overload, no-any-return]

        with pytest.raises(KeyboardInterrupt):
            run_until(jobs, replace(stopping, stop=stop))
        resumed = run_until(jobs, stopping)
        assert resumed.slices == whole.slices
        assert resumed.summary == whole.summary


def truth_of(job: Job, grant: Grant, placement: Placement | None) -> float:
    """An iteration takes 30% longer on more nodes than whole ones would be."""
    nodes = 1 if placement is None else sum(map(len, placement.values()))
    return job.duration_s / job.iterations * (1.0 + 0.3 * (nodes > -(-grant.devices // 8)))


def test_waiting_ends_the_job_sooner_where_the_ends_are_right() -> None:
    jobs = (
        make_job("long", devices=5, duration_s=5000.0),
        make_job("short", submit_s=2.0, devices=5, duration_s=100.0),
        make_job("third", submit_s=3.0, devices=6, duration_s=1000.0),
    )
    pools = {"a100": make_pool("a100", nodes=2)}
    ends_s = {}
    for name, placer in (("now", Ours(wait=False)), ("later", Ours())):
        options = Settings(placer=placer, truth=truth_of, seat_times=truth_of)
        ends_s[name] = run_until(jobs, options, pools=pools).table.end_s[2]
    assert ends_s == {"now": 1303.0, "later": 1102.0}


@settings(max_examples=examples(12, least=4), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 30),
    policy=st.sampled_from(["fcfs", "elasticflow", "crius", "gavel", "arnold", "tiresias"]),
    failing=st.booleans(),
)
def test_ours_where_places_have_prices(seed: int, count: int, policy: str, failing: bool) -> None:
    cells = FakeCells()
    of_cells = cells_truth(cells)

    def truth(job: Job, grant: Grant, placement: Placement | None) -> float | None:
        time_s = of_cells(job, grant, placement)
        spread = 1 if placement is None else sum(map(len, placement.values()))
        return None if time_s is None else time_s * (1.0 + 0.2 * (spread - 1))

    jobs = draw_workload(Random(seed), count)
    failures = Failures(mtbf_s=20_000.0, repair_s=600.0, seed=seed) if failing else None
    options = Settings(placer=Ours(), truth=truth, seat_times=truth, failures=failures, until_s=10 * 86400.0)
    result = simulate(jobs, two_pools(), cells, make_policy(policy), settings=options)
    assert result.summary.violations == 0
