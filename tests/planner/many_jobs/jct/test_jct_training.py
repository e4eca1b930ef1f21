"""Training and the model's file: what is known at a time, what is learned, what is saved."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from planner.many_jobs.jct.boosting import Parameters
from planner.many_jobs.jct.evaluation import evaluate
from planner.many_jobs.jct.intervals import INTERVAL_S, LOSSES
from planner.many_jobs.jct.jobs import Jobs, make_jobs
from planner.many_jobs.jct.model import JctModel, masses_of, predict
from planner.many_jobs.jct.model_file import SCHEMA, header_of, load_model, save_model
from planner.many_jobs.jct.prepared import prepare
from planner.many_jobs.jct.training import known_rows, ranked_score, train
from planner.shared.options.jct import EvaluationOptions
from profiles.errors import InputError
from tests.planner.many_jobs.jct.jct_examples import learnable_jobs, random_jobs
from tests.seeds import seeds

SMALL = Parameters(bags=2, rounds=6, leaves=7)
QUICK = EvaluationOptions(threads=1, origins=2, tested=0.4)


@pytest.fixture(scope="module")
def jobs() -> Jobs:
    return learnable_jobs(1500, seed=1)


@pytest.fixture(scope="module")
def model(jobs: Jobs) -> JctModel:
    return train(prepare(jobs, 24), parameters=SMALL, threads=1)


@pytest.mark.parametrize("seed", seeds(5, least=2))
def test_known_at_a_time_is_what_finished_and_what_reached_the_cap(seed: int) -> None:
    jobs = random_jobs(400, seed=seed)
    prepared = prepare(jobs, 24)
    until = float(jobs.submit_s[300])
    rows, truth = known_rows(prepared, until)
    assert len(rows) >= 50
    for row, interval in zip(rows.tolist(), truth.tolist(), strict=True):
        if jobs.finish_s[row] <= until:
            assert not jobs.killed[row]
            assert interval == min(max(np.ceil(jobs.duration_s[row] / INTERVAL_S), 1), 24)
        else:
            assert until - jobs.start_s[row] > 23 * INTERVAL_S
            assert interval == 24


def test_without_a_time_all_that_finished_is_known_but_the_killed() -> None:
    jobs = random_jobs(200, seed=3)
    rows, _ = known_rows(prepare(jobs, 24), None)
    assert set(rows.tolist()) == set(np.flatnonzero(~jobs.killed & ~np.isnan(jobs.duration_s)).tolist())


def test_the_future_changes_neither_the_model_nor_what_it_says() -> None:
    jobs = random_jobs(500, seed=5, ties=False)
    until = float(jobs.submit_s[400])
    rng = np.random.default_rng(0)
    unknown = (jobs.finish_s > until) | np.isnan(jobs.duration_s)
    queue = np.where(jobs.start_s > until, jobs.queue_s + rng.choice([0.0, 1e4], 500), jobs.queue_s)
    start = jobs.submit_s + queue
    duration = np.where(unknown, np.maximum(until - start, 0.0) + rng.choice([1.0, 1e5], 500), jobs.duration_s)
    changed = replace(
        jobs, duration_s=duration, queue_s=queue, killed=jobs.killed ^ (unknown & (rng.random(500) < 0.5))
    )
    found = [train(prepare(one, 24), until_s=until, parameters=SMALL, threads=1) for one in (jobs, changed)]
    assert found[0].booster.model_to_string() == found[1].booster.model_to_string()
    assert (found[0].level, found[0].tail_s, found[0].window) == (found[1].level, found[1].tail_s, found[1].window)
    said = [
        masses_of(model, prepare(one, 24).features[:401], None, threads=1)
        for model, one in zip(found, (jobs, changed), strict=True)
    ]
    np.testing.assert_array_equal(said[0], said[1])


def test_masses_are_distributions(jobs: Jobs, model: JctModel) -> None:
    masses = masses_of(model, prepare(jobs, 24).features, None, threads=1)
    assert masses.shape == (1500, 24)
    assert (masses >= 0).all()
    np.testing.assert_allclose(masses.sum(axis=1), 1.0, atol=1e-9)


def test_a_habit_is_learned_and_every_baseline_beaten(jobs: Jobs) -> None:
    parameters = Parameters(bags=2)
    result = evaluate(jobs, replace(QUICK, quantiles=True, network=True), parameters=parameters)
    for key in ("rmse_intervals", "mae_intervals", "log_rmse"):
        assert result[key] < min(figures[key] for figures in result["baselines"].values()), key
    assert result["within_2x"] > max(figures["within_2x"] for figures in result["baselines"].values())
    assert result["coverage_90"] == pytest.approx(0.9, abs=0.06)
    assert result["quantiles"]["coverage_90"] > 0.8
    assert result["network"]["rmse_intervals"] < result["baselines"]["best constant"]["rmse_intervals"]
    assert result["test_jobs"] == sum(origin["test_jobs"] for origin in result["origins"]) == 600
    json.dumps(result, allow_nan=False)


def test_where_the_product_is_known_it_is_the_baseline_and_is_beaten() -> None:
    rng = np.random.default_rng(2)
    product = rng.lognormal(8.0, 1.0, 1500)
    users = rng.integers(0, 4, 1500)
    jobs = make_jobs(
        ids=[str(number) for number in range(1500)],
        submit_s=np.cumsum(rng.exponential(900.0, 1500)),
        duration_s=product * np.array([0.6, 1.0, 1.4, 2.2])[users] * rng.lognormal(0.0, 0.1, 1500),
        gpus=rng.choice([1.0, 8.0], 1500),
        numbers={"product_s": np.where(rng.random(1500) < 0.1, np.nan, product)},
        words={"user": [f"u{user}" for user in users.tolist()]},
    )
    result = evaluate(jobs, QUICK, parameters=Parameters(bags=2, rounds=10))
    plain = result["baselines"]["iterations x iteration time"]
    for key in ("rmse_intervals", "mae_intervals", "log_rmse"):
        assert result[key] < plain[key], key
    assert result["within_2x"] > plain["within_2x"]


def test_an_exact_product_is_followed() -> None:
    rng = np.random.default_rng(4)
    product = rng.lognormal(8.0, 1.0, 600)
    jobs = make_jobs(
        ids=[str(number) for number in range(600)],
        submit_s=np.cumsum(rng.exponential(900.0, 600)),
        duration_s=product,
        gpus=np.ones(600),
        numbers={"product_s": product},
    )
    result = evaluate(jobs, QUICK, parameters=SMALL)
    assert result["mae_intervals"] < 0.2
    assert result["interval_accuracy"] > 0.9


def test_the_file_is_lightgbms_text_and_comes_back_as_it_was(jobs: Jobs, model: JctModel, tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    save_model(model, path)
    loaded = load_model(path)
    features = prepare(jobs, 24).features
    for loss in LOSSES:
        one, other = (predict(each, features, None, loss=loss, threads=1) for each in (model, loaded))
        np.testing.assert_array_equal(one.point, other.point)
        np.testing.assert_array_equal(one.low, other.low)
    assert replace(loaded, booster=model.booster) == model
    plain = lightgbm.Booster(model_file=str(path))
    assert plain.num_trees() == model.booster.num_trees()
    assert plain.feature_name() == list(model.features)
    save_model(loaded, tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("leaf_value=", "leaf_value=9", 1), "trees that were changed"),
        (lambda text: text[: len(text) // 2], "no line cellplan.jct/3"),
        (lambda text: text.replace('"level": ', '"level": 7', 1), "level"),
        (lambda text: text.replace('"features": [', '"features": ["x", ', 1), "another list"),
        (lambda text: text.rstrip()[:-1], "no JSON"),
    ],
)
def test_a_file_that_was_changed_is_refused(model: JctModel, tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "model.txt"
    save_model(model, path)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=message):
        load_model(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("left_child", "0", "left_child, right_child: found no tree"),
        ("right_child", "99999999", "left_child, right_child: found no tree"),
        ("split_feature", "99999999", "split_feature: found 1e.08, expected whole numbers from 0"),
        ("decision_type", "64", "decision_type: found 64"),
        ("decision_type", "1", "threshold: found .*, expected whole numbers from 0 to -1"),
        ("leaf_value", "nan", "leaf_value: found 'nan"),
        ("threshold", "", "threshold: found '"),
        ("num_leaves", "2147483647", "num_leaves: found '2147483647"),
        ("num_leaves", "3000000", "leaf_value: found .* values, expected 3000000"),
        ("num_cat", "7", "cat_boundaries: found others"),
        ("num_tree_per_iteration", "1", "num_tree_per_iteration: found 1"),
        ("tree_sizes", "-1", "tree_sizes: found -1 bytes of tree 0"),
        ("tree_sizes", "7", "tree_sizes: found 7 bytes of tree 0"),
        ("max_feature_idx", "3", "max_feature_idx: found 3"),
    ],
)
def test_trees_that_would_end_the_process_are_refused(
    model: JctModel, tmp_path: Path, key: str, value: str, message: str
) -> None:
    """LightGBM aborts or reads anywhere for most of these; whoever changes trees can write their hash anew."""
    text = model.booster.model_to_string()
    line = re.search(rf"^{key}=(.*)$", text[text.index("\nnum_leaves=") :] if key not in HEADER else text, re.MULTILINE)
    assert line is not None
    changed = line[0].replace(line[1].split(" ")[0], value, 1)
    hostile = text.replace(line[0], changed, 1)
    if key not in HEADER:  # LightGBM finds trees by their sizes: these are told as they are then
        sizes = re.search(r"^tree_sizes=(\d+)", text, re.MULTILINE)
        assert sizes is not None
        size = int(sizes[1]) + len(changed) - len(line[0])
        hostile = hostile.replace(sizes[0], f"tree_sizes={size}", 1)
    header = json.dumps(header_of(model, hostile))
    path = tmp_path / "model.txt"
    path.write_text(f"{hostile}{SCHEMA} {header}\n")
    with pytest.raises(InputError, match=message):
        load_model(path)


HEADER = ("num_tree_per_iteration", "tree_sizes", "max_feature_idx")


def trees(model: JctModel) -> str:
    """The model's text without the settings behind it, among which is the number of threads."""
    return str(model.booster.model_to_string()).partition("\nparameters:")[0]


