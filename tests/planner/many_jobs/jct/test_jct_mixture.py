"""Boosters beside simple rules: what is followed when habits drift, and that nothing of the future decides it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.many_jobs.jct.boosting import Parameters
from planner.many_jobs.jct.evaluation import evaluate
from planner.many_jobs.jct.groups import group_codes, groups_of
from planner.many_jobs.jct.intervals import INTERVAL_S, LOSSES, best_constant, loss_of
from planner.many_jobs.jct.jobs import Jobs, make_jobs
from planner.many_jobs.jct.mixture import (
    BACK,
    begin_weights,
    combine,
    followed,
    known_times,
    mixed_points,
    relative_losses,
    rule_names,
    rule_points,
)
from planner.many_jobs.jct.model import predict_rows
from planner.many_jobs.jct.prepared import prepare
from planner.many_jobs.jct.training import train
from planner.shared.options.jct import EvaluationOptions
from tests.planner.many_jobs.jct.jct_examples import learnable_jobs, random_jobs

SMALL = Parameters(bags=1, rounds=6, leaves=7)


def bursting_jobs(rows: int, *, seed: int) -> Jobs:
    """Users with habits; after 60% all habits change to what none of them had, long after the last that was short."""
    rng = np.random.default_rng(seed)
    users, late = rng.integers(0, 3, rows), np.arange(rows) >= 0.6 * rows
    habit = np.where(late, np.array([900.0, 1500.0, 1500.0])[users], np.array([9000.0, 15_000.0, 30_000.0])[users])
    return make_jobs(
        ids=[str(number) for number in range(rows)],
        submit_s=np.cumsum(rng.exponential(60.0, rows)),
        duration_s=habit * rng.lognormal(0.0, 0.2, rows),
        gpus=np.ones(rows),
        words={"user": [f"u{user}" for user in users.tolist()]},
    )


def test_where_habits_drift_the_rules_are_followed_and_boosters_alone_lose() -> None:
    result = evaluate(bursting_jobs(900, seed=0), EvaluationOptions(threads=1, origins=2, tested=0.4), parameters=SMALL)
    for key in ("rmse_intervals", "mae_intervals", "log_rmse"):
        constant, group = result["baselines"]["best constant"][key], result["best_group"][key]["value"]
        assert result["boosters"][key] > 1.2 * group, key
        assert result[key] < 0.8 * result["boosters"][key], key
        assert result[key] < constant, key
    assert result["within_2x"] > result["boosters"]["within_2x"] + 0.1


def test_where_they_do_not_the_boosters_are() -> None:
    result = evaluate(
        learnable_jobs(900, seed=1), EvaluationOptions(threads=1, origins=1), parameters=Parameters(bags=1)
    )
    assert result["mae_intervals"] < 1.02 * result["boosters"]["mae_intervals"]
    assert result["rmse_intervals"] < 1.02 * result["boosters"]["rmse_intervals"]


@pytest.mark.parametrize("seed", range(2))
def test_weights_and_points_come_from_the_past_only(seed: int) -> None:
    jobs = random_jobs(300, seed=seed, ties=False)
    model = train(prepare(jobs, 24), until_s=float(jobs.submit_s[175]), parameters=SMALL, threads=1)
    now = float(jobs.submit_s[250])
    rng = np.random.default_rng(seed)
    unknown = (jobs.finish_s > now) | np.isnan(jobs.duration_s)
    duration = np.where(unknown, np.maximum(now - jobs.start_s, 0.0) + rng.choice([1.0, 1e5], 300), jobs.duration_s)
    duration = np.where(jobs.start_s > now, rng.choice([1.0, 1e5], 300), duration)
    killed = jobs.killed ^ (unknown & (rng.random(300) < 0.5))
    changed = replace(jobs, duration_s=duration, killed=killed)
    rows = np.arange(200, 251)
    for loss in LOSSES:
        one, other = (
            predict_rows(model, prepare(each, 24), rows, loss=loss, threads=1).point for each in (jobs, changed)
        )
        np.testing.assert_array_equal(one, other)
    longer = np.arange(200, 300)
    whole = predict_rows(model, prepare(jobs, 24), longer, loss="absolute", threads=1).point
    np.testing.assert_array_equal(predict_rows(model, prepare(jobs, 24), rows, loss="absolute").point, whole[:51])


@pytest.mark.parametrize("seed", range(3))
def test_rules_by_hand(seed: int) -> None:
    jobs = random_jobs(150, seed=seed)
    prepared = prepare(jobs, 24)
    constants = (5.0, 4.0, 3.0, 2.0)
    found = rule_points(prepared, np.arange(150), constants)
    times, interval = known_times(jobs, 24)
    for number, group in enumerate(groups_of(prepared.columns)):
        codes = group_codes(jobs, group)
        for row in range(150):
            known = (times <= jobs.submit_s[row]) & (codes == codes[row])
            for loss, constant in zip(LOSSES, constants, strict=True):
                best = best_constant(interval[known], 24, loss) if known.any() else constant
                assert found[loss][1 + number, row] == pytest.approx(best, rel=1e-6), (group, row, loss)
    for loss in LOSSES:
        assert len(found[loss]) == len(rule_names(prepared.columns, loss))
        assert sum(begin_weights(prepared.columns, 1000, loss)) == pytest.approx(1.0)


def test_an_interval_is_known_at_the_finish_or_at_the_cap_and_never_of_the_killed() -> None:
    jobs = make_jobs(
        ids=list("abcd"),
        submit_s=np.array([0.0, 1.0, 2.0, 3.0]),
        duration_s=np.array([700.0, 1e6, 50.0, np.nan]),
        gpus=np.ones(4),
        queue_s=np.array([5.0, 0.0, 0.0, 0.0]),
        status=["", "", "killed", ""],
    )
    times, interval = known_times(jobs, 24)
    assert times.tolist()[:3] == [705.0, pytest.approx(1 + 23 * INTERVAL_S), np.inf]
    assert times[3] == pytest.approx(3 + 23 * INTERVAL_S)
    assert interval[[0, 1, 3]].tolist() == [2.0, 24.0, 24.0]


def test_weights_by_hand() -> None:
    begin = np.array([0.5, 0.5])
    first, second = list(followed(begin, begin, np.array([[1.0], [0.0]]), 0.7))
    share = np.exp(-0.7) / (1 + np.exp(-0.7))
    np.testing.assert_array_equal(first, begin)
    np.testing.assert_allclose(second, (1 - BACK) * np.array([share, 1 - share]) + BACK * begin)


def test_points_are_combined_for_their_loss() -> None:
    experts = np.array([[1.0], [4.0], [16.0]])
    weights = np.array([[0.5], [0.0], [0.5]])
    assert combine(experts, weights, "squared") == pytest.approx([8.5])
    assert combine(experts, weights, "absolute") == pytest.approx([8.5])
    assert combine(experts, weights, "log") == pytest.approx([4.0])
    crowd = np.array([[2.0], [20.0], [22.0]])
    assert combine(crowd, np.array([[0.4], [0.3], [0.3]]), "within-2x").tolist() == [20.0]
    assert combine(crowd, np.array([[0.96], [0.02], [0.02]]), "squared").tolist() == [2.0]


def test_losses_are_shares_of_the_largest() -> None:
    point, truth = np.array([1.0, 24.0, 3.0]), np.array([24.0, 1.0, 3.0])
    for loss in LOSSES:
        assert relative_losses(point, truth, loss, 24).tolist() == pytest.approx([1.0, 1.0, 0.0])
    assert loss_of(point, truth, "within-2x") == pytest.approx(2 / 3)


def test_nothing_to_predict_is_nothing() -> None:
    jobs = random_jobs(200, seed=0)
    prepared = prepare(jobs, 24)
    model = train(prepared, parameters=SMALL, threads=1)
    none = np.zeros(0, np.int64)
    assert len(predict_rows(model, prepared, none).point) == 0
    assert mixed_points(model.mixture, prepared, none, {"log": np.zeros(0)}, 0.0)["log"].shape == (0,)
