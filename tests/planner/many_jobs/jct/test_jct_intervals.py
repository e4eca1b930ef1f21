"""Intervals, points and what holds 90%: beside brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.many_jobs.jct.boosting import thresholds_of
from planner.many_jobs.jct.intervals import (
    LOSSES,
    best_constant,
    interval_of,
    level_covering,
    loss_of,
    point_of,
    shortest_holding,
)
from planner.many_jobs.jct.jobs import Floats
from planner.shared.options.jct import Loss
from tests.seeds import seeds

CAP = 7


def masses(seed: int, rows: int = 40) -> Floats:
    rng = np.random.default_rng(seed)
    found = rng.dirichlet(np.full(CAP, 0.4), rows)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("duration_s", "interval"),
    [(0, 1), (1, 1), (600, 1), (600.001, 2), (1200, 2), (13_800, 23), (13_801, 24), (1e9, 24)],
)
def test_interval_k_holds_what_is_above_its_predecessor_and_up_to_k_times_600_s(
    duration_s: float, interval: int
) -> None:
    assert interval_of(np.array([duration_s]), 24)[0] == interval


def expected_loss(point: float, mass: Floats, loss: Loss) -> float:
    """By definition, one interval after the other."""
    total = 0.0
    for index, chance in enumerate(mass.tolist()):
        truth = index + 1.0
        if loss == "squared":
            total += chance * (point - truth) ** 2
        elif loss == "absolute":
            total += chance * abs(point - truth)
        elif loss == "log":
            total += chance * np.log(point / truth) ** 2
        else:
            total += chance * (not point / 2 <= truth <= point * 2)
    return float(total)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", seeds(5, least=2))
def test_no_other_point_has_a_smaller_expected_loss(loss: Loss, seed: int) -> None:
    rows = masses(seed)
    points = point_of(rows, loss)
    for point, mass in zip(points.tolist(), rows, strict=True):
        least = min(expected_loss(other, mass, loss) for other in np.linspace(0.5, 2.0 * CAP, 271))
        assert expected_loss(point, mass, loss) <= least + 1e-9


@pytest.mark.parametrize("loss", LOSSES)
def test_the_best_constant_is_best_among_constants(loss: Loss) -> None:
    truth = np.random.default_rng(3).choice(np.arange(1.0, CAP + 1), 200, p=masses(9, 1)[0])
    best = loss_of(np.full(200, best_constant(truth, CAP, loss)), truth, loss)
    assert all(best <= loss_of(np.full(200, other), truth, loss) + 1e-12 for other in np.linspace(0.5, CAP, 131))


@given(st.integers(0, 100_000), st.floats(0.01, 1.0))
def test_no_shorter_run_of_intervals_holds_the_level(seed: int, level: float) -> None:
    rows = masses(seed, 5)
    low, high = shortest_holding(rows, level, np.arange(1, CAP + 1))
    for mass, first, last in zip(rows, low.tolist(), high.tolist(), strict=True):
        held = {
            (begin, end): mass[begin - 1 : end].sum() for begin in range(1, CAP + 1) for end in range(begin, CAP + 1)
        }
        enough = [run for run, total in held.items() if total >= level - 1e-9]
        width = min(end - begin for begin, end in enough)
        assert (first, last) in enough
        assert last - first == width
        assert held[first, last] >= max(held[run] for run in enough if run[1] - run[0] == width) - 1e-9


@pytest.mark.parametrize("seed", seeds(4, least=2))
def test_intervals_cover_what_they_were_calibrated_for_though_the_masses_are_wrong(seed: int) -> None:
    rng = np.random.default_rng(seed)
    true = masses(seed, 3000)
    truth = np.array([rng.choice(CAP, p=mass) + 1.0 for mass in true])
    claimed = true**3 / (true**3).sum(axis=1, keepdims=True)  # too sure of itself
    starts = np.arange(1, CAP + 1)
    low, high = shortest_holding(claimed[:1500], 0.9, starts)
    assert np.mean((truth[:1500] >= low) & (truth[:1500] <= high)) < 0.87
    level = level_covering(claimed[:1500], truth[:1500], starts)
    low, high = shortest_holding(claimed[1500:], level, starts)
    assert np.mean((truth[1500:] >= low) & (truth[1500:] <= high)) == pytest.approx(0.9, abs=0.025)


@given(st.integers(2, 2016))
def test_thresholds_ascend_from_1_to_the_last_closed_interval(cap: int) -> None:
    found = thresholds_of(cap)
    assert found[0] == 1 or cap == 2
    assert found[-1] == cap - 1
    assert list(found) == sorted(set(found))
    assert len(found) <= 20
