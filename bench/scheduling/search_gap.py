"""How far the Cell search's choices are from the best of all, and how long they take.

    python -m bench.scheduling.search_gap [--boards 30] [--jobs 250] [--depth 3] [--seed 0]

Boards are drawn: jobs of 1 to 32 devices that run on what they asked for, on four pools with few devices left, rates
growing with devices by Amdahl's law, each off by up to 20%; one more job is to be placed. The choice of each beam is
set beside that of a search without a beam where that is proved to be the best, or else beside the best found (its
share is printed). The first table has boards so small that every sequence of moves is tried one after the other.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Sequence

import numpy as np

from bench.scheduling.exhaustive_gain import best_gain
from estimator.host.cpu import cpu_name
from planner.many_jobs.scheduling.cells.board import NOTHING, Board
from planner.many_jobs.scheduling.cells.search import BEAM, Search
from planner.many_jobs.scheduling.cells.tables import CRIUS_LEVELS, CellTables

POOLS = 4
SPEEDS = (1.0, 0.6, 0.4, 0.5)
WIDEST = 3000


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.scheduling.search_gap", description=__doc__)
    parser.add_argument("--boards", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=250)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()}")
    print(f"depth {options.depth}, {options.boards} boards from seed {options.seed}\n")
    print("| jobs | beam | mean gap | greatest gap | proved | CPU a choice | beside |")
    print("| --: | --: | --: | --: | --: | --: | :-- |")
    small = [draw_board(options.seed + number, 4) for number in range(options.boards)]
    every = [best_gain(board, CRIUS_LEVELS, len(board.now) - 1, options.depth) or 0.0 for board in small]
    for beam in (4, 16, BEAM):
        print_row(small, every, beam, options.depth, "every sequence of moves")
    large = [draw_board(options.seed + number, options.jobs) for number in range(options.boards)]
    best, proved = [], 0
    for board in large:
        choice = Search(board, depth=options.depth, beam=WIDEST).best(len(board.now) - 1)
        best.append(choice.gain if choice else 0.0)
        proved += choice is None or choice.proved
    beside = f"a beam of {WIDEST}, proved the best on {proved} of {len(large)}"
    for beam in (8, 16, 32, BEAM, 2 * BEAM, 4 * BEAM):
        print_row(large, best, beam, options.depth, beside)
    return 0


def print_row(boards: Sequence[Board], best: Sequence[float], beam: int, depth: int, beside: str) -> None:
    """One beam over all boards."""
    gaps, proved, began_s = [], 0, time.process_time()
    for board, gain in zip(boards, best, strict=True):
        choice = Search(board, depth=depth, beam=beam).best(len(board.now) - 1)
        found = choice.gain if choice else 0.0
        gaps.append(1 - found / gain if gain > 0 else 0.0)
        proved += choice is None or choice.proved
    spent_ms = (time.process_time() - began_s) / len(boards) * 1e3
    jobs = len(boards[0].now) - 1
    share = f"{np.mean(gaps):.2%} | {max(gaps):.1%} | {proved} of {len(boards)}"
    print(f"| {jobs} | {beam} | {share} | {spent_ms:.1f} ms | {beside} |")


def draw_board(seed: int, jobs: int) -> Board:
    """So many running jobs and one that is to be placed."""
    rng = np.random.default_rng(seed)
    tables = CellTables(CRIUS_LEVELS)
    tables.set_pools([f"pool{number}" for number in range(POOLS)])
    count, levels = jobs + 1, len(CRIUS_LEVELS)
    asked = 2 ** rng.integers(0, 6, count)
    devices = (asked[:, None] * 2 ** np.tile(np.arange(levels), POOLS)[None, :]) // 2
    parallel = rng.uniform(0.5, 0.99, (count, 1))
    rate = np.repeat(SPEEDS, levels) / (1 - parallel + parallel / np.maximum(devices, 1))
    columns = rng.integers(0, POOLS, count) * levels + levels // 2
    row = np.arange(count)
    value = rate / rate[row, columns][:, None] * rng.uniform(0.8, 1.2, rate.shape) * 0.96
    value[(devices == 0) | (rng.random(value.shape) < 0.1)] = -np.inf
    value[row, columns] = 1.0
    now = columns.tolist()
    now[-1] = NOTHING
    return Board(
        ids=tuple(map(str, range(count))),
        value=value,
        devices=devices,
        pool_of=tables.pool_of,
        costs=tables.costs(),
        asked=columns.tolist(),
        real=list(now),
        now=now,
        free=rng.integers(0, 8, POOLS).tolist(),
        held=jobs,
    )


if __name__ == "__main__":
    raise SystemExit(main())
