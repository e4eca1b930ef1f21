"""`ours`: all paths and levels with proof, the search by steps, the bound, the cap on slowdowns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from estimator.network.player.packing import Packed
from estimator.network.steps import Playing
from planner.contention.policies.bound import bound_flops_per_s
from planner.contention.policies.crux import Crux
from planner.contention.policies.exhaustive import (
    best_paths_and_levels,
    bound_by_links,
    every_path,
    most_plays,
    weak_orders,
)
from planner.contention.policies.loads import paths_now
from planner.contention.policies.ours import Ours, independent_parts
from planner.contention.policies.records import Contender, Decision, View
from planner.contention.policies.rehearsals import Floats, Rehearsals, played_rates
from planner.contention.policies.stepwise import LOOKS, Start, search
from planner.contention.policies.worth import slowdowns, work_per_s
from profiles.errors import NothingFits
from tests.contention_examples import contender, playings, random_view, view_of
from tests.oracles.bound_oracle import most_work
from tests.oracles.contention_oracle import iterations_a_second


def rates_of(view: View, paths: tuple[tuple[int | None, ...], ...], levels: tuple[int, ...]) -> tuple[float, ...]:
    decision = Decision(paths=paths, levels=levels, offsets_s=(0.0,) * len(view.jobs))
    return played_rates(playings(view, decision), np.array(view.bytes_per_s))


def all_work(view: View, cap: float = float("inf")) -> list[float]:
    """The work of every path and every level, each played as it is, those that keep the cap."""
    levels = range(view.levels or len(view.jobs))
    return [
        work_per_s(view.jobs, rates)
        for paths in every_path(view)
        for tried in product(levels, repeat=len(view.jobs))
        if max(slowdowns(view.jobs, rates := rates_of(view, paths, tried))) <= cap
    ]


@pytest.mark.parametrize("seed", range(6))
def test_few_jobs_get_the_best_of_all_paths_and_levels(seed: int) -> None:
    view = random_view(Random(seed), jobs=3, levels=2)
    searched = Ours().solve(view)
    works = all_work(view)
    assert searched.best.proved
    assert searched.best.flops_per_s == pytest.approx(max(works))
    assert searched.played < len(works)
    stepwise = Ours(exact=0, seed=seed).solve(view)
    if stepwise.best.proved:  # It reached the bound.
        assert stepwise.best.flops_per_s == pytest.approx(max(works))
    assert stepwise.best.flops_per_s <= max(works) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_passes_the_bound(seed: int) -> None:
    view = random_view(Random(100 + seed), jobs=3, levels=3)
    bound, alone = bound_flops_per_s(view), sum(job.flops / job.alone_s for job in view.jobs)
    assert max(all_work(view)) <= bound * (1 + 1e-9) <= alone * (1 + 1e-9)
    spread = rates_of(view, tuple((None,) for _ in view.jobs), (0, 1, 2))
    assert work_per_s(view.jobs, spread) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_is_the_best_of_all_corners(seed: int) -> None:
    view = random_view(Random(300 + seed), jobs=2)
    assert bound_flops_per_s(view) == pytest.approx(most_work(view))
    # Both on one link, which cannot carry both, and each on its own spines besides.
    shared = tuple(
        replace(job, paths=(tuple((*path, (0, 1.0)) if dict(path).get(0) is None else path for path in job.paths[0]),))
        for job in view.jobs
    )
    together = replace(view, jobs=shared)
    assert bound_flops_per_s(together) == pytest.approx(most_work(together))


@pytest.mark.parametrize("seed", range(10))
def test_no_group_passes_the_bound_by_its_links(seed: int) -> None:
    view = random_view(Random(200 + seed))
    rehearsals, rng = Rehearsals(view), Random(seed)
    for paths in rng.sample(list(every_path(view)), 4):
        for group in rehearsals.groups(paths):
            rates = rehearsals.group_rates(group, [rng.randrange(3) for _ in group.jobs])
            work = work_per_s([view.jobs[job] for job in group.jobs], rates)
            assert work <= bound_by_links(view, group) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_parts_played_apart_are_what_the_whole_is(seed: int) -> None:
    """Groups, cases that are equal and levels by their order, beside all jobs played at once; and the player beside the
    oracle's."""
    view, rng = random_view(Random(seed), jobs=6, levels=4), Random(seed)
    rehearsals = Rehearsals(view)
    for paths in rng.sample(list(every_path(view)), 3):
        levels = tuple(rng.randrange(4) for _ in view.jobs)
        rates = rehearsals.iterations_per_s(paths, levels)
        assert rates == pytest.approx(rates_of(view, paths, levels), rel=0.02)
    decision = Decision(paths=paths, levels=levels, offsets_s=(0.0,) * 6)
    oracle = iterations_a_second(playings(view, decision), view.bytes_per_s, 300.0)
    assert work_per_s(view.jobs, rates) == pytest.approx(work_per_s(view.jobs, oracle), rel=0.03)


