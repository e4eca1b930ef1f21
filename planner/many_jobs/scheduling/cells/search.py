"""Crius' ScaleResource and BestPerf (Algorithm 1, lines 16-18): the best choice of at most d single-job moves.

A choice places one job (or none) and moves it and running jobs between their Cells in at most d single steps: one step
doubles or halves a job's devices, or takes it to another pool with as many. A job starts from the Cell that it asked
for. Only the last state of a choice must fit the cluster.

The search goes move by move, all partial choices of one length at once. Where a pool lacks devices, some later move
must free devices of it, and those come next; where none lacks, some later move must gain, and those come next; of equal
sets in several orders only one is kept. With the best d moves of each kind (`planner.many_jobs.scheduling.cells.moves`)
nothing is lost by that. A partial choice is left when even with the prices' worth of the devices left over, and the
best move for every step left, it cannot beat the best choice so far; that bound holds for any prices of 0 or more. Of
what remains the `beam` most promising go on; where that cut any, the choice is not `proved` to be the best.
"""

from __future__ import annotations

import numpy as np

from planner.many_jobs.scheduling.cells.board import Board, Floats, Integers
from planner.many_jobs.scheduling.cells.moves import Moves, list_moves
from profiles.records import dataclass

BEAM = 64
STEP_SHARE = 0.3
"""What a step left is taken to be worth, as a share of the best move, when partial choices are ranked. Of 0, 0.3 and 1
the one with the least gap to the best choice on 30 boards of 250 jobs (5%, 1% and 6%)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The new columns of some rows, what value they gain, and whether no choice is better (`proved`)."""

    gain: float
    columns: tuple[tuple[int, int], ...]
    proved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partial:
    """Choices not yet complete, one an entry: devices free (pools, choices), value gained, steps left, `start` (the new
    job's column), `taken` (indices of moves, -1 where none yet), `after[:, k]`: the last move taken for reason k (a
    pool that lacked devices, or the last: to gain)."""

    free: Integers
    gain: Floats
    left: Integers
    start: Integers
    taken: Integers
    after: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Longer:
    """Partial choices, each one of `before` (by `index`) with one more `move` as number `step` of them; `step` -1: with
    none. Devices `free` by pool (pools, choices), as pools are few."""

    before: _Partial
    step: int
    index: Integers
    move: Integers
    reason: Integers
    left: Integers
    gain: Floats
    free: Integers

    def made(self, chosen: Integers) -> _Partial:
        """Those of the numbers, each with all its moves: most are never asked for these."""
        index, move = self.index[chosen], self.move[chosen]
        taken, after = self.before.taken[index], self.before.after[index]
        if self.step >= 0:
            taken[:, self.step] = move
            after[np.arange(len(index)), self.reason[index]] = move
        return _Partial(
            free=self.free.take(chosen, axis=1),
            gain=self.gain[chosen],
            left=self.left[chosen],
            start=self.before.start[index],
            taken=taken,
            after=after,
        )


class Search:
    """The search over one board; it lists the moves anew when the board has changed."""

    def __init__(self, board: Board, *, depth: int, beam: int = BEAM) -> None:
        self.board, self.depth, self.beam = board, depth, beam
        self._listed: dict[frozenset[int], tuple[int, Moves]] = {}

    def best(self, row: int | None, *, shut: frozenset[int] = frozenset()) -> Choice | None:
        """The best choice that places job `row` (None: that only moves running jobs). None where there is none, or none
        that gains. On `shut` pools no running job gets more devices than it has."""
        moves = self.moves(shut)
        longer = _begun(self._starts(row, moves))
        gain, cut = 0.0, False
        best_choice: tuple[int, list[int]] | None = None
        for step in range(self.depth + 1):
            (whole,) = ((longer.gain > gain) & (longer.free.min(axis=0) >= 0)).nonzero()
            if len(whole):
                best = whole[[longer.gain[whole].argmax()]]
                gain = float(longer.gain[best[0]])
                choice = longer.made(best)
                best_choice = int(choice.start[0]), choice.taken[0].tolist()
            if step == self.depth or not len(moves.gain):
                break
            bound = longer.gain + longer.free.T @ moves.prices + longer.left * moves.top
            (going,) = ((longer.left > 0) & (bound > gain)).nonzero()
            if len(going) > self.beam:
                cut = True
                promise = bound - (1 - STEP_SHARE) * moves.top * longer.left
                going = going[np.argsort(-promise[going], kind="stable")[: self.beam]]
            if not len(going):
                break
            longer = _extended(longer.made(going), moves, step, gain)
        if best_choice is None:
            return None
        start, taken = best_choice
        placed = () if row is None else ((row, start),)
        columns = placed + tuple((int(moves.row[move]), int(moves.column[move])) for move in taken if move >= 0)
        return Choice(gain=gain, columns=columns, proved=not cut)

    def moves(self, shut: frozenset[int] = frozenset()) -> Moves:
        """The moves of the board as it is."""
        held = self._listed.get(shut)
        if held is None or held[0] != self.board.version:
            held = self._listed[shut] = (self.board.version, list_moves(self.board, self.depth, shut=shut))
        return held[1]

    def can_place(self, row: int, *, shut: frozenset[int] = frozenset()) -> bool:
        """Whether some Cell of the job could have enough devices, as far as a quick count tells: never False where
        `best` finds a choice."""
        moves, board = self.moves(shut), self.board
        left = self.depth - board.costs[board.asked[row]]
        usable = (left >= 0) & (board.value[row] >= 0)
        left = np.maximum(left, 0)
        there = np.array(board.free)[board.pool_of] + moves.most[board.pool_of, left]
        there = np.minimum(there, sum(board.free) + moves.most[-1, left])
        return bool((usable & (board.devices[row] <= there)).any())

    def _starts(self, row: int | None, moves: Moves) -> _Partial:
        """Nothing moved yet; the new job on each of its Cells."""
        board, depth = self.board, self.depth
        free = np.array(board.free, dtype=np.int64)
        if row is None:
            columns, left = np.array([-1]), np.array([depth])
            free, gain = free[:, None], np.zeros(1)
        else:
            left = depth - board.costs[board.asked[row]]
            (columns,) = ((left >= 0) & (board.value[row] >= 0)).nonzero()
            left, pool = left[columns], board.pool_of[columns]
            free = np.repeat(free[:, None], len(columns), axis=1)
            free[pool, np.arange(len(columns))] -= board.devices[row, columns]
            (reached,) = (free[pool, np.arange(len(columns))] + moves.most[pool, left] >= 0).nonzero()
            columns, left, free = columns[reached], left[reached], free.take(reached, axis=1)
            gain = board.value[row, columns]
        count = len(columns)
        return _Partial(
            free=free,
            gain=gain,
            left=left,
            start=columns,
            taken=np.full((count, max(depth, 1)), -1),
            after=np.full((count, len(board.free) + 1), -1),
        )


