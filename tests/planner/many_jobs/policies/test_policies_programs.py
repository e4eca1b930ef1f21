"""The programs that policies solve, beside brute force."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from planner.many_jobs.policies.elasticflow import by_marginal_return, gained_rate, saved_device_s
from planner.many_jobs.scheduling.beliefs import Ladder
from planner.many_jobs.scheduling.choices import Options, choose
from planner.many_jobs.scheduling.shares import Classes, fair_shares, makespan_shares, throughput_shares
from planner.many_jobs.scheduling.slots import Demand, Plan, minimum_share, slot_edges
from tests.oracles.policy_oracle import (
    best_vertex,
    cheapest_choice,
    gavel_polytope,
    max_min_levels,
    smallest_share,
)
from tests.seeds import seeds

# at most one option for each job


def draw_options(rng: np.random.Generator, jobs: int, options: int, pools: int) -> Options:
    cost = rng.uniform(0.1, 2.0, (jobs, options))
    cost[rng.random((jobs, options)) < 0.2] = np.inf
    return Options(
        cost=cost,
        idle=rng.uniform(0.5, 2.5, jobs),
        pool=rng.integers(0, pools, options),
        count=2 ** rng.integers(0, 3, options),
        capacity=rng.integers(0, 9, pools),
    )


def check_choice(options: Options, chosen: np.ndarray[tuple[int], np.dtype[np.int64]], value: float) -> None:
    used = np.zeros(options.capacity.size, np.int64)
    total = 0.0
    for job, pick in enumerate(chosen):
        total += options.idle[job] if pick < 0 else options.cost[job, pick]
        if pick >= 0:
            used[options.pool[pick]] += options.count[pick]
    assert (used <= options.capacity).all()
    assert total == pytest.approx(value)


@pytest.mark.parametrize("seed", seeds(150))
def test_choices_are_optimal_where_asked_and_bounded_always(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = draw_options(rng, int(rng.integers(1, 5)), int(rng.integers(1, 5)), int(rng.integers(1, 3)))
    best = cheapest_choice(
        options.cost, options.idle, options.pool.tolist(), options.count.tolist(), options.capacity.tolist()
    )
    exact = choose(options, gap=0.0)
    check_choice(options, exact.chosen, exact.value)
    assert exact.value == pytest.approx(best)
    assert exact.bound == pytest.approx(best)
    rough = choose(options, most_exact=0)
    check_choice(options, rough.chosen, rough.value)
    assert rough.bound - 1e-9 <= best <= rough.value + 1e-9


def test_many_jobs_come_within_the_gap_of_the_bound() -> None:
    rng = np.random.default_rng(1)
    size = rng.uniform(0.5, 5.0, 300)
    count = np.tile(2 ** np.arange(6), 2)
    speed = np.concatenate([np.full(6, 1.0), np.full(6, 0.4)])
    cost = size[:, None] / (speed * count**0.8)[None, :]
    options = Options(
        cost=cost,
        idle=np.full(300, 20.0),
        pool=np.repeat([0, 1], 6),
        count=count,
        capacity=np.array([256, 128]),
    )
    found = choose(options, gap=0.005)
    check_choice(options, found.chosen, found.value)
    assert found.value <= found.bound * 1.01


def test_nobody_asks() -> None:
    empty = np.zeros(0, np.int64)
    options = Options(cost=np.zeros((0, 0)), idle=np.zeros(0), pool=empty, count=empty, capacity=np.array([4]))
    assert choose(options).chosen.size == 0


# Gavel


def draw_classes(rng: np.random.Generator) -> Classes:
    rate = rng.uniform(0.2, 2.0, (2, 2))
    rate[rng.random((2, 2)) < 0.15] = 0.0
    return Classes(
        rate=rate,
        devices=2 ** rng.integers(0, 3, 2),
        number=rng.integers(1, 4, 2),
        capacity=rng.integers(1, 9, 2),
    )


def check_fractions(classes: Classes, shares: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) <= 1 + 1e-6).all()
    assert (shares[classes.rate == 0] == 0).all()
    used = (shares * (classes.number * classes.devices)[:, None]).sum(axis=0)
    assert (used <= classes.capacity + 1e-6).all()


@pytest.mark.parametrize("seed", seeds(60))
def test_throughput_is_that_of_the_best_vertex(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, weight = draw_classes(rng), rng.uniform(0.5, 2.0, 2)
    shares = throughput_shares(classes, weight)
    check_fractions(classes, shares)
    rows, limits = gavel_polytope(
        classes.rate, classes.devices.tolist(), classes.number.tolist(), classes.capacity.tolist()
    )
    worth = (classes.rate * weight[:, None]).ravel()
    best = best_vertex(worth, rows, limits)
    assert (shares * classes.number[:, None] * classes.rate * weight[:, None]).sum() == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("seed", seeds(30))
def test_water_filling_is_max_min_fair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, scale = draw_classes(rng), rng.uniform(0.5, 2.0, 2)
    shares = fair_shares(classes, scale)
    check_fractions(classes, shares)
    levels = (shares * classes.rate).sum(axis=1) * scale
    rows, limits = gavel_polytope(
        classes.rate, classes.devices.tolist(), classes.number.tolist(), classes.capacity.tolist()
    )
    per_job = np.zeros((2, 4))
    for index in range(2):
        per_job[index, 2 * index : 2 * index + 2] = classes.rate[index] * scale[index] / classes.number[index]
    wanted = max_min_levels(per_job, rows, limits)
    # A class that runs nowhere holds nobody down in ours; in the oracle it is fixed at 0 first, which is the same.
    assert levels == pytest.approx(wanted, abs=1e-4)
    lowest = fair_shares(classes, scale, levels=1)
    check_fractions(classes, lowest)
    able = classes.rate.max(axis=1) > 0
    if able.any():
        assert ((lowest * classes.rate).sum(axis=1) * scale)[able].min() == pytest.approx(levels[able].min(), abs=1e-4)


def test_makespan_gives_more_to_who_has_more_left() -> None:
    classes = Classes(rate=np.ones((2, 1)), devices=np.array([4, 4]), number=np.array([1, 1]), capacity=np.array([4]))
    assert makespan_shares(classes, np.array([30.0, 10.0])) == pytest.approx(np.array([[0.75], [0.25]]))


# ElasticFlow


def draw_ladder(rng: Random) -> Ladder:
    counts = tuple(1 << power for power in range(rng.randint(0, 1), rng.randint(2, 4)))
    rate, rates = 0.0, list[float]()
    for _ in counts:
        rate += rng.randint(1, 8) / 4
        rates.append(rate)
    return Ladder(counts=counts, rates=tuple(rates))


def demand_of(rng: Random, edges: list[float]) -> Demand:
    return Demand(work=rng.randint(1, 200) / 4, due_s=float(rng.randint(0, int(edges[-1]))), ladder=draw_ladder(rng))


@pytest.mark.parametrize("seed", seeds(300))
def test_minimum_shares_are_those_of_algorithm_1(seed: int) -> None:
    rng = Random(seed)
    edges = [0.0]
    for _ in range(rng.randint(1, 6)):
        edges.append(edges[-1] + rng.randint(1, 8))
    free = [rng.randint(0, 9) for _ in edges[1:]]
    demand = demand_of(rng, edges)
    found = minimum_share(np.array(free), np.array(edges), demand)
    wanted = smallest_share(free, edges, demand.work, demand.due_s, demand.ladder.counts, demand.ladder.rates)
    assert (None if found is None else found.tolist()) == wanted


@pytest.mark.parametrize("seed", seeds(60))
def test_plans_admit_who_fits_in_order_of_deadlines(seed: int) -> None:
    rng = Random(seed)
    edges = [0.0, 4.0, 8.0, 16.0, 32.0]
    capacity = rng.randint(2, 8)
    plan = Plan(capacity, np.array(edges))
    admitted: list[tuple[str, Demand]] = []
    for number in range(8):
        demand = demand_of(rng, edges)
        tried = sorted([*admitted, (str(number), demand)], key=lambda entry: entry[1].due_s)
        free, shares = [capacity] * 4, dict[str, list[int]]()
        for name, each in tried:
            share = smallest_share(free, edges, each.work, each.due_s, each.ladder.counts, each.ladder.rates)
            if share is None:
                break
            shares[name] = share
            free = [have - used for have, used in zip(free, share, strict=True)]
        assert plan.add(str(number), demand) == (len(shares) == len(tried))
        if len(shares) == len(tried):
            admitted = tried
            assert {name: share.tolist() for name, share in plan.shares().items()} == shares
    assert min(sum(share for share in slot) for slot in zip(*plan.shares().values(), strict=True)) >= 0


def test_slots_reach_the_last_deadline() -> None:
    edges = slot_edges(300.0, 1e6)
    assert edges[1] == 300.0
    assert edges[-1] >= 1e6
    assert len(edges) < 100
    assert (np.diff(edges) >= 300.0 - 1e-6).all()
    assert slot_edges(10.0, 0.0).tolist() == [0.0, 10.0]


@pytest.mark.parametrize("seed", seeds(100))
def test_marginal_returns_are_taken_from_the_largest_down(seed: int) -> None:
    """With concave rates the greedy choice of steps is the best there is for the sum of relative rates, as long as all
    steps are as large: here all ladders are 1, 2, 3, ... devices."""
    rng = Random(seed)
    ladders = dict[str, Ladder]()
    for name in ("a", "b", "c"):
        gains = sorted((rng.uniform(0.1, 1.0) for _ in range(4)), reverse=True)
        ladders[name] = Ladder(counts=(1, 2, 3, 4), rates=tuple(float(rate) for rate in np.cumsum(gains)))
    capacity = rng.randint(3, 12)
    returns = {name: gained_rate(ladder, 2) for name, ladder in ladders.items()}
    counts = by_marginal_return(dict.fromkeys(ladders, 1), returns, ladders, capacity)
    assert sum(counts.values()) == min(capacity, 12)

    def worth(of: dict[str, int]) -> float:
        return sum(ladders[name].rates[count - 1] / ladders[name].rates[1] for name, count in of.items())

    best = max(
        worth({"a": a, "b": b, "c": c})
        for a in range(1, 5)
        for b in range(1, 5)
        for c in range(1, 5)
        if a + b + c <= capacity
    )
    assert worth(counts) == pytest.approx(best)


def test_saving_device_seconds_prefers_short_jobs_that_scale() -> None:
    poor = Ladder(counts=(1, 2), rates=(1.0, 1.2))
    good = Ladder(counts=(1, 2), rates=(1.0, 1.9))
    assert saved_device_s(good, 100.0)(0) == pytest.approx(100.0 * (1 - 2 / 1.9))
    returns = {
        "poor": saved_device_s(poor, 10.0),
        "good": saved_device_s(good, 10.0),
        "long": saved_device_s(good, 99.0),
    }
    ladders = {"poor": poor, "good": good, "long": good}
    assert by_marginal_return({"poor": 1, "good": 1, "long": 1}, returns, ladders, 4)["good"] == 2
