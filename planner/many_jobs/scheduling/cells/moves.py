"""The single-job moves that the search tries, pruned by dominance.

A move takes a running job to another of its Cells. Two moves that free and take the same devices of the same pools in
the same number of steps are of one kind. A choice with at most d moves holds at most d of a kind, so that the best d of
each kind (by gain) suffice: whatever a choice takes beyond them can be replaced by one of them without loss.
"""

from __future__ import annotations

import numpy as np

from planner.many_jobs.scheduling.cells.board import NOTHING, Board, Floats, Integers
from profiles.records import dataclass

STEPS = 10
SIFTINGS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Entry m: job `row[m]` goes to `column[m]` in `cost[m]` single steps and takes `net_by_pool[p, m]` devices more of
    pool p than it had; its value grows by `gain[m]`, and by `reduced[m]` when devices are paid at `prices` (0 or more
    each, chosen to make the search's bound low). Greatest `reduced` first; `top` is that, or 0.

    `serving[p]`: the entries that free devices of pool p, `serving[-1]`: those that gain. `most[p, k]`:
    what k moves free of p at most; `most[-1, k]`: of all pools, less what they take.
    """

    row: Integers
    column: Integers
    cost: Integers
    net_by_pool: Integers
    gain: Floats
    reduced: Floats
    serving: tuple[Integers, ...]
    most: Integers
    prices: Floats
    top: float


def list_moves(board: Board, depth: int, *, shut: frozenset[int] = frozenset()) -> Moves:
    """The best moves of each kind. On `shut` pools none that gives a job more devices than it has."""
    gain, cost, row, column, net = _best_of_kinds(board, depth, shut)
    free = np.array(board.free, dtype=np.int64)
    most = _most(row, net, depth)
    for _ in range(SIFTINGS):
        # What takes more of a pool than is free there and others can free at most is part of no choice.
        there = free + most[:-1, depth - 1] if depth else free
        kept = np.flatnonzero((net <= there).all(axis=1))
        if len(kept) == len(row):
            break
        gain, cost, row, column, net = gain[kept], cost[kept], row[kept], column[kept], net[kept]
        most = _most(row, net, depth)
    prices = _prices(gain, net, free.astype(np.float64), depth)
    reduced = gain - net @ prices
    order = np.lexsort((np.arange(len(gain)), -gain, -reduced))
    net, gain, reduced, row = net[order], gain[order], reduced[order], row[order]
    return Moves(
        row=row,
        column=column[order],
        cost=cost[order],
        net_by_pool=np.ascontiguousarray(net.T),
        gain=gain,
        reduced=reduced,
        serving=(*(np.flatnonzero(taken < 0) for taken in net.T), np.flatnonzero(gain > 0)),
        most=most,
        prices=prices,
        top=max(0.0, float(reduced[0])) if len(reduced) else 0.0,
    )


def _most(rows: Integers, net: Integers, depth: int) -> Integers:
    """What 0, 1, ... `depth` moves of different jobs free at most of each pool, and of all less what they take."""
    freed = np.concatenate((-net, -net.sum(axis=1, keepdims=True)), axis=1)
    best = np.zeros((int(rows.max(initial=-1)) + 1, freed.shape[1]), dtype=np.int64)
    np.maximum.at(best, rows, freed)
    most = np.zeros((freed.shape[1], depth + 1), dtype=np.int64)
    largest = np.sort(best, axis=0)[::-1][:depth].T
    most[:, 1 : 1 + largest.shape[1]] = largest.cumsum(axis=1)
    most[:, 1 + largest.shape[1] :] = most[:, [largest.shape[1]]]
    return most


def _prices(gain: Floats, net: Integers, free: Floats, depth: int) -> Floats:
    """Prices that make the bound on a choice of `depth` moves low: prices * free + depth x the greatest reduced gain,
    a convex function, by a fixed number of subgradient steps (Polyak's, towards half of the least seen)."""
    if not len(gain):
        return np.zeros(len(free))
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(net < 0, np.maximum(0.0, -gain)[:, None] / -net, np.inf).min(axis=0)
    prices: Floats = np.where(np.isfinite(loss), loss, 0.0)
    best, least, taken = prices, np.inf, net.astype(np.float64)
    for _ in range(STEPS):
        reduced = gain - taken @ prices
        worst = int(reduced.argmax())
        bound = float(prices @ free) + depth * max(0.0, float(reduced[worst]))
        if bound < least:
            best, least = prices, bound
        slope = free - depth * taken[worst] if reduced[worst] > 0 else free
        steep = float(slope @ slope)
        if steep == 0 or bound <= 0:
            break
        prices = np.maximum(0.0, prices - (bound - 0.5 * least) / steep * slope)
    return best


def _best_of_kinds(
    board: Board, depth: int, shut: frozenset[int]
) -> tuple[Floats, Integers, Integers, Integers, Integers]:
    """gain, cost, row, column and net devices of each pool of the best `depth` moves of each kind."""
    now = np.array(board.now, dtype=np.int64)
    rows = np.flatnonzero(now != NOTHING)
    current = now[rows]
    value, devices = board.value[rows], board.devices[rows]
    place_of = np.arange(len(rows))
    held = devices[place_of, current][:, None]
    gain = value - value[place_of, current][:, None]
    cost = board.costs[current]
    open_ = np.isfinite(gain) & (cost >= 1) & (cost <= depth)
    if shut:
        open_ &= (devices <= held) | ~np.isin(board.pool_of, list(shut))
    index, column = np.nonzero(open_)
    source, target = board.pool_of[current[index]], board.pool_of[column]
    before, after = held[index, 0], devices[index, column]
    gains, costs = gain[index, column], cost[index, column]
    kind = ((source * len(board.free) + target) << 40) | (before << 20) | after
    order = np.lexsort((-gains, kind))  # equal ones in the order of their rows
    ranked = kind[order]
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = ranked[1:] != ranked[:-1]
    place = np.arange(len(order))
    kept = order[place - np.maximum.accumulate(np.where(starts, place, 0)) < depth]
    net = np.zeros((len(kept), len(board.free)), dtype=np.int64)
    place = np.arange(len(kept))
    net[place, source[kept]] -= before[kept]
    net[place, target[kept]] += after[kept]
    return gains[kept], costs[kept], rows[index][kept], column[kept], net
