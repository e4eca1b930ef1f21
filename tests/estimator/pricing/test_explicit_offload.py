"""What state in host memory costs: the optimizer's step there, and copies over the host link."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers.split import Work
from estimator.pricing.offload import (
    HOST_MEMORY_BYTES_PER_S,
    activations_over_host_link_s,
    host_link_bytes_per_s,
    optimizer_on_host_s,
)
from tests.explicit_examples import QUIET, build, evaluated, with_links, with_recipe

SETUP = build(recipe=QUIET, dp=8, zero=1, offload=frozenset({"optimizer", "activations"}))
STAGE = SETUP.stages[0]
RATE = 31.5e9 * 0.63
"""pcie4-x16 with the share that copies reach."""
UPDATED = 10**8


def test_the_host_links_rate_is_its_records() -> None:
    assert host_link_bytes_per_s(SETUP, STAGE) == pytest.approx(RATE)


def test_a_step_on_the_host_is_its_traffic_and_both_ways_over_the_link() -> None:
    step_s, moved_s = optimizer_on_host_s(SETUP, STAGE, UPDATED, step_bytes=10**9)
    # Eight devices share the node's memory; gradients in fp32 go down, weights in bf16 come up.
    assert step_s == pytest.approx(8 * 1e9 / HOST_MEMORY_BYTES_PER_S)
    assert moved_s == pytest.approx(1e8 * (4 + 2) / RATE)
    narrow = with_recipe(SETUP, grad_dtype="bf16")
    assert optimizer_on_host_s(narrow, STAGE, UPDATED, step_bytes=10**9)[1] == pytest.approx(1e8 * 4 / RATE)


@given(saved=st.integers(0, 10**11), forward=st.floats(0, 1), backward=st.floats(0, 1))
def test_only_what_outlasts_the_passes_is_waited_for(saved: int, forward: float, backward: float) -> None:
    works = ((Work(operators=(), saved_bytes=saved), 2),)
    found = activations_over_host_link_s(SETUP, STAGE, works, forward, backward)
    way_s = 2 * saved / RATE
    assert found == pytest.approx((max(0.0, way_s - forward), max(0.0, way_s - backward)))


def test_offloading_takes_time_and_frees_memory() -> None:
    on_device = evaluated(build(recipe=QUIET, dp=8, zero=1))
    for part in ("optimizer", "activations"):
        offloaded = evaluated(build(recipe=QUIET, dp=8, zero=1, offload=frozenset({part})))
        assert offloaded.breakdown.offload_s > 0 == on_device.breakdown.offload_s
        assert offloaded.iteration_time_s > on_device.iteration_time_s
        assert offloaded.peak_memory_bytes < on_device.peak_memory_bytes


def test_a_faster_host_link_is_never_slower_and_halves_the_copies() -> None:
    fast = with_links(
        SETUP,
        lambda link: (
            replace(link, bandwidth_bytes_per_s=2 * link.bandwidth_bytes_per_s) if link.kind == "pcie" else link
        ),
        fabric=False,
    )
    slow_s, fast_s = (evaluated(setup).breakdown.offload_s for setup in (SETUP, fast))
    assert fast_s <= slow_s / 2
