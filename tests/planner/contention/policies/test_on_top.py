"""Levels by axis, later begins and common periods: where they gain, and that they are left where they do not."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from estimator.network.steps import Mover, Playing, Step, Transfer
from planner.contention.policies.axes import axes_of, axis_of, levelled
from planner.contention.policies.beginning import periods_of, with_offsets
from planner.contention.policies.improving import with_axis_levels
from planner.contention.policies.loads import steps_on
from planner.contention.policies.ours import Ours
from planner.contention.policies.records import Contender, Decision, View
from planner.contention.policies.rehearsals import Rehearsals, extras_of
from planner.contention.policies.varied import LATE_DRAWS, Varied, worst_lateness
from planner.contention.policies.worth import work_per_s
from tests.contention_examples import contender, random_view, view_of
from tests.oracles.contention_oracle import iterations_a_second
from tests.oracles.on_top_oracle import best_axis_levels, best_common_period


def two_axes(
    name: str, *, blocks_s: float, gradients_s: float, compute_s: float, flops: float = 1.0, messages: int = 1
) -> Contender:
    """A job whose pipeline messages block, and whose gradients go while it computes on; both on link 0."""
    message = Step(compute_s=0.1, begins_s=0.1, transfers=(_on(0, blocks_s),), times=messages)
    rest = Step(compute_s=compute_s, begins_s=0.0, transfers=(_on(1, gradients_s),))
    return Contender(
        id=name,
        devices=1,
        flops=flops,
        alone_s=messages * (0.1 + blocks_s) + max(compute_s, gradients_s),
        steps=(message, rest),
        paths=((((0, 1.0),),), (((0, 1.0),),)),
        now=(0, 0),
        axes=("pp", "dp"),
    )


def _on(connection: int, seconds: float) -> Transfer:
    return Transfer(movers=(Mover(way=((connection, 1.0),), seconds=seconds),))


def decided(view: View, levels: tuple[int, ...]) -> Decision:
    jobs = range(len(view.jobs))
    return Decision(
        paths=tuple(job.now for job in view.jobs), levels=levels, offsets_s=(0.0,) * len(levels), order=tuple(jobs)
    )


def hiding() -> View:
    """Both jobs' messages block, and the gradients of each hide behind its compute, unless the other's message waits
    for them."""
    jobs = [
        two_axes("a", blocks_s=0.02, gradients_s=0.5, compute_s=0.6, messages=8),
        two_axes("b", blocks_s=0.02, gradients_s=0.5, compute_s=0.67, messages=8),
    ]
    return view_of(jobs, levels=3)


def test_the_axis_of_a_transfer_is_that_of_its_connections() -> None:
    job = two_axes("a", blocks_s=0.2, gradients_s=0.9, compute_s=1.0)
    assert axes_of(job) == ("dp", "pp")
    assert axis_of(replace(job, axes=()), job.steps[0].transfers[0]) is None
    steps = levelled(job, steps_on(job, (0, 0)), (("pp", 0), ("dp", 2)))
    assert [transfer.level for step in steps for transfer in step.transfers] == [0, 2]
    assert [t.level for step in levelled(job, job.steps, (("ep", 1),)) for t in step.transfers] == [None, None]
    with pytest.raises(ValueError, match="1 axes for 2 connections"):
        replace(job, axes=("dp",))


def test_what_blocks_goes_before_what_hides_where_that_gains() -> None:
    """More than the best of all levels by job."""
    view = hiding()
    before = Ours(axes=False, offsets=False).decide(view)
    assert before.proved
    after = with_axis_levels(view, before, plays=200)
    assert any(after.axis_levels)
    for levels in after.axis_levels:
        assert not levels or dict(levels)["pp"] < dict(levels)["dp"]
    varied = Varied(view)
    assert varied.work(after, LATE_DRAWS) > varied.work(before, LATE_DRAWS) * 1.02
    assert with_axis_levels(view, before, plays=0) is before
    assert with_axis_levels(replace(view, levels=1), decided(view, (0, 0)), plays=200) == decided(view, (0, 0))


def test_levels_by_axis_are_played_as_the_oracle_plays_them() -> None:
    view = hiding()
    decision = replace(decided(view, (0, 1)), axis_levels=((("dp", 2), ("pp", 0)), ()))
    rates = Rehearsals(view).rates_of(decision)
    jobs = [
        Playing(steps=levelled(job, steps_on(job, job.now), levels), level=level or 0)
        for job, levels, level in zip(view.jobs, decision.axis_levels, decision.levels, strict=True)
    ]
    assert rates == pytest.approx(iterations_a_second(jobs, view.bytes_per_s, 400.0), rel=0.02)


def test_two_jobs_that_fit_beside_each_other_are_held_to_one_period() -> None:
    """1 s each of compute and wire, one a little longer: left alone they drift through each other; held, they never
    meet."""
    jobs = [contender("a", compute_s=1.0, wire_s=0.95), contender("b", compute_s=1.06, wire_s=1.0)]
    for levels, gain in ((1, 1.01), (2, 1.05)):
        view = view_of(jobs, levels=levels)
        before = decided(view, (0, levels - 1))
        after = with_offsets(view, before, plays=600)
        varied = Varied(view)
        assert any(after.periods_s)
        assert varied.work(after, LATE_DRAWS) > gain * varied.work(before, LATE_DRAWS)
    assert with_offsets(view, before, plays=0) is before


@pytest.mark.parametrize("seed", range(12))
def test_begins_are_kept_only_where_the_mean_gains(seed: int) -> None:
    view = random_view(Random(seed), jobs=4)
    before = Ours(offsets=False).decide(view)
    after = with_offsets(view, before, plays=120)
    assert (after.paths, after.levels) == (before.paths, before.levels)
    assert all(offset >= 0 for offset in after.offsets_s)
    if after == before:
        return
    varied = Varied(view)
    assert varied.work(after, LATE_DRAWS) > varied.work(before, LATE_DRAWS)
    extras = extras_of(after)
    for job, period_s in zip(view.jobs, extras.periods_s, strict=True):
        assert period_s == 0 or period_s >= job.alone_s * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_levels_by_axis_are_near_the_best_of_all(seed: int) -> None:
    """In the draws by which they are looked for; those by which one is kept may say that it gains nothing."""
    rng = Random(seed)
    jobs = [
        two_axes(
            name,
            blocks_s=rng.uniform(0.01, 0.06),
            gradients_s=rng.uniform(0.2, 0.6),
            compute_s=rng.uniform(0.3, 0.7),
            messages=rng.randint(2, 8),
        )
        for name in "ab"
    ]
    view = view_of(jobs, levels=3)
    before = Ours(axes=False, offsets=False).decide(view)
    varied = Varied(view)
    best = best_axis_levels(before, [axes_of(job) for job in jobs], "dp", 3, varied.work)
    after = with_axis_levels(view, before, plays=500)
    if after == before:
        assert varied.work(before) >= 0.95 * best
    else:
        assert 0.97 * best <= varied.work(after) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(7))
def test_common_periods_are_near_the_best_of_a_grid(seed: int) -> None:
    """In the draws by which they are looked for; the other ones decide that they are kept, here in each case."""
    rng = Random(seed)
    compute_s = rng.uniform(0.8, 1.2)
    jobs = [
        contender("a", compute_s=compute_s, wire_s=rng.uniform(0.6, 0.9)),
        contender("b", compute_s=compute_s * rng.uniform(1.0, 1.05), wire_s=rng.uniform(0.6, 0.9)),
    ]
    view = view_of(jobs, levels=1)
    before, varied = decided(view, (0, 0)), Varied(view)
    best = best_common_period(before, [job.alone_s for job in jobs], varied.work, parts=5, turns=12)
    assert varied.work(before) < 0.96 * best
    after = with_offsets(view, before, plays=600)
    assert varied.work(after) >= 0.97 * best
    assert varied.work(after, LATE_DRAWS) > varied.work(before, LATE_DRAWS)
    # Each is held to what it takes, and some of what it may be late by.
    assert all(period_s is not None and period_s > max(job.alone_s for job in jobs) for period_s in after.periods_s)


def test_late_jobs_are_never_early_and_others_as_stated_in_the_mean() -> None:
    """Two on links of their own and two that share one and send little."""
    ways = {"a": 0, "b": 1, "c": 2, "d": 2}
    jobs = [contender(name, compute_s=1.0, wire_s=0.01, paths=[(link,)]) for name, link in ways.items()]
    view = view_of(jobs, levels=2)
    before, varied = decided(view, (0, 0, 0, 1)), Varied(view, jitter=0.02)
    stated = sum(1 / job.alone_s for job in view.jobs)
    late = [stated / varied.work(before, [draw]) for draw in range(1, 40, 2)]
    assert 1.0 < min(late) < max(late) < 1 + worst_lateness(0.02)
    assert stated / varied.work(before, range(0, 40, 2)) == pytest.approx(1.0, rel=0.01)
    with pytest.raises(ValueError, match="jitter 0\\.5: from 0"):
        Varied(view, jitter=0.5)


def test_periods_have_slack_by_how_much_compute_varies() -> None:
    """Two that fit beside each other for good: the later jobs may be, the longer they are held."""
    jobs = [contender("a", compute_s=1.0, wire_s=0.8), contender("b", compute_s=1.06, wire_s=0.85)]
    view = view_of(jobs, levels=1)
    before = decided(view, (0, 0))
    held = [with_offsets(view, before, plays=600, jitter=jitter).periods_s for jitter in (0.002, 0.01, 0.02)]
    assert all(its and its[0] == its[1] for its in held)
    slacks = [(its[0] or 0.0) / 1.91 - 1 for its in held]
    assert 0 < slacks[0] < slacks[1] < slacks[2] < worst_lateness(0.02)


@pytest.mark.parametrize(("seed", "gain"), [(24, 1.03)])
def test_begins_gain_above_the_best_paths_and_levels(seed: int, gain: float) -> None:
    view = random_view(Random(seed))
    before = Ours(offsets=False).decide(view)
    after = Ours().decide(view)
    varied = Varied(view)
    assert (after.paths, after.levels, after.proved) == (before.paths, before.levels, True)
    assert varied.work(after, LATE_DRAWS) > gain * varied.work(before, LATE_DRAWS)


def test_jobs_are_held_to_parts_and_multiples_of_a_period() -> None:
    jobs = [contender(name, compute_s=alone_s / 2, wire_s=alone_s / 2) for name, alone_s in (("a", 2), ("b", 0.9))]
    view = view_of([*jobs, contender("c", compute_s=3.9, wire_s=1.0)], levels=1)
    assert periods_of(view, (0, 1, 2), (0.49, 1.0, 0.2), 2.0) == (2.0, 1.0, None)  # c: 6 s where it takes 5
    assert periods_of(view, (2,), (0.0, 0.0, 0.17), 2.0) == (None, None, 6.0)


def test_a_cap_is_not_broken_by_what_comes_on_top() -> None:
    view = random_view(Random(4))
    cap = 1.4
    decision = Ours(slowdown_cap=cap).decide(view)
    rates = Rehearsals(view).rates_of(decision)
    assert work_per_s(view.jobs, rates) > 0
    assert min(rate * job.alone_s for rate, job in zip(rates, view.jobs, strict=True)) >= 1 / cap * 0.98
