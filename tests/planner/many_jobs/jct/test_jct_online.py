"""The predictor of the simulator: what it answers, and that it knows nothing early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.many_jobs.jct.boosting import Parameters
from planner.many_jobs.jct.features import job_features
from planner.many_jobs.jct.jobs import Jobs
from planner.many_jobs.jct.model import predict
from planner.many_jobs.jct.online import COLUMNS, OnlinePredictor, OnlineSetting
from planner.many_jobs.jct.prepared import prepare
from planner.many_jobs.jct.training import train
from planner.many_jobs.jobs.records import Job, Workload
from tests.planner.many_jobs.jct.jct_examples import learnable_jobs

DAY_S = 86_400.0


def as_job(jobs: Jobs, index: int, **changes: float) -> Job:
    job = Job(
        id=jobs.ids[index],
        submit_s=float(jobs.submit_s[index]),
        pool="p",
        devices=int(jobs.gpus[index]),
        workload=Workload(model="gpt-tiny", global_batch=8),
        iterations=1.0,
        duration_s=float(jobs.duration_s[index]),
        user=f"u{jobs.words['user'][index]}",
    )
    return replace(job, **changes)  # type: ignore[arg-type]


def replay(jobs: Jobs, predictor: OnlinePredictor, *, hidden_from_s: float = np.inf) -> list[float]:
    """What it says of each job; the durations of those that end after `hidden_from_s` are shown wrong until then."""
    answers, running = [], list[int]()
    for index in range(len(jobs)):
        now = float(jobs.submit_s[index])
        for one in sorted((one for one in running if jobs.finish_s[one] <= now), key=lambda one: jobs.finish_s[one]):
            running.remove(one)
            predictor.finished(as_job(jobs, one), float(jobs.finish_s[one]))
        wrong = {"duration_s": 1.0, "iterations": 9.0} if jobs.finish_s[index] > hidden_from_s else {}
        answers.append(predictor.submitted(as_job(jobs, index, **wrong), now))
        running.append(index)
    return answers


@pytest.fixture(scope="module")
def jobs() -> Jobs:
    return learnable_jobs(600, seed=7)


def test_a_model_says_online_what_it_says_of_the_whole_trace(jobs: Jobs) -> None:
    model = train(prepare(jobs, 24), parameters=Parameters(bags=1, rounds=5), threads=1)
    first = 250
    online = OnlinePredictor(OnlineSetting(model=model, retrain_s=None, loss="absolute"))
    few = replay(
        replace(
            jobs,
            ids=jobs.ids[:first],
            submit_s=jobs.submit_s[:first],
            duration_s=jobs.duration_s[:first],
            queue_s=jobs.queue_s[:first],
        ),
        online,
    )
    expected = predict(model, job_features(jobs, 24)[:first], None, loss="absolute", threads=1).point_s
    assert np.mean(np.isclose(few, expected)) > 0.99  # a rounded feature may fall on the other side of a split


def test_it_learns_while_it_runs(jobs: Jobs) -> None:
    setting = OnlineSetting(retrain_s=2 * DAY_S, least_jobs=200, cap=60, threads=1)
    answers = np.array(replay(jobs, OnlinePredictor(setting)))
    plain = np.array(replay(jobs, OnlinePredictor(replace(setting, retrain_s=None))))
    late = np.arange(len(jobs)) >= 350

    def error(said: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        return float(np.mean(np.abs(np.log(said[late] / jobs.duration_s[late]))))

    assert error(answers) < 0.7 * error(plain)


def test_a_duration_is_known_when_the_job_has_finished_and_not_before(jobs: Jobs) -> None:
    setting = OnlineSetting(retrain_s=2 * DAY_S, least_jobs=150, cap=60, threads=1)
    hidden = float(jobs.submit_s[200])
    assert replay(jobs, OnlinePredictor(setting)) == replay(jobs, OnlinePredictor(setting), hidden_from_s=hidden)


def test_before_there_is_a_model_the_median_of_the_last_31(jobs: Jobs) -> None:
    predictor = OnlinePredictor(OnlineSetting(retrain_s=None, unknown_s=77.0))
    one, other = as_job(jobs, 0, devices=4, duration_s=50.0), as_job(jobs, 1, devices=4)
    assert predictor.submitted(one, 0.0) == 77.0
    assert predictor.submitted(other, 1.0) == 77.0
    predictor.finished(one, 50.0)
    assert predictor.submitted(as_job(jobs, 2, devices=4), 60.0) == 50.0
    assert predictor.submitted(as_job(jobs, 3, devices=2), 60.0) == 50.0
    assert "vc" in COLUMNS
