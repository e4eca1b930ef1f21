"""The search over Cells against every sequence of moves, and its certificate."""

from __future__ import annotations

import numpy as np
import pytest

from bench.scheduling.exhaustive_gain import best_gain
from planner.many_jobs.scheduling.cells.board import NOTHING, Board
from planner.many_jobs.scheduling.cells.search import Search, take
from planner.many_jobs.scheduling.cells.tables import CellTables
from tests.seeds import seeds

LEVELS = (-1, 0, 1)


def random_board(seed: int, jobs: int) -> Board:
    """Jobs of random sizes and values, most with devices, on two or three pools that are nearly full."""
    rng = np.random.default_rng(seed)
    pools = int(rng.integers(2, 4))
    tables = CellTables(LEVELS)
    tables.set_pools([f"pool{index}" for index in range(pools)])
    asked_devices = 2 ** rng.integers(0, 4, jobs)
    devices = np.array(
        [[count * 2**level // 1 for _ in range(pools) for level in (0, 1, 2)] for count in asked_devices]
    )
    devices = devices // 2
    value = rng.random((jobs, pools * 3)) * np.sqrt(np.maximum(devices, 1)) * rng.choice([0.3, 1, 5], (jobs, 1))
    value[(devices == 0) | (rng.random(value.shape) < 0.15)] = -np.inf
    own = rng.integers(0, pools, jobs)
    asked = [int(pool) * 3 + 1 for pool in own]
    now = []
    for row in range(jobs):
        there = [column for column in range(pools * 3) if np.isfinite(value[row, column])]
        now.append(int(rng.choice(there)) if there and row < jobs - 1 else NOTHING)
    return Board(
        ids=tuple(map(str, range(jobs))),
        value=value,
        devices=devices,
        pool_of=tables.pool_of,
        costs=tables.costs(),
        asked=asked,
        real=list(now),
        now=now,
        free=[int(count) for count in rng.integers(0, 5, pools)],
        held=jobs - 1,
    )


@pytest.mark.parametrize("shut", [frozenset(), frozenset({0}), frozenset({0, 1, 2})])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_the_choice_is_the_best_of_all_sequences(depth: int, shut: frozenset[int]) -> None:
    found_some = 0
    for seed in range(40 if depth == 3 else 120):
        jobs = 2 + seed % (4 if depth == 3 else 6)
        board = random_board(seed, jobs)
        for row in (jobs - 1, None):
            choice = Search(board, depth=depth, beam=10**9).best(row, shut=shut)
            expected = best_gain(board, LEVELS, row, depth, shut)
            assert (choice is None) == (expected is None)
            if choice is not None and expected is not None:
                assert choice.gain == pytest.approx(expected, rel=1e-9)
                assert choice.proved
                found_some += 1
    assert found_some > (0 if depth == 0 else 20)


def test_a_choice_gains_what_it_says_and_fits() -> None:
    for seed in seeds(100):
        board = random_board(seed, 12)
        choice = Search(board, depth=3).best(11)
        if choice is None:
            continue
        before = board.total()
        take(board, choice)
        assert board.total() - before == pytest.approx(choice.gain)
        assert min(board.free) >= 0


def test_a_limited_search_is_never_better_and_says_that_it_was_limited() -> None:
    limited_ones = 0
    for seed in seeds(60):
        board = random_board(seed, 9)
        full = Search(board, depth=3, beam=10**9).best(8)
        short = Search(board, depth=3, beam=2).best(8)
        if short is not None:
            assert full is not None
            assert short.gain <= full.gain + 1e-9
            limited_ones += not short.proved
            assert not short.proved or short.gain == pytest.approx(full.gain)
    assert limited_ones > 0


def test_more_depth_is_never_worse() -> None:
    for seed in seeds(60):
        board = random_board(seed, 6)
        gains = [
            choice.gain if choice else 0.0
            for depth in range(4)
            if (choice := Search(board, depth=depth).best(5)) or True
        ]
        assert gains == sorted(gains)
