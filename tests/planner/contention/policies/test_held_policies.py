"""Policies whose answers are held to something, that are told what is not true, and work against fairness."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest

from planner.contention.policies import constrained
from planner.contention.policies.assembling import assemble_policy
from planner.contention.policies.beliefs import Believing, misled
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.constrained import Constrained
from planner.contention.policies.exhaustive import best_paths_and_levels, every_path
from planner.contention.policies.front import fairness_front
from planner.contention.policies.keeping import changed_jobs, relabelled, restored
from planner.contention.policies.levelling import needed_levels
from planner.contention.policies.ours import Ours
from planner.contention.policies.records import Decision, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import slowdowns, work_per_s
from profiles.errors import InputError, NothingFits
from tests.contention_examples import contender, random_view, view_of


def with_levels_of_the_fabric(view: View) -> View:
    """Users' levels are those that there are."""
    assert view.levels is not None
    last = view.levels - 1
    return replace(view, jobs=tuple(replace(job, own_level=min(job.own_level, last)) for job in view.jobs))


def work(view: View, decision: Decision) -> float:
    return work_per_s(view.jobs, Rehearsals(view).rates_of(decision))


def every_decision(view: View) -> list[Decision]:
    levels = range(view.levels or len(view.jobs))
    return [
        Decision(paths=paths, levels=needed_levels(view, paths, tried), offsets_s=(0.0,) * len(view.jobs))
        for paths in every_path(view)
        for tried in product(levels, repeat=len(view.jobs))
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("most", [0, 1, 2])
def test_no_more_jobs_change_than_may_and_none_is_worse_than_now(seed: int, most: int) -> None:
    view = with_levels_of_the_fabric(random_view(Random(seed), jobs=4))
    now = work(view, make_network_policy("static").decide(view))
    for name in ("crux", "ours", "tacclstar"):
        decision = assemble_policy(name, change_at_most=most).decide(view)
        assert len(changed_jobs(view, decision)) <= most
        assert work(view, decision) >= now * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_ours_with_one_change_is_near_the_best_of_all_with_one(seed: int) -> None:
    view = with_levels_of_the_fabric(random_view(Random(seed), jobs=3, levels=2))
    allowed = [each for each in every_decision(view) if len(changed_jobs(view, each)) <= 1]
    best = max(work(view, each) for each in allowed)
    decision = Constrained(Ours(offsets=False, axes=False), change_at_most=1, searches=True).decide(view)
    assert 0.98 * best <= work(view, decision) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["crux", "ours", "varys", "spray"])
def test_jobs_that_may_not_change_do_not(seed: int, name: str) -> None:
    view = with_levels_of_the_fabric(random_view(Random(seed)))
    view = replace(view, jobs=tuple(replace(job, may_change=n % 2 == 0) for n, job in enumerate(view.jobs)))
    decision = assemble_policy(name).decide(view)
    assert not {1, 3} & set(changed_jobs(view, decision))
    assert decision.paths[1] == view.jobs[1].now


def test_a_change_is_made_where_it_brings_more_than_it_costs() -> None:
    """Two jobs on one spine, the other is free: a path of its own brings each 0.25 iterations a second."""
    jobs = [contender(name, compute_s=1.0, wire_s=2.0, begins_s=0.0, paths=[(0,), (1,)]) for name in "ab"]
    view = view_of(jobs, levels=1)
    assert work(view, make_network_policy("ecmp").decide(view)) == pytest.approx(0.5)
    free = assemble_policy("crux", change_s=10.0, holds_s=100.0).decide(view)
    assert len(changed_jobs(view, free)) == 1
    assert work(view, free) == pytest.approx(1.0)
    # A change costs 0.5 work a second for change_s, spread over holds_s, and brings 0.5.
    assert changed_jobs(view, assemble_policy("crux", change_s=101.0, holds_s=100.0).decide(view)) == ()


