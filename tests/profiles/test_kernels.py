"""Measured times on grids: written and read back whole, exact at their points, never falling between them."""

from __future__ import annotations

import gzip
from itertools import product
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.kernels import KernelGrid, KernelTable, kernel_grid, load_kernels, read_kernels, write_kernels

AXES = {"m": (1.0, 64.0, 256.0), "n": (32.0, 128.0), "k": (32.0, 64.0, 4096.0)}
SECONDS = {point: 1e-6 * (1 + point[0] * point[1] * point[2] / 1e4) for point in product(*AXES.values())}
ABOUT = {"source": "made up", "licence": "none", "measured m": "64 256", "measured n": "32 128", "measured k": "32 64"}


def made_up() -> KernelGrid:
    grid = written().grid("bf16", "fast")
    assert grid is not None
    return grid


def written() -> KernelTable:
    data = write_kernels(ABOUT, ("dtype", "mode"), AXES, {("bf16", "fast"): SECONDS, ("fp8", "slow"): SECONDS})
    return read_kernels(gzip.decompress(data).decode().splitlines())


def test_a_file_comes_back_whole() -> None:
    table = written()
    assert table.about == ABOUT
    assert table.grid("bf16", "slow") is None
    assert set(table.rows) == {("bf16", "fast"), ("fp8", "slow")}
    for point, seconds in SECONDS.items():
        assert made_up().seconds(*point) == pytest.approx(seconds, rel=1e-3)


def test_between_points_it_is_straight_in_logarithms_and_beyond_in_proportion() -> None:
    grid = made_up()
    middle = grid.seconds(128, 32, 32)
    assert middle == pytest.approx((grid.seconds(64, 32, 32) * grid.seconds(256, 32, 32)) ** 0.5, rel=1e-9)
    assert grid.seconds(512, 32, 32) == pytest.approx(2 * grid.seconds(256, 32, 32), rel=1e-9)
    assert grid.seconds(64, 1, 32) == pytest.approx(grid.seconds(64, 32, 32), rel=1e-9)
    assert grid.seconds(64, 100, 50, carried=lambda *_: 0.5) == pytest.approx(grid.seconds(64, 100, 50) / 2, rel=1e-9)


def test_it_says_between_which_sizes_anything_was_measured() -> None:
    assert made_up().covers(64, 128, 40)
    assert not made_up().covers(1, 128, 40)
    assert not made_up().covers(64, 128, 4096)


@given(sizes=st.tuples(*[st.floats(1, 1e5)] * 3), more=st.tuples(*[st.floats(1, 10)] * 3))
def test_larger_sizes_never_take_less(sizes: tuple[float, ...], more: tuple[float, ...]) -> None:
    larger = (size * factor for size, factor in zip(sizes, more, strict=True))
    assert made_up().seconds(*sizes) <= made_up().seconds(*larger) * (1 + 1e-12)


def test_what_is_not_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="3 times for axes of"):
        KernelGrid(log_points=((0.0, 1.0), (0.0, 1.0)), log_seconds=(0.0,) * 3, measured=((1, 2), (1, 2)))
    with pytest.raises(ValueError, match="ascend"):
        KernelGrid(log_points=((log(2), log(1)),), log_seconds=(0.0,) * 2, measured=((1, 2),))


def test_devices_without_tables_have_none() -> None:
    assert load_kernels("product", "no such device") is None
    assert kernel_grid("product", "", "bf16") is None
