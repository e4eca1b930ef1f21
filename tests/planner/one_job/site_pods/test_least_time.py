"""Placements of least estimated time: against brute force, the bound, and what must not matter."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from planner.one_job.site_pods.candidates import candidates
from planner.one_job.site_pods.least_time import LeastTime, place_by_time
from planner.one_job.site_pods.placing import PlanInPods, PodWishes, place_plan
from planner.one_job.site_pods.site_job import SiteJob
from profiles.vocabulary import Infeasible
from tests.oracles.pods_time_oracle import least_time_s
from tests.planner.one_job.site_pods.pod_examples import job_of, plan, price, small_job
from tests.seeds import seeds


def placed(job: SiteJob, alpha: float = 0.5) -> LeastTime:
    result = place_by_time(job, alpha, candidates(job, alpha), price)
    assert isinstance(result, LeastTime), result
    return result


def test_it_equals_brute_force_on_small_jobs() -> None:
    """Equal in 95% of the cases, within 1% in the others."""
    ratios = []
    for seed in seeds(240, share=20):
        job = small_job(random.Random(seed), most_nodes=8 if seed % 24 == 23 else 5)
        ratios.append(placed(job).best.time_s / least_time_s(job, price))
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= 1.01
    assert sum(ratio <= 1 + 1e-9 for ratio in ratios) >= 0.95 * len(ratios)


def test_nothing_is_below_the_bound_and_no_candidate_is_faster() -> None:
    for seed in seeds(60, share=12):
        job = small_job(random.Random(seed))
        result = placed(job)
        assert result.bound_s is not None
        assert result.best.time_s >= result.bound_s * (1 - 1e-12)
        assert all(candidate.time_s >= result.best.time_s * (1 - 1e-12) for candidate in result.candidates)


def test_a_job_that_fits_one_pod_is_there_and_proved() -> None:
    job = job_of(plan(6, tp=2, pp=2, dp=2), (1, 4, 1), over=(4.0, 4.0, 4.0))
    result = placed(job)
    assert {pod for column in job.pods_of(result.best.seating) for pod in column} == {1}
    assert result.bound_s == pytest.approx(result.best.time_s, rel=1e-12)


def test_seats_keep_every_rank_and_use_free_nodes_once() -> None:
    job = job_of(plan(6, tp=2, pp=2, dp=2), (2, 2, 2), over=(4.0, 4.0, 4.0))
    for candidate in candidates(job, 0.3):
        slots = [slot for stage in job.seated(candidate.seating).stages for slot in stage.slots]
        assert len(set(slots)) == len(slots) == 8
        # A tensor-parallel pair stays on its node, in order.
        for first, second in zip(slots[::2], slots[1::2], strict=True):
            assert (first.node, first.index, second.index) == (second.node, 0, 1)


def test_where_nothing_is_held_back_the_time_is_that_without_pods() -> None:
    setup = plan(6, tp=2, pp=2, dp=2)
    alone = price(setup)
    assert not isinstance(alone, Infeasible)
    result = placed(job_of(setup, (2, 2, 2), over=(1.0, 1.0, 1.0)))
    assert result.best.time_s == alone.iteration_time_s
    assert result.bound_s == alone.iteration_time_s


def test_names_of_equal_pods_change_nothing() -> None:
    setup = plan(6, tp=2, pp=2, dp=2)
    job = job_of(setup, (2, 2, 2), over=(4.0, 4.0, 4.0))
    (site,) = job.setup.cluster.sites
    (level,) = site.network.levels
    renamed = replace(level, parts=tuple(replace(part, name=f"other-{part.name}") for part in level.parts))
    network = replace(site.network, levels=(renamed,))
    cluster = replace(job.setup.cluster, sites=(replace(site, network=network),))
    first = place_plan(job.setup, price, PodWishes())
    second = place_plan(replace(job.setup, cluster=cluster), price, PodWishes())
    assert isinstance(first, PlanInPods)
    assert isinstance(second, PlanInPods)
    assert first.setup.stages == second.setup.stages
    assert first.evaluation == second.evaluation


def test_a_tensor_parallel_group_of_two_nodes_is_one_cell() -> None:
    job = job_of(plan(6, tp=4, pp=1, dp=3), (3, 2, 1), over=(4.0, 4.0, 4.0))
    assert job.matrix.nodes_a_cell == 2
    # Pods of three and of one node hold one cell and none.
    shortage = job.shortage()
    assert shortage is not None
    assert "2 too few" in shortage.reason
    held = placed(job_of(plan(6, tp=4, pp=1, dp=3), (2, 4), over=(4.0, 4.0)))
    assert all(len(cell) == 2 for cell in held.best.seating[0])