@pytest.mark.parametrize("name", ["crux", "sincronia", "ours", "ecmp"])
@pytest.mark.parametrize("seed", range(6))
def test_a_cap_is_kept_by_every_policy_or_refused(name: str, seed: int) -> None:
    view = random_view(Random(seed), jobs=3, levels=2)
    least = best_paths_and_levels(Rehearsals(view), cap=1.0).slowdown
    decision = assemble_policy(name, slowdown_cap=least * 1.001).decide(view)
    assert max(slowdowns(view.jobs, Rehearsals(view).rates_of(decision))) <= least * 1.001 * (1 + 1e-9)
    if least > 1.001:
        with pytest.raises(NothingFits, match=r"job job\d: .*smallest cap that"):
            assemble_policy(name, slowdown_cap=1 + (least - 1) / 2).decide(view)


@pytest.mark.parametrize("name", ["ours", "crux", "static"])
@pytest.mark.parametrize("seed", range(5))
def test_the_smallest_cap_that_is_said_works_and_none_below_does(name: str, seed: int) -> None:
    """Beside all decisions there are. To four places it is rounded up."""
    view = with_levels_of_the_fabric(random_view(Random(seed), jobs=3, levels=2))
    least = min(max(slowdowns(view.jobs, Rehearsals(view).rates_of(each))) for each in every_decision(view))
    if least <= 1.002:
        return
    with pytest.raises(NothingFits, match="smallest cap that") as refused:
        assemble_policy(name, slowdown_cap=1 + (least - 1) / 2).decide(view)
    said = float(str(refused.value).split()[-1])
    assert least * (1 - 1e-9) <= said <= least + 1.1e-4
    assert assemble_policy(name, slowdown_cap=said).decide(view)
    with pytest.raises(NothingFits):
        assemble_policy(name, slowdown_cap=said - 2.2e-4).decide(view)


