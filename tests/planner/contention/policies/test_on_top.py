"""Levels by axis, later begins and common periods: where they gain, and that they are left where they do not."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from estimator.network.steps import Mover, Playing, Step, Transfer
from planner.contention.policies.axes import axes_of, axis_of, levelled
from planner.contention.policies.improving import Varied, periods_of, with_axis_levels, with_offsets
from planner.contention.policies.loads import steps_on
from planner.contention.policies.ours import Ours
from planner.contention.policies.records import Contender, Decision, View
from planner.contention.policies.rehearsals import Rehearsals, extras_of
from planner.contention.policies.worth import work_per_s
from tests.contention_examples import contender, random_view, view_of
from tests.oracles.contention_oracle import iterations_a_second


def two_axes(name: str, *, blocks_s: float, gradients_s: float, compute_s: float, flops: float = 1.0) -> Contender:
    """A job whose pipeline message blocks, and whose gradients go while it computes on; both on link 0."""
    message = Step(compute_s=0.1, begins_s=0.1, transfers=(_on(0, blocks_s),))
    rest = Step(compute_s=compute_s, begins_s=0.0, transfers=(_on(1, gradients_s),))
    return Contender(
        id=name,
        devices=1,
        flops=flops,
        alone_s=0.1 + blocks_s + max(compute_s, gradients_s),
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
        two_axes("a", blocks_s=0.2, gradients_s=0.9, compute_s=1.0),
        two_axes("b", blocks_s=0.21, gradients_s=0.7, compute_s=1.07),
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
    view = hiding()
    before = decided(view, (1, 1))
    after = with_axis_levels(view, before, plays=200)
    assert any(after.axis_levels)
    for levels in after.axis_levels:
        assert not levels or dict(levels)["pp"] < dict(levels)["dp"]
    varied = Varied(view, None)
    assert varied.worth(after)[1] > varied.worth(before)[1] * 1.01
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
        varied = Varied(view, None)
        assert any(after.periods_s)
        assert varied.worth(after)[1] > gain * varied.worth(before)[1]
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
    varied = Varied(view, None)
    assert varied.worth(after)[1] > varied.worth(before)[1]
    extras = extras_of(after)
    for job, period_s in zip(view.jobs, extras.periods_s, strict=True):
        assert period_s == 0 or period_s >= job.alone_s * (1 - 1e-9)


@pytest.mark.parametrize(("seed", "gain"), [(21, 1.005), (24, 1.03)])
def test_begins_gain_above_the_best_paths_and_levels(seed: int, gain: float) -> None:
    view = random_view(Random(seed))
    before = Ours(offsets=False).decide(view)
    after = Ours().decide(view)
    varied = Varied(view, None)
    assert (after.paths, after.levels, after.proved) == (before.paths, before.levels, True)
    assert varied.worth(after)[1] > gain * varied.worth(before)[1]


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
