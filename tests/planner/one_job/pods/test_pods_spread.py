"""The exact placement: equal to enumeration, its bound below everything, never worse than the paper's."""

from __future__ import annotations

import random

import pytest

from planner.one_job.pods.consolidation import place_by_arnold
from planner.one_job.pods.counting import is_refuted
from planner.one_job.pods.families import FamilySearch, OutOfSteps
from planner.one_job.pods.least_spread import place_by_spread, turned
from planner.one_job.pods.pairs import is_refuted_by_pairs
from planner.one_job.pods.records import Placement, PodRequest, Spreads, spreads_of
from planner.one_job.pods.stacks import chosen_stack, greedy_stack, widths_of
from profiles.vocabulary import Infeasible
from tests.oracles.spread_oracle import least_spread
from tests.seeds import seeds

ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)


def _placed(request: PodRequest) -> Placement:
    placement = place_by_spread(request)
    assert isinstance(placement, Placement), placement
    return placement


def _small(rng: random.Random, most_cells: int) -> PodRequest:
    while True:
        rows, columns = rng.randint(1, 5), rng.randint(1, 5)
        pods = rng.randint(1, 4)
        room = tuple(rng.randint(0, max(1, 2 * rows * columns // pods)) for _ in range(pods))
        if rows * columns <= most_cells and sum(room) >= rows * columns:
            return PodRequest(rows=rows, columns=columns, free=room, alpha=rng.choice((*ALPHAS, rng.random())))


def test_it_equals_enumeration_and_proves_it() -> None:
    for seed in seeds(800):
        request = _small(random.Random(seed), most_cells=8)
        placement = _placed(request)
        least = least_spread(request.rows, request.columns, request.room, request.alpha)
        assert placement.value == pytest.approx(least), request
        assert placement.proof == "optimal", request


def test_mixed_placements_are_found_which_equation_4_cannot_see() -> None:
    request = PodRequest(rows=46, columns=8, free=(96, 96, 96, 96), alpha=0.5)
    placement = _placed(request)
    assert placement.spreads == Spreads(dp=2, pp=2)
    assert (placement.value, placement.proof) == (2.0, "optimal")
    paper = place_by_arnold(request)
    assert isinstance(paper, Placement)
    assert (paper.spreads, paper.value) == (Spreads(dp=4, pp=1), 2.5)


def test_columns_may_be_what_stays_whole() -> None:
    request = PodRequest(rows=46, columns=8, free=(92, 92, 92, 92, 92), alpha=1.0)
    assert _placed(request).spreads == Spreads(dp=1, pp=4)


def _drawn(rng: random.Random, rows: int, columns: int, pods: int) -> PodRequest:
    while True:
        free = tuple(rng.randint(20, 130) for _ in range(pods))
        if sum(free) >= rows * columns:
            return PodRequest(rows=rows, columns=columns, free=free, alpha=rng.choice(ALPHAS))


@pytest.mark.parametrize("size", [(6, 2, 3), (12, 8, 5), (46, 8, 11), (64, 8, 11)])
def test_at_the_papers_sizes_its_certificate_holds_and_it_is_never_worse(size: tuple[int, int, int]) -> None:
    rng, proved = random.Random(5), 0
    for _ in range(12):
        request = _drawn(rng, *size)
        placement = _placed(request)
        assert placement.bound is not None
        assert placement.bound <= placement.value + 1e-9
        proved += placement.proof == "optimal"
        for other in (place_by_arnold(request), place_by_arnold(turned(request))):
            assert isinstance(other, Placement)
            assert other.value >= placement.value - 1e-9
    assert proved >= 10


def test_names_of_pods_change_nothing() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        request = _drawn(rng, 24, 8, 6)
        order = rng.sample(range(6), 6)
        renamed = PodRequest(rows=24, columns=8, free=tuple(request.free[pod] for pod in order), alpha=request.alpha)
        assert _placed(renamed).value == _placed(request).value
        assert _placed(request) == _placed(request)


def test_rows_and_columns_may_change_places() -> None:
    for seed in range(30):
        request = _small(random.Random(seed), most_cells=12)
        assert _placed(turned(request)).value == pytest.approx(_placed(request).value)


def test_more_free_nodes_are_never_worse() -> None:
    for seed in range(30):
        request = _small(random.Random(seed), most_cells=12)
        more = PodRequest(
            rows=request.rows,
            columns=request.columns,
            free=tuple(nodes + 1 for nodes in request.free),
            alpha=request.alpha,
        )
        assert _placed(more).value <= _placed(request).value + 1e-9


def test_counting_refutes_nothing_that_exists() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        request = _drawn(rng, 24, 8, 7)
        for groups in range(1, 7):
            cells = greedy_stack(request.room, 24, 8, groups)
            if cells is not None:
                spreads = spreads_of(cells)
                assert not is_refuted(request.room, 24, 8, spreads.dp, spreads.pp)


def test_counting_refutes_what_does_not_fit() -> None:
    assert is_refuted((96, 96, 96), 46, 8, 2, 2)
    assert not is_refuted((96, 96, 96, 96), 46, 8, 2, 2)
    assert is_refuted((46,) * 8, 46, 8, 3, 2)


def test_stacks_share_pods_out_as_no_greedy_does() -> None:
    assert list(widths_of(5, 2)) == [(3, 2), (4, 1)]
    room = (9, 6, 5, 4)
    cells = chosen_stack(room, 6, 4, 2, 2)
    assert cells is None or spreads_of(cells).pp <= 2
    assert chosen_stack((4, 4), 2, 2, 1, 3) is None


def test_the_exact_search_ends_after_its_steps() -> None:
    with pytest.raises(OutOfSteps):
        FamilySearch(3).place((10, 10, 10, 10), 6, 5, 2, 2)
    cells = FamilySearch(100_000).place((2, 9, 2, 2), 3, 5, 3, 4)
    assert cells is not None
    assert spreads_of(cells).dp <= 3


def test_too_few_nodes_are_a_value() -> None:
    assert isinstance(place_by_spread(PodRequest(rows=2, columns=2, free=(3,), alpha=0.5)), Infeasible)


def test_cells_of_several_nodes_count_whole_ones() -> None:
    request = PodRequest(rows=2, columns=2, free=(5, 5), alpha=0.5, nodes_a_cell=2)
    assert _placed(request).taken == (2, 2)


def test_the_count_of_pairs_refutes_nothing_that_the_exact_search_finds() -> None:
    refuted = sharper = 0
    for seed in seeds(160, least=40):
        rng = random.Random(seed)
        rows, columns, most = rng.randint(2, 7), rng.randint(2, 4), rng.randint(1, 3)
        mean = rows * columns / (2 * most)
        room = tuple(max(1, round(rng.gauss(1.05 * mean, 0.35 * mean))) for _ in range(rng.randint(3, 6)))
        if sum(room) < rows * columns or not is_refuted_by_pairs(room, columns, rows, most):
            continue
        refuted += 1
        sharper += not is_refuted(tuple(sorted(room, reverse=True)), rows, columns, 2, most)
        assert FamilySearch(200_000).place(room, rows, columns, 2, most) is None
    assert refuted > sharper > 0


@pytest.mark.parametrize(
    ("room", "lines", "length", "most"),
    [
        ((69, 53, 50, 49, 44, 41, 41, 35, 34, 25, 22), 8, 46, 4),
        ((82, 71, 65, 52, 51, 48, 41, 40, 39, 33, 17), 46, 8, 3),
        ((115, 100, 88, 63, 61, 58, 57, 56, 42, 35, 33), 8, 46, 2),
    ],
)
def test_the_count_of_pairs_settles_what_counting_leaves_open(
    room: tuple[int, ...], lines: int, length: int, most: int
) -> None:
    assert not is_refuted(room, length, lines, 2, most)
    assert is_refuted_by_pairs(room, lines, length, most)
    assert not is_refuted_by_pairs((2 * lines * length,) * 4, lines, length, most)
