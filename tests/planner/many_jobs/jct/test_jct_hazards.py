"""Hazards of groups: against plain loops, as distributions, and quick to see a new habit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.many_jobs.jct.groups import group_codes, groups_of
from planner.many_jobs.jct.hazards import (
    BEHIND,
    FIRST,
    FIRST_ENDED,
    WINDOWS,
    Hazards,
    hazard_names,
    spread_evenly,
    steps_of,
    thresholds_told,
)
from planner.many_jobs.jct.intervals import INTERVAL_S
from planner.many_jobs.jct.jobs import make_jobs
from planner.many_jobs.jct.prepared import Prepared, prepare
from tests.planner.many_jobs.jct.jct_examples import random_jobs


def told_until(prepared: Prepared, row: int) -> list[tuple[float, int, int, bool]]:
    """(time, job, number of the threshold, whether it had ended) of all that is known when a job is submitted."""
    jobs, cap = prepared.jobs, prepared.cap
    known = []
    for job in range(len(jobs)):
        begins = 0
        for number, threshold in enumerate(thresholds_told(cap).tolist()):
            interval = prepared.interval[job]
            if not math.isnan(interval) and begins < interval <= threshold:
                if not jobs.killed[job]:
                    known.append((float(jobs.seen_finish_s[job]), job, number, True))
                break
            known.append((math.nextafter(jobs.start_s[job] + threshold * INTERVAL_S, math.inf), job, number, False))
            begins = threshold
    return sorted(step for step in known if step[0] <= jobs.submit_s[row])


@pytest.mark.parametrize(("seed", "cap"), [(0, 24), (1, 6), (2, 40), (3, 2)])
def test_against_loops(seed: int, cap: int) -> None:
    prepared = prepare(random_jobs(90, seed=seed), cap)
    masses = Hazards(prepared, steps_of(prepared)).masses(np.arange(90))
    assert len(masses) == len(hazard_names(prepared.columns))
    np.testing.assert_allclose(masses.sum(axis=2), 1.0)
    thresholds = thresholds_told(cap)
    for row in range(0, 90, 11):
        known = told_until(prepared, row)
        of_all = [[ended for _, _, number, ended in known if number == each] for each in range(len(thresholds))]
        for place, group in enumerate(groups_of(prepared.columns)):
            codes = group_codes(prepared.jobs, group)
            hazard = [(sum(ended) + FIRST_ENDED) / (len(ended) + FIRST) for ended in of_all]
            for part, window in enumerate(WINDOWS):
                for each in range(len(thresholds)):
                    same = [step[3] for step in known if step[2] == each and codes[step[1]] == codes[row]][-window:]
                    hazard[each] = (sum(same) + BEHIND * hazard[each]) / (len(same) + BEHIND)
                expected = spread_evenly(np.array(hazard), thresholds, cap)
                np.testing.assert_allclose(
                    masses[place * len(WINDOWS) + part, row], expected, err_msg=str((row, group))
                )


def test_a_new_habit_is_seen_while_its_first_jobs_run() -> None:
    """A hundred jobs of a minute each, then many of two hours at once: no job of the new kind has ended."""
    jobs = make_jobs(
        ids=[str(number) for number in range(140)],
        submit_s=np.concatenate([np.arange(100) * 700.0, 70_000.0 + np.arange(40) * 60.0]),
        duration_s=np.concatenate([np.full(100, 60.0), np.full(40, 7200.0)]),
        gpus=np.ones(140),
    )
    prepared = prepare(jobs, 24)
    masses = Hazards(prepared, steps_of(prepared)).masses(np.array([99, 139]))
    last = hazard_names(prepared.columns).index(f"all, last {WINDOWS[-1]}")
    assert masses[last, 0, 0] > 0.9
    assert masses[last, 1, 0] < 0.3


def test_the_killed_tell_how_far_they_ran_alone() -> None:
    jobs = make_jobs(
        ids=["a", "b"],
        submit_s=np.array([0.0, 9000.0]),
        duration_s=np.array([1500.0, 600.0]),
        gpus=np.ones(2),
        status=["killed", ""],
    )
    steps = steps_of(prepare(jobs, 4))
    assert list(zip(steps.row.tolist(), steps.threshold.tolist(), steps.ended.tolist(), strict=True)) == [
        (0, 0, False),
        (0, 1, False),
        (1, 0, True),
    ]


def test_masses_lie_even_between_thresholds() -> None:
    masses = spread_evenly(np.array([0.5, 0.5]), np.array([1, 3]), 4)
    np.testing.assert_allclose(masses, [0.5, 0.125, 0.125, 0.25])


@pytest.mark.parametrize("cap", [2, 3, 23, 24, 25, 26, 27, 28, 60, 144, 2016])
def test_thresholds_rise_to_the_open_interval(cap: int) -> None:
    thresholds = thresholds_told(cap)
    assert thresholds[0] == 1
    assert thresholds[-1] == cap - 1
    assert (np.diff(thresholds) > 0).all()
    assert len(thresholds) <= 70
