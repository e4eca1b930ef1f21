"""90% intervals: around the estimate, as wide as the class of the run says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.interval import WorkKind, memory_interval, time_interval, work_kind
from estimator.pricing.outcome import TimeBreakdown
from profiles.uncertainty import HalfWidth, Uncertainty


def half_width(device: str, work: str, width: float) -> HalfWidth:
    return HalfWidth(device=device, work=work, log_half_width=width, rows=20, sources=("X",))


KNOWN = Uncertainty(
    launch_share=0.1,
    communication_share=0.25,
    time=(half_width("*", "launch", 0.5), half_width("a100", "compute", 0.1), half_width("*", "*", 0.3)),
    memory=(half_width("a100", "dense", 0.02), half_width("*", "*", 0.2)),
)


@pytest.mark.parametrize(
    ("breakdown", "kind"),
    [
        (TimeBreakdown(gemm_s=9, launch_s=1), "compute"),
        (TimeBreakdown(gemm_s=8, launch_s=2), "launch"),
        (TimeBreakdown(gemm_s=7, bubble_s=2, tp_s=1), "communication"),
        (TimeBreakdown(gemm_s=5, launch_s=2, dp_s=3), "launch"),
        (TimeBreakdown(convolution_s=5, memory_bound_s=4, launch_s=3), "convolution"),
        (TimeBreakdown(convolution_s=4, memory_bound_s=5), "compute"),
    ],
)
def test_a_run_is_told_by_what_limits_it(breakdown: TimeBreakdown, kind: WorkKind) -> None:
    assert work_kind(breakdown, launch_share=0.1, communication_share=0.25) == kind


def test_mixtures_of_experts_stand_apart_unless_launching_limits_them() -> None:
    for breakdown, kind in (
        (TimeBreakdown(gemm_s=9, ep_s=1), "experts"),
        (TimeBreakdown(gemm_s=6, ep_s=4), "experts"),
        (TimeBreakdown(gemm_s=8, launch_s=2), "launch"),
    ):
        assert work_kind(breakdown, "experts", launch_share=0.1, communication_share=0.25) == kind


def test_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="expected more than 0"):
        work_kind(TimeBreakdown(), launch_share=0.1, communication_share=0.25)


@given(total=st.floats(1e-6, 1e6), width=st.floats(1e-3, 3))
def test_an_interval_is_the_estimate_by_its_factor_either_way(total: float, width: float) -> None:
    known = Uncertainty(
        launch_share=0.1,
        communication_share=0.25,
        time=(half_width("*", "*", width),),
        memory=(half_width("*", "*", width),),
    )
    low, high = time_interval(total, TimeBreakdown(gemm_s=total), "any", uncertainty=known)
    assert low < total < high
    assert math.log(high / low) == pytest.approx(2 * width)


def test_the_class_decides_the_width() -> None:
    near = time_interval(1.0, TimeBreakdown(gemm_s=1.0), "a100", uncertainty=KNOWN)
    far = time_interval(1.0, TimeBreakdown(gemm_s=1.0), "h100", uncertainty=KNOWN)
    launch = time_interval(1.0, TimeBreakdown(gemm_s=0.5, launch_s=0.5), "h100", uncertainty=KNOWN)
    assert [math.log(high) for _, high in (near, far, launch)] == pytest.approx([0.1, 0.3, 0.5])


def test_memory_is_whole_bytes_around_the_peak() -> None:
    low, high = memory_interval(10**10, "a100", "dense", uncertainty=KNOWN)
    assert (low, high) == (math.floor(1e10 / math.exp(0.02)), math.ceil(1e10 * math.exp(0.02)))
    assert memory_interval(10**10, "a100", "experts", uncertainty=KNOWN)[1] > high
    assert memory_interval(0, "a100", uncertainty=KNOWN) == (0, 0)
