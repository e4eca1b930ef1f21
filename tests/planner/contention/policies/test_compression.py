"""Crux's section 4.3: levels that cut most of the contention DAG, beside every cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from random import Random

import pytest

from planner.contention.policies.compression.algorithm_1 import algorithm_1_levels, best_cut, draw_order, levels_of
from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.compression.dag import ContentionDag, cut_weight, is_valid
from planner.contention.policies.compression.exact import exact_levels
from tests.oracles.contention_oracle import best_cut_weight

INTENSITIES = (5.0, 3.0, 3.0, 2.0, 1.0, 1.0)
SIX_JOBS = ContentionDag(
    count=6,
    edges=tuple((u, v, INTENSITIES[u]) for u, v in ((0, 1), (0, 3), (0, 4), (1, 2), (1, 4), (2, 4), (2, 5), (3, 5))),
)
"""Of which no breadth-first order has the best cut."""


def random_dag(rng: Random, count: int, density: float) -> ContentionDag:
    weights = sorted((rng.uniform(0.0, 10.0) for _ in range(count)), reverse=True)
    edges = [(u, v, weights[u]) for u in range(count) for v in range(u + 1, count) if rng.random() < density]
    return ContentionDag(count=count, edges=tuple(edges))


@pytest.mark.parametrize("seed", range(300))
def test_the_programme_finds_what_trying_all_finds(seed: int) -> None:
    rng = Random(seed)
    dag, levels = random_dag(rng, rng.randint(1, 7), rng.uniform(0.1, 1.0)), rng.randint(1, 4)
    chosen = exact_levels(dag, levels)
    assert is_valid(dag, chosen, levels)
    assert cut_weight(dag, chosen) == pytest.approx(best_cut_weight(dag.count, dag.edges, levels))


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("seed", range(40))
def test_all_compressions_are_valid_and_none_cuts_more(name: str, seed: int) -> None:
    rng = Random(seed)
    dag, levels = random_dag(rng, rng.randint(1, 30), rng.uniform(0.05, 0.8)), rng.randint(1, 8)
    chosen = COMPRESSIONS[name](dag, levels)
    assert len(chosen) == dag.count
    assert is_valid(dag, chosen, levels)
    assert cut_weight(dag, chosen) <= cut_weight(dag, exact_levels(dag, levels)) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("seed", range(60))
def test_the_best_cut_of_an_order_is_that_of_trying_all(seed: int) -> None:
    rng = Random(seed)
    dag, levels = random_dag(rng, rng.randint(1, 7), rng.uniform(0.1, 1.0)), rng.randint(1, 4)
    order = draw_order(dag, rng)
    assert sorted(order) == list(range(dag.count))
    weight, begins = best_cut(dag, order, levels)
    chosen = levels_of(order, begins)
    assert is_valid(dag, chosen, levels)
    assert cut_weight(dag, chosen) == pytest.approx(weight)
    place = {job: rank for rank, job in enumerate(order)}
    chain = tuple((order[i], order[i + 1], 0.0) for i in range(len(order) - 1))
    moved = [(place[u], place[v], w) for u, v, w in (*dag.edges, *chain)]
    assert weight == pytest.approx(best_cut_weight(dag.count, moved, levels))


def first_in_first_out(dag: ContentionDag) -> Iterator[list[int]]:
    """Every order that a queue can give, whatever is drawn."""

    def go_on(queue: list[int], done: list[int], waits: dict[int, int]) -> Iterator[list[int]]:
        if not queue:
            yield done
            return
        job, after = queue[0], dict(waits)
        ready = []
        for u, v, _ in dag.edges:
            if u == job:
                after[v] -= 1
                ready += [v] if after[v] == 0 else []
        for drawn in permutations(ready):
            yield from go_on([*queue[1:], *drawn], [*done, job], after)

    waits = {job: sum(v == job for _, v, _ in dag.edges) for job in range(dag.count)}
    for drawn in permutations([job for job in waits if waits[job] == 0]):
        yield from go_on(list(drawn), [], waits)


def test_six_jobs_of_which_no_breadth_first_order_has_the_best_cut() -> None:
    assert max(best_cut(SIX_JOBS, order, 2)[0] for order in first_in_first_out(SIX_JOBS)) == 16.0
    assert cut_weight(SIX_JOBS, algorithm_1_levels(SIX_JOBS, 2, orders=100)) == 16.0
    assert cut_weight(SIX_JOBS, exact_levels(SIX_JOBS, 2)) == 19.0
    assert exact_levels(SIX_JOBS, 2) == (0, 0, 0, 1, 1, 1)


def test_figure_13() -> None:
    pairs = ContentionDag(count=4, edges=((0, 1, 4.0), (2, 3, 2.0)))
    assert {name: compress(pairs, 2) for name, compress in COMPRESSIONS.items()} == {
        "algorithm-1": (0, 1, 0, 1),
        "equal-parts": (0, 0, 1, 1),
        "exact": (0, 1, 0, 1),
        "first-alone": (0, 1, 1, 1),
    }


def test_a_dag_that_goes_backwards_is_none() -> None:
    with pytest.raises(ValueError, match="edge 2 -> 1"):
        ContentionDag(count=3, edges=((2, 1, 1.0),))