def take(board: Board, choice: Choice) -> None:
    """Allocate a choice virtually (Algorithm 1, VIRTUALALLOC)."""
    for row, column in choice.columns:
        board.put(row, column)


def _begun(partial: _Partial) -> _Longer:
    nothing = np.zeros(0, dtype=np.int64)
    return _Longer(
        before=partial,
        step=-1,
        index=np.arange(len(partial.gain)),
        move=np.full(len(partial.gain), -1),
        reason=nothing,
        left=partial.left,
        gain=partial.gain,
        free=partial.free,
    )


def _extended(partial: _Partial, moves: Moves, step: int, least: float) -> _Longer:
    """Every partial choice with every move that may come next, as far as it may still gain more than `least`."""
    lacks = partial.free < 0
    reason = np.where(lacks.any(axis=0), lacks.argmax(axis=0), len(partial.free))
    # What a next move's reduced gain must exceed.
    needed = least - partial.gain - partial.free.T @ moves.prices - (partial.left - 1) * moves.top
    (reasons,) = np.bincount(reason).nonzero()
    blocks = [_pairs(partial, moves, step, needed, why, (reason == why).nonzero()[0]) for why in reasons.tolist()]
    index, move = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    left = partial.left.take(index) - moves.cost.take(move)
    gain = partial.gain.take(index) + moves.gain.take(move)
    # What has no step left is worth a look as a whole choice alone.
    (worth,) = ((left > 0) | (gain > least)).nonzero()
    index, move, left, gain = index.take(worth), move.take(worth), left.take(worth), gain.take(worth)
    free = partial.free.take(index, axis=1) - moves.net_by_pool.take(move, axis=1)
    # What moves still free at most has to make up for what lacks.
    lacking = -moves.most
    enough = free >= lacking[:-1].take(left, axis=1)
    (possible,) = (np.logical_and.reduce(enough) & (free.sum(axis=0) >= lacking[-1].take(left))).nonzero()
    return _Longer(
        before=partial,
        step=step,
        index=index.take(possible),
        move=move.take(possible),
        reason=reason,
        left=left.take(possible),
        gain=gain.take(possible),
        free=free.take(possible, axis=1),
    )


def _pairs(
    partial: _Partial, moves: Moves, step: int, needed: Floats, why: int, partials: Integers
) -> tuple[Integers, Integers]:
    """Partial choice and move of all that may follow the partial choices `own` for the reason `why`."""
    serving = moves.serving[why]
    serving = serving[: np.searchsorted(-moves.reduced[serving], -needed[partials].min(), side="left")]
    open_ = moves.reduced.take(serving) > needed.take(partials)[:, None]
    open_ &= moves.cost.take(serving) <= partial.left.take(partials)[:, None]
    open_ &= serving > partial.after[partials, why][:, None]
    row = moves.row.take(serving)
    for earlier in range(step):
        open_ &= row != moves.row.take(partial.taken[partials, earlier], mode="wrap")[:, None]
    index, move = open_.nonzero()
    return partials.take(index), serving.take(move)
