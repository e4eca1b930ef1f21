"""The alpha-beta fit, tables made of samples, and the two ways to read a table."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.communication.fit import fit_alpha_beta, make_table
from estimator.communication.tables import METHODS, Method, alpha_beta, bus_factor, interpolate
from profiles.vocabulary import LinkTable
from tests.seeds import seeds

SIZES = tuple(4096 * 4**step for step in range(9))


def squared_error(points: list[tuple[int, float]], alpha: float, beta: float) -> float:
    return sum(((alpha + beta * size - seconds) / seconds) ** 2 for size, seconds in points)


def table_of(points: dict[int, float]) -> LinkTable:
    samples = {size: [seconds] for size, seconds in points.items()}
    return make_table(link="wire", op="all_reduce", ranks=2, nodes=1, samples=samples, source="test")


@given(alpha=st.floats(1e-7, 1e-3), beta=st.floats(1e-12, 1e-8))
def test_fit_finds_an_exact_line(alpha: float, beta: float) -> None:
    found_alpha, found_beta, error = fit_alpha_beta([(size, alpha + beta * size) for size in SIZES])
    assert error < 1e-6
    assert found_alpha + found_beta * SIZES[0] == pytest.approx(alpha + beta * SIZES[0], rel=1e-5)
    assert found_beta * SIZES[-1] + found_alpha == pytest.approx(beta * SIZES[-1] + alpha, rel=1e-5)


@pytest.mark.parametrize("seed", seeds(30))
def test_fit_beats_every_point_of_a_grid(seed: int) -> None:
    rng = random.Random(seed)
    alpha, beta = 10 ** rng.uniform(-6, -3), 10 ** rng.uniform(-11, -9)
    # Every third case falls with size or has no latency, so that an edge of the quadrant is the optimum.
    slope = (1.0, -0.3, 0.0)[seed % 3]
    points = [
        (size, (alpha * (seed % 3 < 2) + beta * size if slope >= 0 else alpha * size**slope) * rng.uniform(0.8, 1.2))
        for size in SIZES
    ]
    found_alpha, found_beta, error = fit_alpha_beta(points)
    assert found_alpha >= 0
    assert found_beta >= 0
    best = squared_error(points, found_alpha, found_beta)
    top_alpha = max(seconds for _, seconds in points)
    top_beta = max(seconds / size for size, seconds in points)
    steps = [0.0, *(10 ** (power / 8) for power in range(-56, 1))]
    grid = min(squared_error(points, top_alpha * a, top_beta * b) for a in steps for b in steps)
    assert best <= grid * (1 + 1e-9)
    line = [abs(found_alpha + found_beta * size - seconds) / seconds for size, seconds in points]
    assert error == pytest.approx(sum(line) / len(line))


def test_fit_counts_small_and_large_sizes_alike() -> None:
    """One size of 10 that is 20% slow must not move the line more at one end than at the other."""
    line = [(size, 1e-5 + 1e-9 * size) for size in SIZES]
    for slow in (0, len(line) - 1):
        points = [(size, seconds * (1.2 if i == slow else 1)) for i, (size, seconds) in enumerate(line)]
        assert fit_alpha_beta(points)[2] < 0.06


def test_a_single_size_gives_bandwidth_alone() -> None:
    assert fit_alpha_beta([(1000, 1e-6), (1000, 1e-6)]) == pytest.approx((0.0, 1e-9, 0.0))


@pytest.mark.parametrize("points", [[], [(0, 1e-6)], [(10, 0.0)], [(10, float("nan"))], [(10, float("inf"))]])
def test_fit_refuses_what_has_no_relative_error(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="positive bytes and seconds"):
        fit_alpha_beta(points)


def test_table_takes_minima_and_never_falls_with_size() -> None:
    table = make_table(
        link="wire",
        op="all_gather",
        ranks=4,
        nodes=2,
        samples={100: [9e-6, 5e-6, 7e-6], 400: [4e-6, 8e-6], 1600: [2e-5]},
        source="test",
        provenance="modelled",
    )
    assert table.points == ((100, 4e-6), (400, 4e-6), (1600, 2e-5))
    assert (table.link, table.op, table.ranks, table.nodes, table.provenance) == (
        "wire",
        "all_gather",
        4,
        2,
        "modelled",
    )
    assert (table.alpha_s, table.beta_s_per_byte, table.fit_error) == fit_alpha_beta(table.points)
    with pytest.raises(ValueError, match="without samples"):
        make_table(link="wire", op="all_gather", ranks=4, nodes=2, samples={100: []}, source="test")


rising = st.dictionaries(st.integers(1, 2**34), st.floats(1e-6, 10), min_size=1, max_size=12)


@given(
    points=rising, sizes=st.lists(st.integers(1, 2**40), min_size=2, max_size=8), method=st.sampled_from(list(METHODS))
)
def test_methods_are_positive_and_never_fall(points: dict[int, float], sizes: list[int], method: Method) -> None:
    table = table_of(points)
    times = [METHODS[method](table, size) for size in sorted(sizes)]
    assert times[0] > 0
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(times))


@given(points=st.dictionaries(st.integers(2, 17).map(lambda power: 4**power), st.floats(1e-6, 10), min_size=1))
def test_interpolation_is_exact_at_points_and_continuous(points: dict[int, float]) -> None:
    table = table_of(points)
    for size, seconds in table.points:
        assert interpolate(table, size) == seconds
        for beside in (size * (1 - 1e-9), size * (1 + 1e-9)):
            assert interpolate(table, beside) == pytest.approx(seconds, rel=1e-5)


def test_interpolation_by_hand() -> None:
    table = table_of({100: 1e-5, 10_000: 1e-3, 40_000: 2e-3})
    assert interpolate(table, 1000) == pytest.approx(1e-4)  # halfway in log-log between the first two
    assert interpolate(table, 20_000) == pytest.approx(2**0.5 * 1e-3)
    for size, end in ((10, 100), (4_000_000, 40_000)):
        ratio = alpha_beta(table, size) / alpha_beta(table, end)
        assert interpolate(table, size) == pytest.approx(interpolate(table, end) * ratio)
    assert alpha_beta(table, 12345) == table.alpha_s + table.beta_s_per_byte * 12345


def test_interpolation_is_nearer_than_the_line_where_the_curve_bends() -> None:
    """The reason for keeping the table: a protocol switch at 1 MiB that no single line can follow."""

    def truth(size: float) -> float:
        return max(5e-6 + size / 2e9, 9e-5 + size / 2e10)

    table = table_of({size: truth(size) for size in SIZES})
    between = [size * 2 for size in SIZES[:-1]]
    errors = {
        name: sum(abs(method(table, size) - truth(size)) / truth(size) for size in between) / len(between)
        for name, method in METHODS.items()
    }
    assert errors["interpolate"] < 0.1 < errors["alpha-beta"]


def test_bus_factors_of_nccl_tests() -> None:
    assert [bus_factor("all_reduce", n) for n in (2, 4, 8)] == [1.0, 1.5, 1.75]
    assert [bus_factor("all_to_all", n) for n in (2, 4, 8)] == [0.5, 0.75, 0.875]
    assert bus_factor("send_recv", 2) == 1.0