@pytest.mark.parametrize("name", ["crux", "tacclstar"])
@pytest.mark.parametrize("seed", range(5))
def test_the_changes_that_are_made_are_the_best_of_those_that_were_asked(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside all sets of so many."""
    view = with_levels_of_the_fabric(random_view(Random(seed), jobs=5))
    asked = relabelled(view, make_network_policy(name).decide(view))
    changed = changed_jobs(view, asked)
    for most in (1, 2, 3):
        best = max(
            work(view, restored(view, asked, [job for job in changed if job not in kept]))
            for size in range(min(most, len(changed)) + 1)
            for kept in combinations(changed, size)
        )
        decision = assemble_policy(name, change_at_most=most).decide(view)
        # Where fewer are asked for than may change all of them are made, whatever they bring.
        if len(changed) > most:
            assert work(view, decision) == pytest.approx(best)
            monkeypatch.setattr(constrained, "MOST_SETS", 0)
            greedy = assemble_policy(name, change_at_most=most).decide(view)
            monkeypatch.undo()
            assert 0.9 * best <= work(view, greedy) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_restored_jobs_are_as_now_and_the_others_as_decided(seed: int) -> None:
    rng = Random(seed)
    view = with_levels_of_the_fabric(random_view(rng, jobs=5))
    asked = make_network_policy("crux").decide(view)
    jobs = rng.sample(range(5), rng.randint(1, 4))
    decision = restored(view, asked, jobs)
    assert not set(jobs) & set(changed_jobs(view, decision))
    for job, (paths, level) in enumerate(zip(decision.paths, decision.levels, strict=True)):
        if job not in jobs:
            assert paths == asked.paths[job]
            assert level in (None, asked.levels[job], view.jobs[job].own_level if asked.levels[job] is None else level)
    assert restored(view, asked, ()) is asked


def test_a_starving_job_is_fed_by_any_policy_with_a_cap() -> None:
    greedy = contender("greedy", compute_s=1.0, wire_s=2.0, begins_s=0.0, flops=100.0)
    view = view_of([greedy, contender("poor", compute_s=1.0, wire_s=1.0)], levels=2)
    assert slowdowns(view.jobs, Rehearsals(view).rates_of(assemble_policy("crux").decide(view)))[1] == float("inf")
    fed = assemble_policy("crux", slowdown_cap=2.5).decide(view)
    assert max(slowdowns(view.jobs, Rehearsals(view).rates_of(fed))) <= 2.5


@pytest.mark.parametrize("seed", range(10))
def test_what_is_believed_is_off_by_the_error_and_the_rest_is_true(seed: int) -> None:
    view = random_view(Random(seed))
    wrong = misled(view, 0.1, seed)
    assert wrong == misled(view, 0.1, seed) != misled(view, 0.1, seed + 1)
    assert misled(view, 0.0, seed) == view
    for true, believed in zip(view.jobs, wrong.jobs, strict=True):
        step, its = true.steps[0], believed.steps[0]
        wire = its.transfers[0].movers[0].seconds / step.transfers[0].movers[0].seconds
        for ratio in (believed.flops / true.flops, its.compute_s / step.compute_s, wire):
            assert min(abs(ratio - 0.9), abs(ratio - 1.1)) < 1e-9
        begins_s, wire_s = its.begins_s, its.transfers[0].movers[0].seconds
        assert believed.alone_s == pytest.approx(max(its.compute_s, begins_s + wire_s))
        assert (true.paths, true.now, true.own_level) == (believed.paths, believed.now, believed.own_level)


def test_wrong_beliefs_cost_ours_something_and_fair_shares_nothing() -> None:
    lost = {"ours": 0.0, "ecmp": 0.0}
    for seed in range(12):
        view = random_view(Random(seed), jobs=4)
        for name in lost:
            policy = make_network_policy(name)
            before, after = work(view, policy.decide(view)), work(view, Believing(policy, 0.2, 1).decide(view))
            lost[name] += (before - after) / before / 12
    assert lost["ecmp"] == 0.0
    assert 0.0 < lost["ours"] < 0.05
    assert not Believing(make_network_policy("ours"), 0.2).decide(view).proved


@pytest.mark.parametrize("seed", range(4))
def test_the_front_has_nothing_that_another_answer_beats(seed: int) -> None:
    view = random_view(Random(seed), jobs=3, levels=2)
    front = fairness_front(view)
    everything = [
        (work_per_s(view.jobs, rates), max(slowdowns(view.jobs, rates)))
        for rates in (Rehearsals(view).rates_of(each) for each in every_decision(view))
    ]
    assert all(point.proved for point in front)
    for point in front:
        assert not any(w > point.flops_per_s * (1 + 1e-9) and s <= point.slowdown for w, s in everything)
        assert work(view, point.decision) == pytest.approx(point.flops_per_s)
    assert front[-1].slowdown == pytest.approx(min(s for _, s in everything))
    assert fairness_front(view_of([], links=1)) == ()


def test_limits_that_cannot_be_are_wrong_input() -> None:
    for wrong in ({"change_at_most": -1}, {"slowdown_cap": 0.5}, {"change_s": -1.0}, {"believe": 1.0}):
        with pytest.raises(InputError, match="a cap of 1 or more"):
            assemble_policy("crux", **wrong)


@pytest.mark.parametrize("seed", range(40))
def test_levels_get_the_numbers_that_change_fewest_jobs(seed: int) -> None:
    """Beside all ways to number levels in the same order."""
    rng = Random(seed)
    view = random_view(rng, jobs=5, levels=4)
    levels = tuple(rng.choice((None, 0, 1, 2, 3)[: rng.randint(2, 5)]) for _ in range(5))
    decision = Decision(paths=tuple(job.now for job in view.jobs), levels=levels, offsets_s=(0.0,) * 5)
    moved = relabelled(view, decision)
    used = sorted({level for level in levels if level is not None})
    fewest = min(
        sum(
            level is not None and numbers[used.index(level)] != view.jobs[n].own_level for n, level in enumerate(levels)
        )
        for numbers in combinations(range(4), len(used))
    )
    assert len(changed_jobs(view, moved)) == fewest
    for one, other in combinations(range(5), 2):
        a, b, c, d = levels[one], levels[other], moved.levels[one], moved.levels[other]
        assert (a is None, b is None) == (c is None, d is None)
        if a is not None and b is not None and c is not None and d is not None:
            assert ((a > b) - (a < b)) == ((c > d) - (c < d))