def test_equal_cases_are_played_once() -> None:
    jobs = [contender(name, compute_s=1.0, wire_s=1.0, paths=[(0,), (1,)]) for name in "abc"]
    rehearsals = Rehearsals(view_of(jobs, levels=2))
    for paths in ([(0,), (0,), (1,)], [(1,), (1,), (0,)]):
        for levels in ((0, 1, 0), (0, 1, 1)):
            rehearsals.iterations_per_s(paths, levels)
    assert rehearsals.played == 1  # a before b on one link; c meets nobody


def test_weak_orders_are_all_orders_with_ties() -> None:
    assert [len(weak_orders(jobs, jobs)) for jobs in range(1, 6)] == [1, 3, 13, 75, 541]
    assert len(weak_orders(5, 3)) == 1 + 30 + 150


@pytest.mark.parametrize("seed", range(4))
def test_steps_from_crux_are_never_worse_than_crux(seed: int) -> None:
    view = random_view(Random(seed), jobs=9, levels=3)
    decision = Crux().decide(view)
    rates = Rehearsals(view).iterations_per_s(decision.paths, decision.levels)
    searched = Ours(plays=60, seed=seed).solve(view)
    assert searched.best.flops_per_s >= work_per_s(view.jobs, rates) * (1 - 1e-9)
    assert searched.best.flops_per_s <= bound_flops_per_s(view) * (1 + 1e-9)
    assert searched == Ours(plays=60, seed=seed).solve(view)


