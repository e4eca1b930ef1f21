"""An iteration read off synthetic counters whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from bench.network.recordings import Recorded, record_series
from estimator.traffic.counters import TooShort, measure_iteration
from tests.seeds import seeds


def measured_errors(series: Recorded) -> tuple[float, float, float]:
    """By how much of itself the iteration is wrong, the bytes of themselves, the start of sending of the iteration."""
    found = measure_iteration(series.times_s, series.totals, series.active)
    assert found.begins_s is not None
    late = (found.begins_s - series.begins_s) / series.iteration_s
    return (
        abs(found.iteration_s / series.iteration_s - 1),
        abs(found.sent_bytes / series.sent_bytes - 1),
        abs((late + 0.5) % 1 - 0.5),
    )


@pytest.mark.parametrize("seed", seeds(200))
def test_iteration_bytes_and_start_are_found_in_spite_of_jitter(seed: int) -> None:
    iteration, sent, begins = measured_errors(record_series(seed))
    assert iteration < 0.01
    assert sent < 0.03
    assert begins < 0.05


def bursts(*sizes: float, iteration_s: float = 2.0, iterations: int = 15) -> tuple[list[float], list[float]]:
    """Bytes of evenly spaced bursts of these sizes in every iteration."""
    times, totals = [0.0], [0.0]
    step_s = iteration_s / 40 / len(sizes)
    for row in range(40 * len(sizes) * iterations):
        size = sizes[row // 40 % len(sizes)] if row % 40 >= 25 else 0.0
        times.append(times[-1] + step_s)
        totals.append(totals[-1] + size)
    return times, totals


def test_parts_that_send_almost_alike_are_told_of() -> None:
    """Two bursts an iteration, one a fifth smaller: either could be the iteration, and both are named."""
    found = measure_iteration(*bursts(1.0, 0.8), None)
    named = [found.iteration_s, *found.perhaps_s]
    assert sorted(round(seconds, 2) for seconds in named) == [1.0, 2.0]
    assert found.begins_s is None


def test_parts_that_send_differently_are_no_iterations() -> None:
    found = measure_iteration(*bursts(1.0, 0.2), None)
    assert found.iteration_s == pytest.approx(2.0, rel=1e-3)
    assert found.perhaps_s == ()


def test_equal_parts_are_the_iteration() -> None:
    found = measure_iteration(*bursts(1.0), None)
    assert found.iteration_s == pytest.approx(2.0, rel=1e-3)
    assert found.sent_bytes == pytest.approx(15.0, rel=0.01)
    assert found.harmonic == pytest.approx(1.0, rel=0.02)


def test_what_never_rests_has_no_start_of_compute() -> None:
    times, totals = bursts(1.0)
    found = measure_iteration(times, totals, [1.0] * len(times))
    assert found.compute_s is None
    assert found.begins_s is None


@pytest.mark.parametrize("iterations", [1, 1.8])
def test_less_than_two_iterations_are_too_short(iterations: float) -> None:
    times, totals = bursts(1.0, iterations=3)
    rows = int(40 * iterations)
    with pytest.raises(TooShort):
        measure_iteration(times[:rows], totals[:rows], None)


@pytest.mark.parametrize("rate", [0.0, 5.0])
def test_nothing_that_comes_back_is_too_short(rate: float) -> None:
    times = np.arange(100.0)
    with pytest.raises(TooShort):
        measure_iteration(times.tolist(), (rate * times).tolist(), None)
