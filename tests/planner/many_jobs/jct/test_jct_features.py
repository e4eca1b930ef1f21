"""Features: the whole trace at once against one job at a time, and nothing of the future in them."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.many_jobs.jct.features import Matrix, job_features
from planner.many_jobs.jct.groups import columns_of, feature_names, groups_of
from planner.many_jobs.jct.incremental import History
from planner.many_jobs.jct.jobs import Jobs, make_jobs
from tests.planner.many_jobs.jct.jct_examples import random_jobs
from tests.seeds import examples, seeds


def replayed(jobs: Jobs, cap: int) -> Matrix:
    """The features as `History` has them, told of every event when it happens."""
    history = History(columns_of(jobs), cap)
    open_jobs: dict[int, str] = {}
    rows = []
    for index in range(len(jobs)):
        now = float(jobs.submit_s[index])
        due = [(float(jobs.finish_s[one]), one) for one in open_jobs if jobs.finish_s[one] <= now]
        # what took no time at all is not yet known to those of the same instant
        due = [(time, one) for time, one in due if not (time == now == jobs.submit_s[one])]
        for one in list(open_jobs):
            if open_jobs[one] == "waits" and jobs.start_s[one] <= now:
                history.started(jobs.ids[one], float(jobs.start_s[one]))
                open_jobs[one] = "runs"
        for time, one in sorted(due):
            history.finished(jobs.ids[one], max(time, np.nextafter(jobs.submit_s[one], np.inf)), jobs.duration_s[one])
            del open_jobs[one]
        numbers = {"gpus": float(jobs.gpus[index]), **{k: float(v[index]) for k, v in jobs.numbers.items()}}
        words = {name: str(codes[index]) for name, codes in jobs.words.items()}
        rows.append(history.submitted(jobs.ids[index], now, numbers=numbers, words=words, waits=True))
        open_jobs[index] = "waits"
        if jobs.queue_s[index] == 0:
            history.started(jobs.ids[index], now)
            open_jobs[index] = "runs"
    return np.array(rows, np.float32)


def truncated(jobs: Jobs, count: int) -> Jobs:
    """The first jobs alone, with columns as they are (a column that now says nothing stays)."""
    return replace(
        jobs,
        ids=jobs.ids[:count],
        submit_s=jobs.submit_s[:count],
        duration_s=jobs.duration_s[:count],
        queue_s=jobs.queue_s[:count],
        gpus=jobs.gpus[:count],
        numbers={name: values[:count] for name, values in jobs.numbers.items()},
        words={name: codes[:count] for name, codes in jobs.words.items()},
        killed=jobs.killed[:count],
        order=jobs.order[:count],
    )


@pytest.mark.parametrize("seed", seeds(6, least=2))
@pytest.mark.parametrize("cap", [24, 3])
def test_a_whole_trace_at_once_is_one_job_at_a_time(seed: int, cap: int) -> None:
    jobs = random_jobs(260, seed=seed, ties=seed % 2 == 0, queues=seed % 3 == 0)
    found, expected = job_features(jobs, cap), replayed(jobs, cap)
    names = feature_names(columns_of(jobs))
    assert found.shape == (260, len(names))
    for column, name in enumerate(names):
        np.testing.assert_allclose(found[:, column], expected[:, column], rtol=2e-5, atol=1e-4, err_msg=name)


def unknown_at(jobs: Jobs, now_s: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return cast("np.ndarray[tuple[int], np.dtype[np.bool_]]", (jobs.finish_s > now_s) | np.isnan(jobs.duration_s))


@given(st.integers(0, 10_000), st.integers(5, 119))
def test_what_has_not_happened_yet_changes_nothing(seed: int, last: int) -> None:
    jobs = random_jobs(120, seed=seed)
    rng = np.random.default_rng(seed + 1)
    now = float(jobs.submit_s[last])
    unknown = unknown_at(jobs, now)
    # whoever has not ended by now ends at any later time, or never; whoever comes later is anything
    ends = np.nextafter(now, np.inf) + rng.choice([0.0, 1.0, 1e4, 1e7], len(jobs)) - jobs.start_s
    queue, duration = jobs.queue_s.copy(), jobs.duration_s.copy()
    waiting = unknown & (jobs.start_s > now)
    queue[waiting] += rng.choice([0.0, 1e3, 1e6], waiting.sum())
    duration[unknown] = np.where(rng.random(unknown.sum()) < 0.3, np.nan, np.maximum(ends[unknown], 0.0) + 1e-3)
    later = np.arange(len(jobs)) > last
    submit = jobs.submit_s.copy()
    submit[later] += rng.choice([0.0, 7.0, 1e5], 1)
    gpus = np.where(later, rng.choice([1.0, 2.0, 8.0], len(jobs)), jobs.gpus)
    words = {name: np.where(later, rng.permutation(codes), codes) for name, codes in jobs.words.items()}
    numbers = {name: np.where(later, rng.permutation(values), values) for name, values in jobs.numbers.items()}
    corrupted = replace(
        jobs, submit_s=submit, duration_s=duration, queue_s=queue, gpus=gpus, words=words, numbers=numbers
    )
    before, after = job_features(jobs, 24)[: last + 1], job_features(corrupted, 24)[: last + 1]
    alone = job_features(truncated(jobs, last + 1), 24, columns_of(jobs))
    np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(before, alone)


@settings(max_examples=examples(25))
@given(st.integers(0, 10_000))
def test_a_jobs_own_duration_and_queue_are_never_among_its_features(seed: int) -> None:
    jobs = random_jobs(60, seed=seed)
    last = len(jobs) - 1
    for duration, queue in ((0.0, 0.0), (1e5, 0.0), (5.0, 900.0)):
        changed = replace(
            jobs, duration_s=np.append(jobs.duration_s[:-1], duration), queue_s=np.append(jobs.queue_s[:-1], queue)
        )
        np.testing.assert_array_equal(job_features(changed, 24)[last], job_features(jobs, 24)[last])


def tied(durations: list[float]) -> Matrix:
    """Jobs of one instant, and one that comes when the first of them ends."""
    count = len(durations)
    jobs = make_jobs(
        ids=[str(number) for number in range(count + 1)],
        submit_s=np.array([100.0] * count + [150.0]),
        duration_s=np.array([*durations, 1.0]),
        gpus=np.ones(count + 1),
    )
    return job_features(jobs, 24)


def test_jobs_of_one_instant_know_nothing_of_each_others_durations() -> None:
    names = feature_names(("gpus",))
    finished = names.index("gpus.mean_31")
    zero, long = tied([0.0, 0.0, 0.0]), tied([0.0, 9e5, 9e5])
    np.testing.assert_array_equal(zero[:3], long[:3])
    assert np.isnan(zero[:3, finished]).all()
    assert zero[:3, names.index("gpus.running")].tolist() == [0.0, 1.0, 2.0]


def test_a_finish_at_the_instant_of_a_submission_counts_as_known() -> None:
    names = feature_names(("gpus",))
    finished = names.index("gpus.mean_31")
    assert tied([50.0, 9e5])[-1, finished] == 1.0
    assert np.isnan(tied([50.001, 9e5])[-1, finished])


def test_a_finish_known_by_queue_and_duration() -> None:
    def found(queue_s: float) -> float:
        jobs = make_jobs(
            ids=["a", "b"],
            submit_s=np.array([0.0, 1000.0]),
            duration_s=np.array([700.0, 1.0]),
            gpus=np.ones(2),
            queue_s=np.array([queue_s, 0.0]),
        )
        return float(job_features(jobs, 24)[1, feature_names(("gpus",)).index("gpus.last_log")])

    assert found(300.0) == pytest.approx(np.log10(700.0))
    assert np.isnan(found(300.5))


def test_groups_follow_the_columns_that_there_are() -> None:
    assert groups_of(("gpus",)) == (("gpus",), ())
    assert groups_of(("vc", "gpus")) == (("vc", "gpus"), ("vc",))
    assert ("user", "name") in groups_of(("user", "name"))
    assert groups_of(("vc", "mem_gb"))[-1] == ("gpus", "cpus", "mem_gb")


def test_a_column_that_a_trace_lacks_is_unknown_not_absent() -> None:
    jobs = random_jobs(50, seed=1)
    columns = (*columns_of(jobs), "name", "product_s")
    found = job_features(jobs, 24, columns)
    names = feature_names(columns)
    assert found.shape[1] == len(names)
    assert np.isnan(found[:, names.index("product_s")]).all()
