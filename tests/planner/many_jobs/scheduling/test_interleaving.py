"""Rounds of jobs that take turns, beside every order of their slots."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Use
from planner.many_jobs.scheduling.interleaving import (
    best_phases,
    efficiency,
    fit_together,
    interleaved_s,
    round_s,
)
from tests.oracles.turns_oracle import muri_round_s, shortest_round_s
from tests.seeds import seeds


def draw_use(rng: Random, *, hides: bool = True) -> Use:
    compute_s = rng.choice((0.0, rng.uniform(0, 1), rng.uniform(0, 5)))
    hidden_s = rng.uniform(0, compute_s) if hides and rng.random() < 0.5 else 0.0
    return Use(iteration_s=compute_s + rng.uniform(0.01, 2), compute_s=compute_s, hidden_s=hidden_s)


def test_a_round_is_the_shortest_of_all() -> None:
    for seed in seeds(400):
        rng = Random(seed)
        uses = [draw_use(rng) for _ in range(rng.randrange(2, 6))]
        best = shortest_round_s(uses)
        assert interleaved_s(uses) == pytest.approx(best)
        assert round_s(uses, best_phases(uses)) == pytest.approx(best)


def test_two_jobs_take_what_muri_says() -> None:
    """Its formula is of jobs that hide nothing, and no more of them than resources."""
    for seed in seeds(400):
        rng = Random(seed)
        uses = [draw_use(rng, hides=False) for _ in range(2)]
        assert interleaved_s(uses) == pytest.approx(muri_round_s([(use.compute_s, use.rest_s) for use in uses]))


def test_the_example_of_two_halves() -> None:
    """Two jobs that compute half of the time hide each other wholly, and use all there is."""
    half = Use(iteration_s=2.0, compute_s=1.0)
    assert interleaved_s([half, half]) == 2.0
    assert efficiency([half, half]) == 1.0
    assert efficiency([half]) == 0.5


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_what_holds_of_every_round(seed: int, count: int) -> None:
    rng = Random(seed)
    uses = [draw_use(rng) for _ in range(count)]
    takes_s = interleaved_s(uses)
    assert sum(use.compute_s for use in uses) <= takes_s * (1 + 1e-9)
    assert takes_s <= sum(use.iteration_s for use in uses) * (1 + 1e-9)
    assert takes_s >= max(use.iteration_s for use in uses) * (1 - 1e-9)
    assert 0 < efficiency(uses) <= 1 + 1e-9
    assert interleaved_s(uses[::-1]) == pytest.approx(takes_s)
    if count > 1:
        assert interleaved_s(uses[1:]) <= takes_s * (1 + 1e-9)


def test_memory_of_all_has_to_be_there_at_once() -> None:
    uses = [Use(iteration_s=1.0, compute_s=0.5, memory_bytes=size, device_memory_bytes=10) for size in (4, 6, 1)]
    assert fit_together(uses[:2])
    assert not fit_together(uses)


@pytest.mark.parametrize(("iteration_s", "compute_s", "hidden_s"), [(1.0, 2.0, 0.0), (1.0, 0.5, 0.6), (0.0, 0.0, 0.0)])
def test_no_use_that_cannot_be(iteration_s: float, compute_s: float, hidden_s: float) -> None:
    with pytest.raises(ValueError, match="iteration of"):
        Use(iteration_s=iteration_s, compute_s=compute_s, hidden_s=hidden_s)
