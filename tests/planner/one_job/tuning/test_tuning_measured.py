"""The default of tuning: what it measures, when it stops, what it makes of measurements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import t as student

from bench.tuning.approaches import ask_in_turn
from planner.one_job.tuning.measured import ErrorModel, Rules, ask_where_it_matters, foresee, log_spread
from planner.one_job.tuning.records import Candidate, Measurement, tune
from planner.one_job.tuning.student import Student
from tests.oracles.tuning_oracle import condition_in_turn, fastest
from tests.planner.one_job.tuning.tuning_examples import Counting, groups, make_candidates

RULES = Rules()


@given(groups())
def test_no_plan_is_measured_twice_and_never_more_than_all(
    group: tuple[tuple[Candidate[int], ...], list[float | None]],
) -> None:
    candidates, measured = group
    oracle = Counting(measured)
    found = tune(candidates, oracle, ask_where_it_matters())
    assert found.final
    assert len(set(oracle.asked)) == len(oracle.asked) <= len(candidates)
    assert oracle.asked == [one.number for one in found.measurements]


@given(groups())
def test_where_the_choice_is_final_no_plan_left_is_likely_to_be_faster(
    group: tuple[tuple[Candidate[int], ...], list[float | None]],
) -> None:
    candidates, measured = group
    found = tune(candidates, Counting(measured), ask_where_it_matters())
    seen = {one.number for one in found.measurements}
    if len(candidates) == 1:
        return
    if found.best is None:
        assert seen == set(range(len(candidates)))
        assert fastest(measured) is None
        return
    assert found.best.seconds is not None
    mean, spread = condition_in_turn(candidates, found.measurements, ErrorModel())
    bar = math.log(found.best.seconds * (1 - RULES.gain))
    ran = sum(one.seconds is not None for one in found.measurements)
    for number in set(range(len(candidates))) - seen:
        ahead = (bar - mean[number]) / max(spread[number], 1e-9)
        assert student.cdf(ahead, ErrorModel().freedom + ran) <= RULES.odds + 1e-6


@given(groups())
def test_what_measurements_make_of_the_estimates_is_the_conditional_distribution(
    group: tuple[tuple[Candidate[int], ...], list[float | None]],
) -> None:
    candidates, measured = group
    done = [Measurement(number=number, seconds=seconds) for number, seconds in enumerate(measured[:4])]
    outlook = foresee(candidates, done)
    mean, spread = condition_in_turn(candidates, done, ErrorModel())
    for number in range(len(candidates)):
        if number < len(done) and measured[number] is None:
            assert outlook.mean[number] == math.inf
            continue
        assert outlook.mean[number] == pytest.approx(mean[number], abs=1e-6)
        assert outlook.spread[number] == pytest.approx(spread[number], abs=1e-6)


@given(groups(), st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(
    group: tuple[tuple[Candidate[int], ...], list[float | None]], factor: float
) -> None:
    candidates, measured = group
    scaled = [
        Candidate(plan=one.plan, estimated_s=one.estimated_s * factor, log_spread=one.log_spread, traits=one.traits)
        for one in candidates
    ]
    plain, other = Counting(measured), Counting([None if t is None else t * factor for t in measured])
    tune(candidates, plain, ask_where_it_matters())
    tune(scaled, other, ask_where_it_matters())
    assert len(plain.asked) == len(other.asked)


def sum_of_shares() -> float:
    errors = ErrorModel()
    return errors.common + errors.alike + errors.own


def test_a_clear_winner_takes_one_measurement() -> None:
    oracle = Counting([1.05, 2.0, 3.0])
    found = tune(make_candidates([1.0, 2.0, 3.0]), oracle, ask_where_it_matters())
    assert oracle.asked == [0]
    assert found.best == Measurement(number=0, seconds=1.05)


def test_near_estimates_are_all_measured() -> None:
    oracle = Counting([1.05, 1.02, 0.97])
    found = tune(make_candidates([1.0, 1.01, 1.02]), oracle, ask_where_it_matters())
    assert sorted(oracle.asked) == [0, 1, 2]
    assert found.best == Measurement(number=2, seconds=0.97)


def test_what_one_plan_shows_is_learned_for_plans_like_it() -> None:
    """All run 40% slower than estimated. Were each to err on its own, the second would be worth a try."""
    alike = make_candidates([1.0, 1.2, 1.3], spread=0.2, traits=[(0.0,), (0.0,), (0.0,)])
    measured = [1.4, 1.68, 1.82]
    learned, alone = Counting(measured), Counting(measured)
    tune(alike, learned, ask_where_it_matters())
    tune(alike, alone, ask_where_it_matters(Rules(errors=ErrorModel(common=0.0, alike=0.0, own=1.0, freedom=10**4))))
    assert learned.asked == [0]
    assert sorted(alone.asked) == [0, 1, 2]


def test_a_plan_that_runs_out_of_memory_is_no_choice() -> None:
    oracle = Counting([None, 2.0])
    found = tune(make_candidates([1.0, 2.0]), oracle, ask_where_it_matters())
    assert oracle.asked == [0, 1]
    assert found.best == Measurement(number=1, seconds=2.0)


def test_one_candidate_needs_no_measurement() -> None:
    found = tune(make_candidates([1.0]), Counting([1.0]), ask_where_it_matters())
    assert found.measurements == ()
    assert found.final
    assert found.best is None


def test_what_may_not_be_spent_ends_it() -> None:
    oracle = Counting([1.0, 1.0, 1.0])
    found = tune(
        make_candidates([1.0, 1.01, 1.02]), oracle, ask_where_it_matters(), may_measure=lambda one: one.plan != 1
    )
    assert not found.final
    assert 1 not in oracle.asked


def test_every_plan_in_turn_finds_the_best_one() -> None:
    measured = [3.0, None, 1.0, 2.0]
    found = tune(make_candidates([1.0] * 4), Counting(measured), ask_in_turn(range(4)))
    assert found.best is not None
    assert found.best.seconds == fastest(measured)
    assert len(found.measurements) == 4


def test_asking_again_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="asked for again"):
        tune(make_candidates([1.0, 2.0]), Counting([1.0, 2.0]), ask_in_turn([0, 0]))


def test_nothing_measured_leaves_the_estimates() -> None:
    outlook = foresee(make_candidates([1.0, 2.0], spread=0.1), [])
    assert np.exp(outlook.mean) == pytest.approx([1.0, 2.0])
    assert outlook.spread == pytest.approx([0.1 * math.sqrt(sum_of_shares())] * 2)


@given(st.integers(2, 60), st.floats(-30, 30))
def test_students_distribution_is_scipys(freedom: int, at: float) -> None:
    found = Student(freedom)
    assert found.below(at) == pytest.approx(student.cdf(at, freedom), abs=1e-12)
    assert found.density(at) == pytest.approx(student.pdf(at, freedom), rel=1e-9)
    for share in (0.025, 0.6, 0.975):
        assert found.quantile(share) == pytest.approx(student.ppf(share, freedom), rel=1e-9)


@pytest.mark.parametrize("at", [-2.0, 0.0, 0.7])
def test_the_expected_excess_is_the_integral(at: float) -> None:
    whole, _ = quad(lambda x: (at - x) * student.pdf(x, 12), -math.inf, at)
    assert Student(12).expected_excess(at) == pytest.approx(whole, rel=1e-8)


def test_a_surprise_widens_what_is_not_known() -> None:
    candidates = make_candidates([1.0, 1.0], spread=0.1)
    expected, surprised = (foresee(candidates, [Measurement(number=0, seconds=t)]) for t in (1.0, 2.0))
    assert expected.spread[1] < surprised.spread[1]


def test_the_spread_of_a_90_percent_interval() -> None:
    low, high = math.exp(-0.1644854), math.exp(0.1644854)
    assert log_spread((low, high)) == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("wrong", [{"odds": 0.0}, {"odds": 1.0}, {"gain": -0.1}, {"gain": 1.0}])
def test_rules_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Rules(**wrong)  # type: ignore[arg-type]


def test_candidates_are_checked() -> None:
    with pytest.raises(ValueError, match="estimated_s=0"):
        make_candidates([0.0])
    with pytest.raises(ValueError, match="log_spread=0"):
        make_candidates([1.0], spread=0.0)
    with pytest.raises(ValueError, match="expected no share below 0"):
        ErrorModel(own=0.0)
