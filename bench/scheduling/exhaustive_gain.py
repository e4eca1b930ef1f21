"""Every sequence of at most d single-job moves, one after the other, and the best state that fits the cluster."""

from __future__ import annotations

from planner.many_jobs.scheduling.cells.board import NOTHING, Board


def best_gain(
    board: Board, levels: tuple[int, ...], row: int | None, depth: int, shut: frozenset[int] = frozenset()
) -> float | None:
    """The greatest gain of value over all sequences; None where none fits and gains. Steps are taken by level and
    pool here, not by the board's table of costs; a step may pass through a Cell that does not exist."""
    width, pools = len(levels), len(board.free)
    start = list(board.now)
    if row is not None:
        start[row] = board.asked[row]
    seen, layer = {tuple(start)}, [tuple(start)]
    best: float | None = None
    for step in range(depth + 1):
        for state in layer:
            gain = _gain(board, state, row, shut)
            if gain is not None and gain > 0 and (best is None or gain > best):
                best = gain
        if step == depth:
            break
        following = []
        for state in layer:
            for job, column in enumerate(state):
                if column == NOTHING:
                    continue
                pool, level = divmod(column, width)
                places = [(pool, level + 1), (pool, level - 1), *((other, level) for other in range(pools))]
                for at_pool, at_level in places:
                    if 0 <= at_level < width:
                        new = (*state[:job], at_pool * width + at_level, *state[job + 1 :])
                        if new not in seen:
                            seen.add(new)
                            following.append(new)
        layer = following
    return best


def _gain(board: Board, state: tuple[int, ...], row: int | None, shut: frozenset[int]) -> float | None:
    used = [0] * len(board.free)
    gain = 0.0
    for job, (before, after) in enumerate(zip(board.now, state, strict=True)):
        if before != NOTHING:
            used[int(board.pool_of[before])] -= int(board.devices[job, before])
        if after == NOTHING:
            continue
        if after != before and not board.value[job, after] > float("-inf"):
            return None
        grows = job != row and board.devices[job, after] > board.devices[job, before]
        if grows and int(board.pool_of[after]) in shut:
            return None
        used[int(board.pool_of[after])] += int(board.devices[job, after])
        gain += float(board.value[job, after]) - (0.0 if before == NOTHING else float(board.value[job, before]))
    fits = all(take <= free for take, free in zip(used, board.free, strict=True))
    return gain if fits else None
