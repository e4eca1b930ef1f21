"""The other methods, each by its rule; one interface for all; nodes for ranks."""

from __future__ import annotations

from random import Random

import pytest

from planner.one_job.pods.bisection import place_by_bisection
from planner.one_job.pods.methods import METHODS, RULES, place_into_pods
from planner.one_job.pods.records import Placement, PodRequest, Spreads
from planner.one_job.pods.seating import in_megatrons_order, seat
from profiles.errors import InputError
from profiles.vocabulary import Infeasible
from tests.oracles.spread_oracle import least_spread

REQUEST = PodRequest(rows=3, columns=2, free=(4, 2, 3, 0), alpha=0.5)


def _placed(method: str, request: PodRequest = REQUEST, **options: object) -> Placement:
    placement = place_into_pods(method, request, **options)  # type: ignore[arg-type]
    assert isinstance(placement, Placement), placement
    return placement


@pytest.mark.parametrize(
    ("method", "taken", "line"),
    [
        ("best-fit", (1, 2, 3, 0), [1, 1, 2, 2, 2, 0]),
        ("gpu-packing", (4, 2, 0, 0), [0, 0, 0, 0, 1, 1]),
        ("slurm", (4, 2, 0, 0), [0, 0, 0, 0, 1, 1]),
        ("kueue", (4, 2, 0, 0), [0, 0, 0, 0, 1, 1]),
        ("cluster-order", (4, 2, 0, 0), [0, 0, 0, 0, 1, 1]),
    ],
)
def test_each_rule_hands_out_nodes_as_it_says(method: str, taken: tuple[int, ...], line: list[int]) -> None:
    by_rows = _placed(method)
    assert by_rows.taken == taken
    assert [pod for row in by_rows.cells for pod in row] == line
    by_columns = _placed(method, order="megatron")
    assert [pod for column in zip(*by_columns.cells, strict=True) for pod in column] == line
    assert by_rows.bound is None
    assert by_rows.proof == "none"


def test_packing_numbers_ranks_as_taken_and_slurm_by_name() -> None:
    request = PodRequest(rows=4, columns=2, free=(2, 6, 3), alpha=0.5)
    assert list(_placed("gpu-packing", request).cells) == [(1, 1), (1, 1), (1, 1), (0, 0)]
    assert list(_placed("slurm", request).cells) == [(0, 0), (1, 1), (1, 1), (1, 1)]


def test_random_fit_is_by_seed_and_uses_every_pod() -> None:
    request = PodRequest(rows=20, columns=4, free=(50, 50, 50), alpha=0.5)
    first, again, other = (_placed("random-fit", request, rng=Random(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert min(first.taken) > 10


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("order", ["rows", "megatron"])
def test_every_method_places_what_fits_and_nothing_else(method: str, order: str) -> None:
    assert isinstance(place_into_pods(method, PodRequest(rows=9, columns=9, free=(80,), alpha=0.2)), Infeasible)
    for seed in range(12):
        rng = Random(seed)
        rows, columns = rng.randint(1, 3), rng.randint(1, 3)
        free = tuple(rng.randint(0, 6) for _ in range(3))
        request = PodRequest(rows=rows, columns=columns, free=free, alpha=rng.random())
        placement = place_into_pods(method, request, order=order, rng=rng)  # type: ignore[arg-type]
        if request.shortage() is not None:
            assert isinstance(placement, Infeasible)
            continue
        assert isinstance(placement, Placement)
        assert sum(placement.taken) == rows * columns
        least = least_spread(rows, columns, free, request.alpha)
        assert least is not None
        if method in ("enumeration", "spread"):
            assert placement.value == pytest.approx(least)
            assert placement.proof == "optimal"
        assert placement.value >= least - 1e-9


def test_ours_is_never_worse_than_any_of_them() -> None:
    for seed in range(40):
        rng = Random(seed)
        free = tuple(rng.randint(10, 90) for _ in range(rng.randint(2, 9)))
        request = PodRequest(rows=rng.randint(1, 24), columns=rng.randint(1, 8), free=free, alpha=rng.random())
        if request.shortage() is not None:
            continue
        ours = _placed("spread", request).value
        for method in (*RULES, "topo-aware", "arnold"):
            for order in ("rows", "megatron"):
                assert _placed(method, request, order=order, rng=rng).value >= ours - 1e-9


def test_bisection_keeps_rows_together_where_pp_weighs_all() -> None:
    by_pp = place_by_bisection(PodRequest(rows=8, columns=4, free=(16, 16), alpha=0.0))
    by_dp = place_by_bisection(PodRequest(rows=8, columns=4, free=(16, 16), alpha=1.0), "megatron")
    assert isinstance(by_pp, Placement)
    assert isinstance(by_dp, Placement)
    assert by_pp.spreads == Spreads(dp=2, pp=1)
    assert by_dp.spreads == Spreads(dp=1, pp=2)


def test_unknown_methods_and_hopeless_enumerations_are_refused() -> None:
    with pytest.raises(InputError, match="one of spread, arnold"):
        place_into_pods("magic", REQUEST)
    with pytest.raises(InputError, match="enumeration"):
        place_into_pods("enumeration", PodRequest(rows=12, columns=8, free=(60, 60), alpha=0.5))


def test_ranks_sit_on_consecutive_nodes_of_their_pod() -> None:
    request = PodRequest(rows=2, columns=2, free=(3, 6), alpha=0.0, nodes_a_cell=2)
    placement = _placed("cluster-order", request)
    seats = seat(placement, [["a0", "a1", "a2"], ["b0", "b1", "b2", "b3", "b4", "b5"]])
    assert sorted(node for row in seats for cell in row for node in cell) == [
        *("a0", "a1"),
        *("b0", "b1", "b2", "b3", "b4", "b5"),
    ]
    hosts = in_megatrons_order(seats)
    assert hosts[:4] == (*seats[0][0], *seats[1][0])
    with pytest.raises(ValueError, match="free nodes"):
        seat(placement, [["a0"], []])
