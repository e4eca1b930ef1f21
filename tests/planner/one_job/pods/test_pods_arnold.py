"""Arnold's placement: the closed form against HiGHS, whole nodes, and what is open in the printed program."""

from __future__ import annotations

import random

import pytest

from planner.one_job.pods.consolidation import closed_form, place_by_arnold
from planner.one_job.pods.program import solve_program, whole_nodes
from planner.one_job.pods.records import Placement, PodRequest, Spreads, spreads_of
from profiles.errors import InputError
from profiles.vocabulary import Infeasible
from tests.seeds import seeds

ALPHAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def _placed(request: PodRequest) -> Placement:
    placement = place_by_arnold(request)
    assert isinstance(placement, Placement), placement
    return placement


def _drawn(rng: random.Random) -> PodRequest:
    while True:
        request = PodRequest(
            rows=rng.randint(1, 6),
            columns=rng.randint(1, 4),
            free=tuple(rng.randint(0, 12) for _ in range(rng.randint(1, 5))),
            alpha=rng.choice((*ALPHAS, rng.random())),
            nodes_a_cell=rng.choice((1, 1, 2)),
        )
        if request.shortage() is None:
            return request


def test_the_closed_form_equals_highs_on_hundreds_of_instances() -> None:
    held = 0
    for seed in seeds(400):
        request = _drawn(random.Random(seed))
        layout = closed_form(request)
        program = solve_program(request)
        if layout is not None:
            held += 1
            assert layout.objective(request) == pytest.approx(program.objective(request), abs=1e-9), request
    assert held > 0.95 * len(seeds(400))


def test_where_a_needed_pod_holds_less_than_a_unit_highs_decides() -> None:
    request = PodRequest(rows=2, columns=6, free=(6, 2, 2, 2), alpha=0.5)
    assert closed_form(request) is None
    placement = _placed(request)
    assert placement.objective == request.value(4, 3)


def test_hundreds_of_drawn_clusters_keep_the_lower_bound_of_the_proof() -> None:
    rng = random.Random(3)
    for _ in range(300):
        free = tuple(rng.randint(20, 130) for _ in range(rng.randint(3, 12)))
        request = PodRequest(rows=rng.randint(2, 46), columns=8, free=free, alpha=rng.random())
        if request.shortage() is not None:
            continue
        layout = closed_form(request)
        assert layout is not None
        most = sorted(request.free, reverse=True)
        least_split = next(n for n in range(1, 99) if sum(most[:n]) >= request.cells)
        whole = [n for n in range(1, len(most) + 1) if sum(c // 8 for c in most[:n]) >= request.rows]
        values = [request.value(least_split, 2), *(request.value(n, 1) for n in whole[:1])]
        assert layout.objective(request) == pytest.approx(min(values))


def test_a_whole_solution_exists_for_every_fraction() -> None:
    # Fractions are drawn first, so that they fit; whole cells must then fit the same pods.
    rng = random.Random(7)
    for _ in range(200):
        units, columns, pods = rng.randint(1, 7), rng.randint(1, 6), rng.randint(1, 5)
        chosen = [sorted(rng.sample(range(pods), rng.randint(1, pods))) for _ in range(units)]
        load = [0.0] * pods
        for selected in chosen:
            weights = [rng.random() + 0.01 for _ in selected]
            for pod, weight in zip(selected, weights, strict=True):
                load[pod] += columns * weight / sum(weights)
        free = tuple(int(-(-part // 1)) for part in load)
        request = PodRequest(rows=units, columns=columns, free=free, alpha=0.5)
        cells = whole_nodes(request, chosen)
        assert all(set(row) <= set(selected) for row, selected in zip(cells, chosen, strict=True))
        placed = Placement(method="whole", request=request, cells=cells)
        assert sum(placed.taken) == units * columns


def test_a_unit_gives_way_through_others() -> None:
    request = PodRequest(rows=3, columns=2, free=(2, 2, 2), alpha=0.5)
    assert whole_nodes(request, [(0, 1), (1, 2), (0,)]) == ((1, 1), (2, 2), (0, 0))
    with pytest.raises(ValueError, match="do not hold"):
        whole_nodes(request, [(0, 1), (0, 1), (0,)])


def test_equation_3_never_counts_one_pod_and_equation_4_does() -> None:
    request = PodRequest(rows=2, columns=2, free=(2, 2), alpha=0.3)
    placement = _placed(request)
    assert placement.spreads == Spreads(dp=2, pp=1)
    assert placement.spreads.as_printed() == Spreads(dp=2, pp=0)
    assert placement.value == pytest.approx(0.3 * 2 + 0.7)
    assert placement.value_as_printed == pytest.approx(0.3 * 2)


def test_alpha_weighs_columns_which_are_dp_groups() -> None:
    tall = ((0, 0), (1, 1), (2, 2))
    request = PodRequest(rows=3, columns=2, free=(2, 2, 2), alpha=1.0)
    assert spreads_of(tall) == Spreads(dp=3, pp=1)
    assert Placement(method="by hand", request=request, cells=tall).value == 3.0


def test_the_pods_of_a_job_are_not_the_spread_of_a_dp_group_where_a_unit_is_split() -> None:
    request = PodRequest(rows=2, columns=4, free=(3, 3, 2), alpha=0.5)
    placement = _placed(request)
    assert placement.objective is not None
    assert placement.objective > placement.value


def test_ties_are_broken_by_the_other_term_then_by_most_left_whole() -> None:
    free = (10, 9, 9, 4)
    at_0 = _placed(PodRequest(rows=4, columns=4, free=free, alpha=0.0))
    assert at_0.spreads == Spreads(dp=2, pp=1)
    at_1 = _placed(PodRequest(rows=4, columns=4, free=free, alpha=1.0))
    assert at_1.spreads == Spreads(dp=2, pp=1)
    split = _placed(PodRequest(rows=7, columns=4, free=(11, 11, 11), alpha=1.0))
    assert split.spreads.pp == 2
    assert sum(len(set(row)) > 1 for row in split.cells) == 1
    spare = _placed(PodRequest(rows=5, columns=4, free=(10, 7, 4), alpha=1.0))
    assert sum(len(set(row)) > 1 for row in spare.cells) == 1


def test_too_few_nodes_say_how_many_are_missing() -> None:
    short = place_by_arnold(PodRequest(rows=3, columns=2, free=(3, 3), alpha=0.5, nodes_a_cell=2))
    assert isinstance(short, Infeasible)
    assert short.lacking == "devices"
    assert "8 too few" in short.reason


@pytest.mark.parametrize(
    "wrong",
    [{"alpha": 1.1}, {"alpha": -0.1}, {"rows": 0}, {"free": ()}, {"free": (3, -1)}, {"leaves": ((1, 1), (2,))}],
)
def test_wrong_requests_are_named(wrong: dict[str, object]) -> None:
    stated: dict[str, object] = {"rows": 1, "columns": 1, "free": (2, 3), "alpha": 0.5}
    with pytest.raises(InputError, match="pods"):
        PodRequest(**{**stated, **wrong})  # type: ignore[arg-type]


def test_degenerate_clusters() -> None:
    assert _placed(PodRequest(rows=3, columns=2, free=(6,), alpha=0.3)).value == pytest.approx(1.0)
    ones = _placed(PodRequest(rows=2, columns=2, free=(1, 1, 1, 1), alpha=0.5))
    assert ones.spreads == Spreads(dp=2, pp=2)
    assert _placed(PodRequest(rows=2, columns=2, free=(0, 4, 0), alpha=0.5)).taken == (0, 4, 0)
