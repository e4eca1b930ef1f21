"""What decisions are worth by arithmetic: its rates beside the formula's, its climb, and what it is good for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from planner.contention.policies import arithmetic_kernel as kernel
from planner.contention.policies.arithmetic import promising, state_of, table_of
from planner.contention.policies.crux import Crux
from planner.contention.policies.loads import link_seconds, spread_paths
from planner.contention.policies.ours import Ours, start_of
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.stepwise import Start
from planner.contention.policies.unmanaged import Ecmp
from planner.contention.policies.worth import work_per_s
from tests.contention_examples import contender, random_view, view_of
from tests.oracles.arithmetic_oracle import arithmetic_rates


def random_start(rng: Random, jobs: int, levels: int) -> Start:
    return Start(
        paths=tuple((rng.randrange(2),) for _ in range(jobs)), levels=tuple(rng.randrange(levels) for _ in range(jobs))
    )


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_those_of_the_formula(seed: int) -> None:
    rng = Random(seed)
    view = random_view(rng, jobs=8, levels=3)
    start = random_start(rng, 8, 3)
    state = state_of(view, table_of(view), start)
    expected = arithmetic_rates(view, link_seconds(view, start.paths), start.levels, kernel.ROUNDS)
    assert state.rate == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_compiled_or_not_a_climb_is_the_same_and_leaves_rates_that_are_right(seed: int) -> None:
    rng = Random(seed)
    view = random_view(rng, jobs=7, levels=3)
    table, start = table_of(view), random_start(rng, 7, 3)
    order = np.array(rng.sample(range(len(table.moves)), len(table.moves)))
    first = float(np.dot(table.flops, state_of(view, table, start).rate))
    state = state_of(view, table, start)
    kernel.climb(table, state, order, 10_000, 1e-9)
    assert float(np.dot(table.flops, state.rate)) >= first * (1 - 1e-9)
    fresh = state_of(view, table, Start(paths=tuple((c,) for c in state.choice.tolist()), levels=tuple(state.level)))
    assert fresh.lost == pytest.approx(state.lost)
    assert fresh.wire_s == pytest.approx(state.wire_s)


@pytest.mark.parametrize("seed", range(5))
def test_what_looks_best_is_a_good_place_to_begin(seed: int) -> None:
    """Played, the best of what arithmetic finds is near what all paths and levels give."""
    view = random_view(Random(seed), jobs=4, levels=2)
    found = promising(view, [start_of(Crux().decide(view)), start_of(Ecmp().decide(view))])
    assert [work for work, _ in found] == sorted((work for work, _ in found), reverse=True)
    rehearsals = Rehearsals(view)
    best = max(work_per_s(view.jobs, rehearsals.iterations_per_s(it.paths, it.levels)) for _, it in found)
    assert best >= 0.93 * Ours().solve(view).best.flops_per_s
    assert found == promising(view, [start_of(Crux().decide(view)), start_of(Ecmp().decide(view))])


def test_jobs_that_may_not_change_and_connections_that_are_spread_stay() -> None:
    view = random_view(Random(1), jobs=6, levels=3)
    view = replace(view, jobs=tuple(replace(job, may_change=n > 1, now=(None,)) for n, job in enumerate(view.jobs)))
    start = Start(paths=spread_paths(view), levels=(2, 1, 0, 0, 0, 0))
    for _, found in promising(view, [start]):
        assert found.paths == start.paths
        assert found.levels[:2] == (2, 1)


def test_no_jobs_no_links_and_links_that_are_down() -> None:
    assert promising(view_of([], levels=2, links=1), []) == []
    silent = view_of([contender("a", compute_s=1.0, wire_s=0.0), contender("b", compute_s=1.0, wire_s=0.0)], levels=2)
    assert promising(silent, [Start(paths=((0,), (0,)), levels=(0, 0))])[0][0] == pytest.approx(2.0)
    jobs = [contender(name, compute_s=1.0, wire_s=1.0, paths=[(0,), (1,)]) for name in "ab"]
    down = replace(view_of(jobs, levels=2), bytes_per_s=(0.0, 1.0))
    assert promising(down, [Start(paths=((0,), (0,)), levels=(0, 0))])[0][1].paths == ((1,), (1,))
