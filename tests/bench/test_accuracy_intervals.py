"""Half-widths of intervals: conformal quantiles, who shares a class, and what they cover."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.accuracy.intervals import Off, classes_of, conformal_quantile, write_uncertainty
from profiles.uncertainty import ANY, Uncertainty, parse_uncertainty


def off(device: str, error: float, work: str = "compute", source: str = "X") -> Off:
    return Off(device=device, work=work, source=source, error=error)


@given(errors=st.lists(st.floats(0, 10), min_size=1, max_size=60), weight=st.floats(1e-3, 1e3))
def test_with_equal_weights_it_is_the_usual_conformal_quantile(errors: list[float], weight: float) -> None:
    place = math.ceil((len(errors) + 1) * 9 / 10 - 1e-9)  # 9/10 and not 0.9: exact where it is whole
    expected = sorted(errors)[min(place, len(errors)) - 1]
    assert conformal_quantile([(error, weight) for error in errors]) == expected


def test_a_heavy_row_decides() -> None:
    light = [(0.1 * number, 1.0) for number in range(1, 10)]
    assert conformal_quantile(light) == pytest.approx(0.9)
    assert conformal_quantile([*light, (0.35, 1000.0)]) == 0.35


def test_without_errors_it_is_refused() -> None:
    with pytest.raises(ValueError, match="no errors"):
        conformal_quantile([])


def test_nine_of_ten_rows_to_come_are_covered() -> None:
    rng = random.Random(1)
    covered = 0
    for _ in range(2000):
        errors = [(abs(rng.gauss(0, 1)), 1.0) for _ in range(19)]
        covered += abs(rng.gauss(0, 1)) <= conformal_quantile(errors)
    assert 0.88 < covered / 2000 < 0.92


def test_a_device_with_rows_enough_has_classes_of_its_own() -> None:
    own = [off("near", 0.1) for _ in range(20)] + [off("near", 0.2, "launch") for _ in range(3)]
    own += [off("few", 0.5) for _ in range(3)]
    elsewhere = [replace(one, error=2 * one.error) for one in own]
    found = classes_of(own, elsewhere, least=0.03)
    assert [(one.device, one.work, one.rows) for one in found] == [
        ("near", "compute", 20),
        ("near", ANY, 23),
        (ANY, ANY, 26),
    ]
    assert found[0].log_half_width == 0.1
    assert found[-1].log_half_width == 1.0, "the device of three rows weighs as much as that of twenty-three"


@pytest.mark.parametrize("work", ["convolution", "experts"])
def test_what_is_known_less_well_stands_apart(work: str) -> None:
    own = [off("near", 0.1) for _ in range(20)] + [off("near", 2.0, work) for _ in range(5)]
    widths = {(one.device, one.work): one.log_half_width for one in classes_of(own, own, least=0.03)}
    assert widths == {
        ("near", "compute"): 0.1,
        ("near", ANY): 0.1,
        (ANY, work): 2.0,
        (ANY, ANY): 0.1,
    }


def test_no_interval_is_narrower_than_noise() -> None:
    rows = [off("near", 0.001) for _ in range(20)]
    assert {one.log_half_width for one in classes_of(rows, rows, least=0.03)} == {0.03}


def test_what_is_written_is_read_back() -> None:
    rows = [off("near", 0.01 * number, source=f"S{number % 3}") for number in range(30)]
    classes = classes_of(rows, rows, least=0.03)
    found = Uncertainty(launch_share=0.15, communication_share=0.25, time=classes, memory=classes)
    assert parse_uncertainty(write_uncertainty(found)) == found