def test_jobs_that_no_path_joins_are_solved_apart() -> None:
    jobs = [contender(f"j{n}", compute_s=1.0, wire_s=1.0, paths=[(n % 3,)]) for n in range(9)]
    view = view_of(jobs, levels=3)
    assert independent_parts(view) == [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
    assert Ours().solve(view).best.proved


def starving() -> View:
    """A job, all overlapped, that sends longer than it computes, beside one that does less for a second of wire."""
    greedy = contender("greedy", compute_s=1.0, wire_s=2.0, begins_s=0.0, flops=100.0)
    return view_of([greedy, contender("poor", compute_s=1.0, wire_s=1.0)], levels=2)


def test_a_job_can_starve_whatever_the_paper_says() -> None:
    view = starving()
    assert Crux().decide(view).levels == (0, 1)
    assert rates_of(view, paths_now(view), (0, 1)) == (0.5, 0.0)


@pytest.mark.parametrize("exact", [0, 20_000])
def test_a_cap_on_slowdowns_is_kept_or_refused_with_the_smallest_that_works(exact: int) -> None:
    view = starving()
    assert Ours(exact=exact).solve(view).best.slowdown == float("inf")
    kept = Ours(slowdown_cap=3.0, exact=exact).solve(view).best
    assert kept.excess == 0
    assert kept.slowdown <= 3.0 < Ours(exact=exact).solve(view).best.slowdown
    with pytest.raises(NothingFits, match=r"job (greedy|poor): .*smallest cap that .* is (\d\.\d+)") as refused:
        Ours(slowdown_cap=1.01, exact=exact).decide(view)
    smallest = float(str(refused.value).split()[-1])
    assert Ours(slowdown_cap=smallest, exact=exact).solve(view).best.excess == 0
    with pytest.raises(NothingFits):
        Ours(slowdown_cap=smallest * 0.99, exact=exact).decide(view)


@pytest.mark.parametrize("seed", range(5))
def test_with_a_cap_the_best_of_all_that_keep_it_is_found(seed: int) -> None:
    view = random_view(Random(seed), jobs=3, levels=2)
    free = best_paths_and_levels(Rehearsals(view))
    cap = 1 + (free.slowdown - 1) / 2
    works = all_work(view, cap * (1 + 1e-9))
    kept = best_paths_and_levels(Rehearsals(view), cap=cap)
    assert (kept.excess == 0) == bool(works)
    if works:
        assert kept.flops_per_s == pytest.approx(max(works))


class Counted:
    """`played_rates` that counts by itself how often jobs are played that meet."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, jobs: Sequence[Playing | Packed], bytes_per_s: Floats) -> tuple[float, ...]:
        self.count += len(jobs) > 1
        return played_rates(jobs, bytes_per_s)


@pytest.mark.parametrize("plays", [1, 2, 5, 30])
@pytest.mark.parametrize("seed", range(4))
def test_plays_are_counted_and_limited(seed: int, plays: int) -> None:
    """The first decision is played whatever it takes: as many cases as it has groups of jobs that meet."""
    view = random_view(Random(seed), jobs=9, levels=4)
    ours, counted = Ours(plays=plays, exact=0), Counted()
    ours.rates = counted
    searched = ours.solve(view)
    assert searched.played == counted.count
    assert searched.played <= max(plays, 9 // 2)
    assert most_plays(Rehearsals(replace(view, jobs=view.jobs[:3]))) <= 8 * 13


@pytest.mark.parametrize("plays", [0, 1, 3])
def test_known_cases_are_looked_at_so_often_for_each_play(plays: int) -> None:
    """Where everything is known, so that no play ends the search."""
    view = random_view(Random(1), jobs=3, levels=2)
    rehearsals, looks = Rehearsals(view), 0
    for paths in every_path(view):
        for levels in product(range(2), repeat=3):
            rehearsals.iterations_per_s(paths, levels)
    known, ask = rehearsals.played, rehearsals.iterations_per_s

    def looked(*args: Any) -> tuple[float, ...]:
        nonlocal looks
        looks += 1
        return ask(*args)

    rehearsals.iterations_per_s = looked  # type: ignore[method-assign, assignment]
    starts = [Start(paths=paths_now(view), levels=levels) for levels in product(range(2), repeat=3)]
    best = search(rehearsals, starts, plays=plays)
    assert rehearsals.played == known
    assert 1 <= looks <= 1 + LOOKS * plays
    assert best.flops_per_s >= work_per_s(view.jobs, ask(starts[0].paths, starts[0].levels))


@pytest.mark.parametrize("seed", range(4))
def test_cases_are_known_before_they_are_played(seed: int) -> None:
    rng = Random(seed)
    view = random_view(rng, jobs=6)
    rehearsals = Rehearsals(view)
    for paths in rng.sample(list(every_path(view)), 10):
        levels = tuple(rng.randrange(3) for _ in view.jobs)
        before, cases = rehearsals.played, rehearsals.cases_of(paths, levels)
        rehearsals.iterations_per_s(paths, levels)
        assert rehearsals.played == before + cases
        assert rehearsals.cases_of(paths, levels) == 0


def test_shares_inside_a_level_go_by_weight_where_decisions_are_played() -> None:
    """As the oracle plays them; and who has more weight needs no level for it."""
    jobs = [contender("a", compute_s=1.0, wire_s=1.0, begins_s=0.0), contender("b", compute_s=0.5, wire_s=2.0)]
    light = view_of(jobs, levels=1)
    heavy = replace(light, jobs=(replace(jobs[0], weight=4.0), jobs[1]))
    rates = {
        name: Rehearsals(view).iterations_per_s(paths_now(view), (0, 0)) for name, view in (("1", light), ("4", heavy))
    }
    decision = Decision(paths=paths_now(heavy), levels=(0, 0), offsets_s=(0.0, 0.0))
    assert rates["4"] == pytest.approx(iterations_a_second(playings(heavy, decision), (1.0,), 400.0), rel=0.02)
    assert rates["4"][0] > 1.1 * rates["1"][0]
    assert rates["4"][1] < rates["1"][1]
    with pytest.raises(ValueError, match="weight 0"):
        replace(jobs[0], weight=0.0)


def test_jobs_without_a_shared_link_need_nothing() -> None:
    jobs: list[Contender] = [contender(f"j{n}", compute_s=1.0, wire_s=1.0, paths=[(n,)]) for n in range(2)]
    decision = Ours().decide(view_of(jobs, levels=2))
    assert decision.levels == (None, None)
    assert decision.order == ()
