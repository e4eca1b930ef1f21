"""The cases of `python -m bench.contention axes`: drawn alike by a seed, with jobs that block and hide on one link."""

from __future__ import annotations

from bench.contention.axes import LEVELS, _cluster, _mean_with_interval, draw_view
from planner.contention.policies.axes import axes_of
from planner.contention.policies.improving import GRADIENTS
from planner.contention.policies.loads import contending_jobs, link_seconds, paths_now


def test_cases_have_jobs_of_several_axes_that_meet() -> None:
    cluster = _cluster(1)
    view = draw_view(2, cluster)
    assert view == draw_view(2, cluster) != draw_view(3, cluster)
    assert view.levels == LEVELS
    assert all(len(options) == 1 for job in view.jobs for options in job.paths)
    meets = contending_jobs(link_seconds(view, paths_now(view)))
    several = [job for job in meets if {GRADIENTS} < set(axes_of(view.jobs[job]))]
    assert len(several) > 1


def test_means_have_intervals() -> None:
    assert _mean_with_interval([1.0]) == "+1.00%"
    assert _mean_with_interval([0.0, 2.0] * 5) == "+1.00% (+0.25 to +1.75)"
