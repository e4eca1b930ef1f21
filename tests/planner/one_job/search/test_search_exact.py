"""The exact search against plain enumeration: every plan of a small space, evaluated one by one."""

from __future__ import annotations

import math
import random
from itertools import groupby

import numpy as np
import pytest

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.places import Places
from estimator.bulk.records import Family
from estimator.pricing.outcome import Evaluation
from planner.one_job.search.exact import search
from planner.one_job.search.spaces.found import Found
from planner.one_job.search.spaces.space import Space, ways_of
from planner.one_job.search.way_order import WayOrder
from tests.search_examples import every_plan, plain_degrees, random_search
from tests.seeds import seeds


def _lacking(found: Evaluation) -> int:
    return max(
        rank.needed_bytes - capacity for rank, capacity in zip(found.memory, found.device_memory_bytes, strict=True)
    )


@pytest.mark.parametrize("seed", seeds(200, share=8))
def test_the_search_finds_what_enumeration_finds(seed: int) -> None:
    space, evaluator = random_search(random.Random(seed))
    times = {True: math.inf, False: math.inf}
    least_lacking = math.inf
    for *_, evaluation in every_plan(space, evaluator):
        lacking = _lacking(evaluation)
        times[lacking <= 0] = min(times[lacking <= 0], evaluation.iteration_time_s)
        least_lacking = min(least_lacking, lacking)
    found = search(space, evaluator)
    assert found.proved
    if math.isinf(times[True]):
        assert found.best is None
        if found.nearest is not None:
            assert found.nearest.lacking_bytes == pytest.approx(least_lacking, abs=2)
        return
    assert isinstance(found.best, Found)
    assert found.best.iteration_time_s == pytest.approx(times[True], rel=1e-9)
    assert found.lower_bound == pytest.approx(found.best.value, rel=1e-9)


@pytest.mark.parametrize("seed", seeds(40, share=8))
def test_plans_priced_in_bulk_are_priced_as_one_by_one(seed: int) -> None:
    # One evaluator prices all of them, so that what it keeps for the next pipeline is tested too.
    space, evaluator = random_search(random.Random(1000 + seed))
    checked = 0
    for (degrees, schedule), plans in groupby(every_plan(space, evaluator), key=lambda plan: (plan[0], plan[1])):
        for _, _, cut, rule, state, setup, evaluation in plans:
            if checked % 3 == 0 and setup.stages[0].slots[0] == space.slots[0]:
                pipeline = evaluator.pipeline(degrees, evaluator.placement(1, space.slots))
                priced = pipeline.price(  # type: ignore[union-attr]
                    Family(schedule=schedule, cuts=(cut,), recompute=(rule,), states=(state,))
                )
                if space.node % degrees.tp == 0:
                    assert priced.total_s[0, 0, 0] == pytest.approx(evaluation.iteration_time_s, rel=1e-9)
                    assert priced.lacking_bytes[0, 0, 0] == pytest.approx(_lacking(evaluation), abs=2)
            checked += 1


@pytest.mark.parametrize("seed", seeds(100))
def test_ways_are_those_of_plain_loops(seed: int) -> None:
    space, _ = random_search(random.Random(2000 + seed))
    ways = ways_of(space)
    found = [ways.degrees(number) for number in range(len(ways))]
    assert len(set(found)) == len(found)
    assert set(found) == set(plain_degrees(space))
    assert ways.considered == len(ways) + sum(ways.removed.values())


@pytest.mark.parametrize("seed", seeds(60, share=6))
def test_ways_come_in_the_order_of_their_compute_and_none_too_late(seed: int) -> None:
    space, evaluator = random_search(random.Random(3000 + seed))
    ways, slots = ways_of(space), Places(space.slots)
    order = WayOrder(space, ways, evaluator, slots, lambda devices: 1.0 + devices % 2)
    first = order.bounds.copy()
    below = math.inf if seed % 2 else float(np.quantile(first, 0.7)) if len(first) else math.inf
    taken: list[int] = []
    while order.ahead < below:
        ahead, some = order.ahead, order.take(random.Random(seed).randint(1, 7), below=below)
        assert all(order.bounds[way] >= ahead * (1 - 1e-12) for way in some)
        taken += some
    # With more samples a layout takes no longer for each: what was taken for a bound was one.
    exact = WayOrder(space, ways, evaluator, slots, lambda devices: 1.0 + devices % 2)
    while exact.ahead < math.inf:
        exact.take(len(ways), below=math.inf)
    finite = np.isfinite(exact.bounds)
    assert (first[finite] <= exact.bounds[finite] * (1 + 1e-12)).all()
    assert sorted(taken) == np.flatnonzero(finite & (exact.bounds < below)).tolist()
    assert exact.bounds[taken] == pytest.approx(sorted(exact.bounds[taken]), rel=1e-12)
    # Nor did what ranks of its kind take with the most samples, in the groups where a way's ranks sit.
    placement = evaluator.placement(1, slots)
    for way in np.flatnonzero(finite & (space.node % ways.columns["tp"] == 0)).tolist():
        passes = exact.bound_of(way, evaluator.once_s(ways.degrees(way), placement))
        assert exact.bounds[way] <= passes * (1 + 1e-12)


def _feasible_search() -> tuple[Space, BulkEvaluator]:
    for seed in range(100):
        space, evaluator = random_search(random.Random(seed))
        if search(space, evaluator).best is not None:
            return space, evaluator
    raise AssertionError("no seed below 100 has a plan that fits")


def test_a_limit_leaves_a_gap_that_holds() -> None:
    space, evaluator = _feasible_search()
    whole = search(space, evaluator)
    cut_short = search(space, evaluator, most_families=0)
    assert whole.best is not None
    assert cut_short.lower_bound <= whole.best.value * (1 + 1e-9)
    if cut_short.best is not None:
        assert cut_short.best.value >= whole.best.value * (1 - 1e-9)


def test_the_weight_of_devices_decides_what_is_best() -> None:
    space, evaluator = _feasible_search()
    cheap = search(space, evaluator, weight=float)
    fast = search(space, evaluator)
    assert cheap.best is not None
    assert fast.best is not None
    used = cheap.best.degrees.stage_devices * cheap.best.degrees.pp
    assert cheap.best.value == pytest.approx(cheap.best.iteration_time_s * used)
    assert cheap.best.iteration_time_s >= fast.best.iteration_time_s * (1 - 1e-9)
