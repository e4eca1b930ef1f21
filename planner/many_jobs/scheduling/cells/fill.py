"""An allocation at prices: every job the Cell it would buy, as far as devices last, then the best single changes."""

from __future__ import annotations

import numpy as np

from planner.many_jobs.scheduling.cells.board import NOTHING, Board, Floats


def buy(board: Board, prices: Floats) -> None:
    """Let every job buy, starting from nothing: the greatest surplus per price first, the best Cell that still fits."""
    reduced = board.value - board.devices * prices[board.pool_of]
    for row, column in enumerate(board.now):
        if column != NOTHING:
            board.put(row, NOTHING)
    best = reduced.argmax(axis=1)
    place = np.arange(len(best))
    surplus = reduced[place, best]
    buying = np.flatnonzero(surplus > 0)
    paid = np.maximum(board.value[buying, best[buying]] - surplus[buying], 1e-12 * surplus[buying])
    for row in buying[np.lexsort((buying, -surplus[buying] / paid))].tolist():
        column = int(best[row])
        if board.devices[row, column] > board.free[int(board.pool_of[column])]:
            fits = board.devices[row] <= np.array(board.free)[board.pool_of]
            left = np.where(fits, reduced[row], -np.inf)
            column = int(left.argmax())
            if not left[column] > 0:
                continue
        board.put(row, column)


def improve(board: Board, prices: Floats, *, most: int) -> int:
    """Make up to `most` times the single change of a job that fits and gains most, devices that it takes and gives back
    counted at their prices; return how many were made. The value grows with each."""
    jobs = len(board.now)
    if not jobs:
        return 0
    priced = board.devices * prices[board.pool_of]
    place = np.arange(jobs)
    now = np.array(board.now)
    value = np.where(now >= 0, board.value[place, now], 0.0)
    held = np.where(now >= 0, board.devices[place, now], 0)
    pool = np.where(now >= 0, board.pool_of[now], -1)
    bought = np.where(now >= 0, priced[place, now], 0.0)
    for done in range(most):
        free = np.array(board.free)
        room = free[board.pool_of][None, :] + np.where(pool[:, None] == board.pool_of[None, :], held[:, None], 0)
        gain = board.value - value[:, None]
        open_ = (board.devices <= room) & (gain > 1e-12 * (1.0 + np.abs(value[:, None])))
        score = np.where(open_, gain - (priced - bought[:, None]), -np.inf)
        flat = int(score.argmax())
        row, column = divmod(flat, score.shape[1])
        if not np.isfinite(score[row, column]):
            return done
        board.put(row, column)
        value[row], held[row] = board.value[row, column], board.devices[row, column]
        pool[row], bought[row] = board.pool_of[column], priced[row, column]
    return most