def test_the_same_seed_gives_the_same_trees(jobs: Jobs, model: JctModel) -> None:
    again = train(prepare(jobs, 24), parameters=SMALL, threads=2)
    other = train(prepare(jobs, 24), parameters=SMALL, threads=1, seed=1)
    assert trees(again) == trees(model)
    assert trees(other) != trees(model)


def test_a_search_takes_what_scores_best(jobs: Jobs) -> None:
    bad = Parameters(bags=1, rounds=1, learning_rate=0.001, leaves=2)
    found = train(prepare(jobs, 24), parameters=bad, search=3, threads=1, seed=2)
    assert found.parameters.learning_rate > bad.learning_rate


def test_the_ranked_score_by_hand() -> None:
    masses = np.array([[0.5, 0.25, 0.25]])
    assert ranked_score(masses, np.array([2.0])) == pytest.approx(0.5**2 + 0.25**2)
    assert ranked_score(np.eye(3), np.array([1.0, 2.0, 3.0])) == 0.0


@pytest.mark.parametrize("cap", [2, 100])
def test_other_caps(jobs: Jobs, cap: int) -> None:
    result = evaluate(jobs, replace(QUICK, cap=cap, origins=1, tested=0.2), parameters=SMALL)
    assert result["rmse_intervals"] < result["baselines"]["best constant in hindsight"]["rmse_intervals"]


def test_a_point_of_the_cap_is_as_long_as_such_jobs_were(model: JctModel) -> None:
    from planner.many_jobs.jct.model import seconds_of

    found = seconds_of(model, np.array([1.0, 2.0, 23.0, 23.5, 24.0]))
    assert found[:3].tolist() == [300.0, 900.0, 22.5 * 600.0]
    assert found[2] < found[3] < found[4] == pytest.approx(max(model.tail_s, 23 * 600.0))


@pytest.mark.parametrize("cap", [1, 5000])
def test_a_cap_out_of_range_is_refused(jobs: Jobs, cap: int) -> None:
    with pytest.raises(InputError, match="cap"):
        prepare(jobs, cap)


def test_too_few_jobs_are_refused(jobs: Jobs) -> None:
    with pytest.raises(InputError, match="at least 50"):
        train(prepare(jobs, 24), until_s=float(jobs.submit_s[20]))
    with pytest.raises(InputError, match="origins"):
        evaluate(jobs, replace(QUICK, origins=1000), parameters=SMALL)
