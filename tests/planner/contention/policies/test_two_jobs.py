"""Crux's sections 3.2 and 4.2: two jobs on one link, their examples as printed, Theorem 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from random import Random

import pytest

from estimator.network.steps import Playing
from planner.contention.policies.intensity import READINGS, intensities
from planner.contention.policies.loads import link_seconds, paths_now
from planner.contention.policies.pair import Pattern, in_a_window, in_the_long_run, pattern_of
from planner.contention.policies.priority import MOST_FACTOR, correction_factor
from planner.contention.policies.records import Decision, View
from tests.contention_examples import contender, playings, view_of
from tests.oracles.contention_oracle import iterations_a_second, spent_seconds

EXAMPLE_1 = Pattern(compute_s=2.0, begins_s=2.0, wire_s=2.0), Pattern(compute_s=1.0, begins_s=1.0, wire_s=1.0)
EXAMPLE_2 = Pattern(compute_s=4.0, begins_s=2.0, wire_s=1.0), Pattern(compute_s=2.0, begins_s=1.0, wire_s=3.0)


def test_example_1_as_printed() -> None:
    one, two = EXAMPLE_1
    window = partial(in_a_window, window_s=12.0, communication_first=True)
    first, second = window(one, two), window(two, one)
    assert first.wire_s == (6.0, 3.0)
    assert second.wire_s == (6.0, 4.0)
    assert [12 - busy for busy in first.compute_s] == [6.0, 9.0]
    assert sum(first.compute_s) * 10 / (2 * 10 * 12) == pytest.approx(0.375)
    assert sum(second.compute_s) * 10 / (2 * 10 * 12) == pytest.approx(5 / 12)  # 41.7%
    assert correction_factor(one, two, window) == 1.5


def test_example_2_as_printed_needs_its_window_of_13_seconds() -> None:
    one, two = EXAMPLE_2
    idle = {
        seconds: tuple(
            seconds - in_a_window(*jobs, float(seconds), communication_first=False).compute_s[place]
            for jobs, place in (((one, two), 1), ((two, one), 0))
        )
        for seconds in (12, 13)
    }
    assert idle == {12: (6.0, 6.0), 13: (7.0, 6.0)}


def test_example_2_in_the_long_run_is_as_if_both_were_alone() -> None:
    one, two = EXAMPLE_2
    for jobs in ((one, two), (two, one)):
        spent = in_the_long_run(*jobs)
        assert spent.wire_s == pytest.approx([job.wire_s / job.alone_s for job in jobs])
    assert correction_factor(one, two) == 1.0  # 0/0


def test_a_job_that_gains_where_the_reference_loses_nothing_has_the_most_factor() -> None:
    hidden = Pattern(compute_s=10.0, begins_s=0.0, wire_s=4.0)
    assert correction_factor(hidden, Pattern(compute_s=1.0, begins_s=1.0, wire_s=1.37)) == MOST_FACTOR


def test_a_hidden_job_that_sends_longer_than_it_computes_leaves_nothing() -> None:
    greedy, poor = Pattern(compute_s=1.0, begins_s=0.0, wire_s=2.0), Pattern(compute_s=1.0, begins_s=1.0, wire_s=0.1)
    assert in_the_long_run(greedy, poor).wire_s == (1.0, 0.0)


def play_in_order(view: View, order: Sequence[int]) -> list[Playing]:
    levels = tuple(order.index(job) for job in range(len(view.jobs)))
    return playings(view, Decision(paths=paths_now(view), levels=levels, offsets_s=(0.0,) * len(order)))


@pytest.mark.parametrize("seed", range(25))
def test_the_long_run_is_what_playing_gives(seed: int) -> None:
    rng = Random(seed)
    jobs = []
    for name in "ab":
        compute_s = rng.randint(1, 8) / 4
        begins_s, wire_s = rng.choice((0.0, compute_s / 2, compute_s)), rng.randint(1, 8) / 4
        jobs.append(contender(name, compute_s=compute_s, begins_s=begins_s, wire_s=wire_s))
    view = view_of(jobs)
    patterns = [pattern_of(job, its[0]) for job, its in zip(jobs, link_seconds(view, paths_now(view)), strict=True)]
    assert [pattern.alone_s for pattern in patterns] == [job.alone_s for job in jobs]
    rates = iterations_a_second(play_in_order(view, (0, 1)), view.bytes_per_s, 400.0)
    expected = [rate * pattern.wire_s for rate, pattern in zip(rates, patterns, strict=True)]
    assert in_the_long_run(*patterns).wire_s == pytest.approx(expected, rel=0.02, abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("order", [*permutations(range(3)), (0, 0, 0)])
def test_theorem_1_on_one_link_for_every_order_and_time(seed: int, order: tuple[int, ...]) -> None:
    """|F_T - U_T| <= sum of W_j (eq. 9), with fair shares too, where a job has a fraction of the link."""
    rng = Random(seed)
    jobs = [
        contender(name, compute_s=rng.uniform(0.2, 2), wire_s=rng.uniform(0.2, 2), flops=rng.uniform(1, 9))
        for name in "abc"
    ]
    view = view_of(jobs)
    intensity = intensities(view, link_seconds(view, paths_now(view)))
    decision = Decision(paths=paths_now(view), levels=order, offsets_s=(0.0,) * 3)
    for time_s in (0.7, 3.1, 11.0, 47.3):
        computed_s, sent_s = spent_seconds(playings(view, decision), view.bytes_per_s, time_s)
        work = sum(job.flops * time / job.steps[0].compute_s for job, time in zip(jobs, computed_s, strict=True))
        carried = sum(rate * time for rate, time in zip(intensity, sent_s, strict=True))
        assert abs(carried - work) <= sum(job.flops for job in jobs)


def test_theorem_1_says_nothing_of_a_job_without_bytes_on_the_link() -> None:
    """Its work grows without a byte of it: the difference passes any bound."""
    view = view_of([contender("on", compute_s=1.0, wire_s=1.0), contender("off", compute_s=1.0, wire_s=0.0)])
    decision = Decision(paths=paths_now(view), levels=(0, 1), offsets_s=(0.0, 0.0))
    computed_s, sent_s = spent_seconds(playings(view, decision), view.bytes_per_s, 100.0)
    assert sum(computed_s) - sent_s[0] * 1.0 == pytest.approx(100.0)  # and 1,000 after ten times as long


def test_on_two_links_the_order_of_intensity_loses() -> None:
    """The most intensive job crosses both links and holds up one job on each, which together do more."""
    wide = contender("wide", compute_s=1.0, wire_s=1.0, begins_s=0.0, flops=1.1, paths=[(0, 1)])
    narrow = [
        contender(name, compute_s=1.0, wire_s=1.0, begins_s=0.0, paths=[(link,)]) for link, name in enumerate("ab")
    ]
    view = view_of([wide, *narrow])
    intensity = intensities(view, link_seconds(view, paths_now(view)))
    assert intensity[0] > max(intensity[1:])
    work = []
    for levels in ((0, 1, 1), (1, 0, 0)):
        decision = Decision(paths=paths_now(view), levels=levels, offsets_s=(0.0,) * 3)
        rates = iterations_a_second(playings(view, decision), view.bytes_per_s, 100.0)
        work.append(sum(job.flops * rate for job, rate in zip(view.jobs, rates, strict=True)))
    assert work[1] > 1.5 * work[0]


def test_intensity_has_two_readings_of_its_time() -> None:
    job = contender("a", compute_s=1.0, wire_s=4.0, flops=12.0, paths=[(0,)])
    view = view_of([job])
    spread = ({0: 2.0},)
    assert intensities(view, spread) == (6.0,)
    assert intensities(view, spread, "transfers") == (3.0,)
    assert set(READINGS) == {"bottleneck", "transfers"}
