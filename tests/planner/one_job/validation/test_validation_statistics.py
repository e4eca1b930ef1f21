"""Statistics of predicted rows: errors, order, noise, coverage, out-of-memory calls, baselines, the document."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.one_job.validation.baselines import Baseline, best_mfu, fit_baselines, in_fit_half
from planner.one_job.validation.ranking import kendall_tau, rank_plans
from planner.one_job.validation.report import describe_validation
from planner.one_job.validation.results import GROUPS, RowResult
from planner.one_job.validation.statistics import (
    compare_baseline,
    count_oom,
    group_rows,
    measure_coverage,
    measure_noise,
    quantile,
    summarize_errors,
    summarize_group,
)
from tests.oracles.ranking_oracle import kendall_tau_b, least_constant_error
from tests.planner.one_job.validation.validation_examples import row, skipped

few_values = st.integers(0, 6).map(float)
times = st.floats(0.01, 1e3)


@given(st.lists(st.tuples(few_values, few_values), max_size=30))
def test_tau_is_that_of_its_definition_ties_and_all(points: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in points], [b for _, b in points]
    assert kendall_tau(first, second) == pytest.approx(kendall_tau_b(first, second))


@given(st.lists(times, min_size=2, max_size=30, unique=True))
def test_tau_is_one_in_order_and_minus_one_backwards(values: list[float]) -> None:
    assert kendall_tau(values, [3 * value for value in values]) == pytest.approx(1)
    assert kendall_tau(values, [-value for value in values]) == pytest.approx(-1)


def test_tau_of_unequal_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 values"):
        kendall_tau([1, 2], [1])


@given(st.lists(times, min_size=2, max_size=40), st.integers(1, 9))
def test_quantiles_are_the_inclusive_ones_of_the_standard_library(values: list[float], tenth: int) -> None:
    assert quantile(values, tenth / 10) == pytest.approx(
        statistics.quantiles(values, n=10, method="inclusive")[tenth - 1]
    )
    assert (quantile(values, 0), quantile(values, 1)) == (min(values), max(values))


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 1.5)])
def test_a_quantile_of_nothing_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        quantile(values, share)


def test_errors_are_summed_up_signed_and_absolute() -> None:
    found = summarize_errors([("a", 0.1), ("b", -0.3), ("c", 0.3), ("d", 0.0)])
    assert found is not None
    assert (found.rows, found.worst, found.worst_id) == (4, -0.3, "b")
    assert found.mean_absolute == pytest.approx(0.175)
    assert found.median_absolute == pytest.approx(0.2)
    assert found.p90_absolute == pytest.approx(0.3)
    assert found.bias == pytest.approx(0.025)
    assert summarize_errors([]) is None


def _set(numbers: tuple[int, ...], measured: tuple[float, ...], estimated: tuple[float, ...]) -> list[RowResult]:
    """Rows of one configuration; rows of equal number have equal plans."""
    return [
        row(
            place,
            configuration=("one",),
            plan=(number,),
            measured_iteration_time_s=seconds,
            estimated_iteration_time_s=guess,
        )
        for place, (number, seconds, guess) in enumerate(zip(numbers, measured, estimated, strict=True))
    ]


def _ours(one: RowResult) -> float | None:
    return one.estimated_iteration_time_s


def test_plans_are_ranked_within_their_configuration_alone() -> None:
    rows = _set((1, 2, 3), (1.0, 2.0, 4.0), (3.0, 2.0, 5.0))
    apart = [row(90 + n, measured_iteration_time_s=1 + n, estimated_iteration_time_s=9 - n) for n in range(5)]
    found = rank_plans(rows + apart, _ours)
    assert found is not None
    assert (found.sets, found.plans, found.pairs) == (1, 3, 3)
    assert found.kendall_tau == pytest.approx(1 / 3)
    # The second plan is taken for the best, and takes twice as long as the first.
    assert (found.regret_mean, found.regret_worst, found.regret_worst_ids) == (1.0, 1.0, ("X-0001",))


def test_a_repeated_plan_counts_once_and_two_plans_are_no_order() -> None:
    assert rank_plans(_set((1, 2, 2), (1.0, 2.0, 2.1), (1.0, 2.0, 2.0)), _ours) is None
    found = rank_plans(_set((1, 2, 2, 3), (1.0, 2.0, 9.0, 6.0), (1.0, 2.0, 2.0, 3.0)), _ours)
    assert found is not None
    assert found.plans == 3
    assert found.kendall_tau == pytest.approx(1.0)  # 1 s, 5.5 s (the median of 2 and 9), 6 s


def test_estimates_all_alike_have_no_order_and_cost_what_chance_costs() -> None:
    found = rank_plans(_set((1, 2, 3), (1.0, 2.0, 3.0), (7.0, 7.0, 7.0)), _ours)
    assert found is not None
    assert (found.kendall_tau, found.regret_mean) == (0.0, 1.0)
    assert rank_plans(_set((1, 2, 3), (2.0, 2.0, 2.0), (1.0, 2.0, 3.0)), _ours) is None


def test_tau_of_several_sets_is_weighted_by_pairs() -> None:
    four = _set((1, 2, 3, 4), (1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0))
    three = [
        row(
            50 + n, configuration=("two",), plan=(n,), measured_iteration_time_s=1 + n, estimated_iteration_time_s=9 - n
        )
        for n in range(3)
    ]
    found = rank_plans(four + three, _ours)
    assert found is not None
    assert found.kendall_tau == pytest.approx((6 * 1 + 3 * -1) / 9)
    assert found.regret_mean == pytest.approx((0 + 2) / 2)


def test_noise_is_what_repeated_runs_leave_to_nobody() -> None:
    rows = _set((1, 1, 2), (10.0, 12.0, 99.0), (1.0, 1.0, 1.0))
    found = measure_noise(rows)
    assert found is not None
    assert (found.sets, found.rows) == (1, 2)
    assert found.spread_worst == found.spread_mean == pytest.approx(0.2)
    assert found.spread_worst_ids == ("X-0000", "X-0001")
    assert found.floor == pytest.approx((2 / 12) / 2)  # by giving 10 s to both
    assert measure_noise(rows[1:]) is None
    assert measure_noise([rows[0], replace(rows[1], stated=("heads", 96))]) is None


def test_coverage_counts_both_halves() -> None:
    ids = [f"X-{number:04}" for number in range(20)]
    held_out = [name for name in ids if not in_fit_half(name)]
    found = measure_coverage([(name, 1.0, (0.5, 1.5) if name in held_out else (2.0, 3.0)) for name in ids])
    assert found is not None
    assert (found.rows, found.covered) == (20, len(held_out))
    assert found.held_out_rows == found.held_out_covered == len(held_out)
    assert measure_coverage([("a", None, (1.0, 2.0)), ("b", 1.0, None)]) is None
    edges = measure_coverage([("a", 1.0, (1.0, 3.0)), ("b", 3.0, (1.0, 3.0))])
    assert edges is not None
    assert edges.covered == 2
    assert edges.mean_width == pytest.approx(1.0)


def test_out_of_memory_is_counted_on_rows_that_say_how_they_ended() -> None:
    ran_out = {"measured_oom": True, "measured_iteration_time_s": None}
    found = count_oom(
        [
            row(1, **ran_out, estimated_oom=True),
            row(2, **ran_out),
            row(3, estimated_oom=True),
            row(4),
            row(5, estimated_oom=None),
            row(6, measured_iteration_time_s=None, estimated_oom=True),
        ]
    )
    assert (found.ran_out, found.told, found.ran, found.false_alarms) == (2, 1, 2, 1)
    assert (found.missed_ids, found.false_alarm_ids) == (("X-0002",), ("X-0003",))


def test_memory_is_compared_like_with_like() -> None:
    figures = {
        "measured_peak_memory_bytes": 60.0,
        "estimated_peak_memory_bytes": 50.0,
        "estimated_held_memory_bytes": 66.0,
        "memory_interval_90_bytes": (45.0, 55.0),
    }
    allocated, reserved = row(1, **figures), row(2, memory_kind="reserved", **figures)
    assert allocated.memory_error == pytest.approx(-1 / 6)
    assert reserved.memory_error == pytest.approx(0.1)
    assert allocated.comparable_memory_interval_bytes == (45.0, 55.0)
    assert reserved.comparable_memory_interval_bytes == (61.0, 71.0)
    group = summarize_group([allocated, reserved])
    assert group.memory is not None
    assert group.memory_coverage is not None
    assert (group.memory.rows, group.memory_coverage.rows, group.memory_coverage.covered) == (2, 2, 0)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=25))
def test_the_constant_is_the_best_one(pairs: list[tuple[float, float]]) -> None:
    mfu = best_mfu(pairs)
    error = sum(abs(ideal / mfu / measured - 1) for ideal, measured in pairs) / len(pairs)
    assert error == pytest.approx(
        least_constant_error([i for i, _ in pairs], [m for _, m in pairs]), rel=1e-6, abs=1e-9
    )


def test_baselines_take_flops_peak_and_bubble() -> None:
    def at_half_of_peak(number: int, bubble: float) -> RowResult:
        seconds = 2 * bubble
        return row(number, model_flops=1e15, peak_flops_per_s=1e15, bubble=bubble, measured_iteration_time_s=seconds)

    rows = [at_half_of_peak(number, 1 + number / 100) for number in range(40)]
    plain, bubble = fit_baselines([*rows, row(99), skipped(100, "no model")])
    assert (plain.name, bubble.name) == ("constant_mfu", "constant_mfu_with_bubble")
    assert bubble.mfu == pytest.approx(0.5)
    assert bubble.fitted_rows == sum(in_fit_half(one.id) for one in rows)
    assert bubble.time_s(rows[10]) == pytest.approx(2.2)
    assert plain.time_s(rows[10]) == plain.time_s(rows[30])
    assert plain.time_s(row(99)) is None
    group = summarize_group(rows, (plain, bubble))
    errors = {one.name: one.errors.mean_absolute for one in group.baselines}
    assert errors["constant_mfu_with_bubble"] == pytest.approx(0)
    assert errors["constant_mfu"] > 0.02


def test_a_baseline_is_compared_on_the_rows_that_both_predict() -> None:
    baseline = Baseline(name="constant_mfu", with_bubble=False, mfu=0.1, fitted_rows=1)
    known = row(1, model_flops=1e15, peak_flops_per_s=1e15)
    found = compare_baseline([known, row(2), skipped(3, "no", model_flops=1e15, peak_flops_per_s=1e15)], baseline)
    assert found is not None
    assert (found.errors.rows, found.ours.rows) == (1, 1)
    assert found.errors.mean_absolute == pytest.approx(0)
    assert found.own_constant.mean_absolute == pytest.approx(0)
    assert found.ours.mean_absolute == pytest.approx(0.1)
    assert compare_baseline([row(2)], baseline) is None


def test_a_table_of_a_row_or_two_still_has_baselines() -> None:
    for number in range(6):
        (baseline, _) = fit_baselines([row(number, model_flops=1e15, peak_flops_per_s=1e15)])
        assert baseline.fitted_on_all != in_fit_half(f"X-{number:04}")
        assert baseline.mfu == pytest.approx(0.1)
    assert fit_baselines([]) == ()


def test_every_row_is_in_one_group_of_each_kind_and_none_is_dropped() -> None:
    rows = [row(1), row(2, device="h100-sxm"), row(3, parallel="tp"), skipped(4, "no such device", source="Y")]
    result = describe_validation(rows)
    assert [one["id"] for one in result["rows"]] == [one.id for one in rows]
    for by in GROUPS:
        groups = result["groups"][by]
        assert sum(group["rows"] for group in groups.values()) == 4
        assert all(group["rows"] == group["predicted"] + group["skipped"] for group in groups.values())
        assert list(groups) == list(group_rows(rows, by))
    assert result["groups"]["all"]["skipped"] == 1
    assert result["skipped"] == [{"reason": "no such device", "rows": 1, "ids": ["X-0004"]}]
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_document_has_the_keys_that_stay() -> None:
    result = describe_validation([row(1, assumptions=("vocabulary 51200",)), skipped(2, "no heads")])
    kept = {
        "id",
        "measured_iteration_time_s",
        "estimated_iteration_time_s",
        "interval_90_s",
        "estimated_oom",
        "skipped",
    }
    kept |= {"measured_peak_memory_bytes", "estimated_peak_memory_bytes"}
    assert all(kept <= set(one) for one in result["rows"])
    assert result["rows"][0]["interval_90_s"] == [8.0, 11.0]
    assert result["rows"][0]["error"] == pytest.approx(-0.1)
    assert (result["rows"][1]["skipped"], result["rows"][1]["estimated_iteration_time_s"]) == ("no heads", None)
    assert result["assumptions"] == {"vocabulary 51200": 1}


def test_a_row_is_estimated_or_skipped_and_its_figures_are_sane() -> None:
    with pytest.raises(ValueError, match="skipped"):
        row(skipped="why")
    with pytest.raises(ValueError, match="measured_iteration_time_s=0"):
        row(measured_iteration_time_s=0)
    with pytest.raises(ValueError, match="nan"):
        row(estimated_iteration_time_s=float("nan"))


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(ValueError, match="colour"):
        group_rows([row()], "colour")  # type: ignore[arg-type]
