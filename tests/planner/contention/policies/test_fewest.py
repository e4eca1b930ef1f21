"""Fewer changes for nearly the same work: beside all paths and levels that there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.fewest import FEW_CHANGES, fewer_changes, fewest_of_all
from planner.contention.policies.keeping import changed_jobs, relabelled, restored
from planner.contention.policies.ours import Ours, decision_of
from planner.contention.policies.records import Decision, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import slowdowns, work_per_s
from tests.contention_examples import contender, random_view, view_of
from tests.oracles.fewest_oracle import fewest_changes


def work(view: View, decision: Decision) -> float:
    return work_per_s(view.jobs, Rehearsals(view).rates_of(decision))


def drawn(seed: int, jobs: int = 3, levels: int = 2) -> View:
    view = random_view(Random(seed), jobs=jobs, levels=levels)
    return replace(view, jobs=tuple(replace(job, own_level=min(job.own_level, levels - 1)) for job in view.jobs))


@pytest.mark.parametrize("share", [1e-3, 0.05])
@pytest.mark.parametrize("seed", range(20))
def test_of_few_jobs_as_few_change_as_can(seed: int, share: float) -> None:
    view = drawn(seed)
    rehearsals = Rehearsals(view)
    best = Ours().solve(view).best
    decision = fewest_of_all(rehearsals, decision_of(view, best), share=share)
    known = fewest_changes(view, rehearsals.iterations_per_s, best.flops_per_s * (1 - share) * (1 - 1e-9), float("inf"))
    assert known is not None
    assert len(changed_jobs(view, decision)) == known[0]
    assert work(view, decision) == pytest.approx(known[1])


@pytest.mark.parametrize("seed", range(10))
def test_the_cap_is_kept_while_fewer_change(seed: int) -> None:
    view = drawn(seed)
    free = Ours().solve(view).best
    cap = 1 + (free.slowdown - 1) * 0.7
    best = Ours(slowdown_cap=cap).solve(view).best
    if best.excess > 0:
        return
    rehearsals = Rehearsals(view)
    decision = fewest_of_all(rehearsals, decision_of(view, best), share=0.05, cap=cap)
    least = best.flops_per_s * 0.95 * (1 - 1e-9)
    known = fewest_changes(view, rehearsals.iterations_per_s, least, cap * (1 + 1e-9))
    assert known is not None
    assert len(changed_jobs(view, decision)) == known[0]
    assert max(slowdowns(view.jobs, rehearsals.rates_of(decision))) <= cap * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_of_few_changes_every_set_is_tried(seed: int) -> None:
    """Beside all sets of jobs that are as now, one by one."""
    view = drawn(seed, jobs=5, levels=3)
    rehearsals = Rehearsals(view)
    asked = decision_of(view, Ours(exact=0, plays=100).solve(view).best)
    most = work(view, asked)
    decision = fewer_changes(rehearsals, asked, plays=1000, share=0.01)
    numbered = relabelled(view, asked)
    changed = changed_jobs(view, numbered)
    fewest = min(
        len(kept)
        for size in range(len(changed) + 1)
        for kept in combinations(changed, size)
        if work(view, restored(view, numbered, [job for job in changed if job not in kept])) >= most * 0.99 * (1 - 1e-9)
    )
    assert len(changed_jobs(view, decision)) <= fewest
    assert work(view, decision) >= most * 0.99 * (1 - 1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_of_many_jobs_fewer_change_within_the_plays(seed: int) -> None:
    view = drawn(seed, jobs=14, levels=4)
    asked = make_network_policy("crux").decide(view)
    assert len(changed_jobs(view, relabelled(view, asked))) > FEW_CHANGES
    rehearsals = Rehearsals(view)
    rehearsals.rates_of(relabelled(view, asked))
    before = rehearsals.played
    decision = fewer_changes(rehearsals, asked, plays=25, share=0.02)
    assert rehearsals.played <= before + 25
    assert len(changed_jobs(view, decision)) < len(changed_jobs(view, relabelled(view, asked)))
    assert work(view, decision) >= work(view, asked) * 0.98 * (1 - 1e-9)
    assert decision == fewer_changes(Rehearsals(view), asked, plays=25, share=0.02)
    # Without plays what is known counts: the same on another spine.
    known = Rehearsals(view)
    known.rates_of(asked)
    before = known.played
    assert work(view, fewer_changes(known, asked, plays=0, share=0.0)) == pytest.approx(work(view, asked))
    assert known.played == before


def test_the_other_spine_for_everybody_is_no_reason_to_change() -> None:
    """Each job on a spine of its own, as now: the same with spines swapped does as much."""
    jobs = [contender(name, compute_s=1.0, wire_s=1.0, paths=[(0,), (1,)], now=1 - n) for n, name in enumerate("ab")]
    view = view_of(jobs, levels=2)
    assert changed_jobs(view, Ours().decide(view)) == ()
    assert Ours().decide(view).proved
    assert changed_jobs(view, Ours(exact=0).decide(view)) == ()


@pytest.mark.parametrize("seed", range(8))
def test_ours_gives_up_no_more_than_it_may(seed: int) -> None:
    view = drawn(seed, jobs=5, levels=3)
    most = Ours(axes=False, offsets=False, give_up=0.0).decide(view)
    fewer = Ours(axes=False, offsets=False).decide(view)
    assert len(changed_jobs(view, fewer)) <= len(changed_jobs(view, relabelled(view, most)))
    share = 1 - work(view, fewer) / work(view, most)
    assert share <= 1e-3 * (1 + 1e-6)
    assert fewer.given_up == pytest.approx(max(share, 0.0), abs=1e-8)
    assert (most.proved, fewer.proved) == (True, fewer.given_up == 0)
    with pytest.raises(ValueError, match="give_up 1"):
        Ours(give_up=1.0)
