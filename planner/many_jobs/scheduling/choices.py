"""At most one option for each job, at the least cost, within the devices of each pool.

    minimise    sum over jobs j of  cost[j, c(j)]  or  idle[j]
    subject to  sum of count[c(j)] over the jobs with pool[c(j)] = p  <=  capacity[p]

A multiple-choice knapsack with one capacity for each pool; what Pollux and Sia solve in every round. Prices on devices
(Lagrange multipliers of the few capacities) give a lower bound and a choice near the optimum. What the prices prove to
be in no better choice than the best one found is left out, and HiGHS solves the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from profiles.records import dataclass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What there is to choose from. `cost[j, c]`: infinity where the job cannot take the option. Of each option:
    `pool[c]`, an index into `capacity`, and `count[c]` devices."""

    cost: Floats
    idle: Floats
    pool: Ints
    count: Ints
    capacity: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Each job's option, -1 for none; what it costs in all, and what no choice can be cheaper than."""

    chosen: Ints
    value: float
    bound: float


def choose(options: Options, *, gap: float = 5e-3, steps: int = 60, most_exact: int = 800) -> Choice:
    """Return a choice whose value is within `gap` (relative) of the bound, or the best that was met.

    HiGHS is called where the gap is larger and at most `most_exact` (job, option) pairs remain, with at most 200 nodes
    of branching unless `gap` is 0: then the choice is optimal. Work: steps x jobs x options.
    """
    if options.idle.size == 0:
        return Choice(chosen=np.zeros(0, np.int64), value=0.0, bound=0.0)
    prices, bound, chosen = _prices(options, steps, gap)
    value = _value(options, chosen)
    if value - bound > gap * abs(value) + 1e-12 * (1.0 + abs(value)):
        reduced = options.cost + (prices[options.pool] * options.count)[None, :]
        least = np.minimum(reduced.min(axis=1), options.idle)
        kept = np.argwhere(reduced - least[:, None] <= value - bound + 1e-9 * (1.0 + abs(value)))
        if 0 < len(kept) <= most_exact or (gap == 0 and len(kept)):
            chosen, bound = _exact(options, kept, chosen, value, bound, gap)
            value = _value(options, chosen)
    return Choice(chosen=chosen, value=value, bound=min(bound, value))


def _value(options: Options, chosen: Ints) -> float:
    taken = np.flatnonzero(chosen >= 0)
    return float(options.idle[chosen < 0].sum() + options.cost[taken, chosen[taken]].sum())


def _prices(options: Options, steps: int, gap: float) -> tuple[Floats, float, Ints]:
    """Prices a device of each pool that give the largest lower bound found; the bound; and a choice that keeps within
    the capacities. Subgradient steps of Polyak's length (Held, Wolfe and Crowder, Math. Programming 1974)."""
    jobs = np.arange(options.idle.size)
    prices = np.zeros(options.capacity.size)
    best_prices, bound = prices, -np.inf
    feasible, value = np.full(jobs.size, -1, np.int64), float(options.idle.sum())
    scale, stale = 1.0, 0
    for step in range(steps):
        reduced = options.cost + (prices[options.pool] * options.count)[None, :]
        picks = reduced.argmin(axis=1)
        least = reduced[jobs, picks]
        taken = least < options.idle
        here = float(np.minimum(least, options.idle).sum() - prices @ options.capacity)
        used = np.bincount(
            options.pool[picks[taken]], weights=options.count[picks[taken]], minlength=options.capacity.size
        )
        if here > bound:
            bound, best_prices, stale = here, prices, 0
        else:
            stale += 1
            if stale >= 4:
                scale, stale, prices = scale / 2, 0, best_prices
        over = float((used / np.maximum(options.capacity, 1)).max())
        if step % 20 == 0 or (over <= 1.1 and (here >= bound or step % 5 == 4)):
            tried = _improved(options, _within(options, reduced, picks, taken))
            worth = _value(options, tried)
            if worth < value:
                feasible, value = tried, worth
        slope = used - options.capacity
        slope[(prices == 0) & (slope < 0)] = 0.0
        length = float(slope @ slope)
        if length == 0 or value - bound <= gap * abs(value) + 1e-12 * (1.0 + abs(value)):
            break
        prices = np.maximum(0.0, prices + scale * max(value - here, 1e-12) / length * slope)
    if value - bound <= gap * abs(value):
        return best_prices, bound, feasible
    reduced = options.cost + (best_prices[options.pool] * options.count)[None, :]
    picks = reduced.argmin(axis=1)
    tried = _improved(options, _within(options, reduced, picks, reduced[jobs, picks] < options.idle))
    return best_prices, bound, tried if _value(options, tried) < value else feasible


def _within(options: Options, reduced: Floats, picks: Ints, taken: NDArray[np.bool_]) -> Ints:
    """A choice within the capacities: the picks at these prices, then, while a pool has too few devices, the changes of
    one job each that cost least, at these prices, for each device that they free there."""
    chosen = np.where(taken, picks, -1)
    priced = np.column_stack([reduced, options.idle])
    pool = np.append(options.pool, -1)
    count = np.append(options.count, 0)
    left = options.capacity - np.bincount(
        options.pool[chosen[taken]], weights=options.count[chosen[taken]], minlength=options.capacity.size
    ).astype(np.int64)
    while (left < 0).any():
        short = int(left.argmin())
        jobs = np.flatnonzero((chosen >= 0) & (pool[chosen] == short))
        now = chosen[jobs]
        freed = count[now][:, None] - np.where(pool == short, count, 0)[None, :]
        fits = (pool < 0) | (pool == short) | (count <= left[pool])
        change = priced[jobs] - priced[jobs, now][:, None]
        useful = np.minimum(freed, -left[short])
        rate = np.where((freed > 0) & fits[None, :], change / np.maximum(useful, 1), np.inf)
        best = rate.argmin(axis=1)
        for row in np.argsort(rate[np.arange(jobs.size), best], kind="stable"):
            pick = best[row]
            target = pool[pick]
            if left[short] >= 0 or (target not in (-1, short) and count[pick] > left[target]):
                break
            left[short] += count[now[row]]
            chosen[jobs[row]] = pick if target >= 0 else -1
            if target >= 0:
                left[target] -= count[pick]
    return chosen


def _improved(options: Options, chosen: Ints, passes: int = 3) -> Ints:
    """Change one job's option at a time while it fits and costs less, largest saving a device first."""
    chosen = chosen.copy()
    held = np.where(chosen >= 0, options.count[chosen], 0)
    left = options.capacity - np.bincount(
        options.pool[chosen[chosen >= 0]], weights=held[chosen >= 0], minlength=options.capacity.size
    ).astype(np.int64)
    jobs = np.arange(chosen.size)
    for _ in range(passes):
        now = np.where(chosen >= 0, options.cost[jobs, chosen], options.idle)
        same = options.pool[None, :] == np.where(chosen >= 0, options.pool[chosen], -1)[:, None]
        held = np.where(chosen >= 0, options.count[chosen], 0)
        more = options.count[None, :] - same * held[:, None]
        gain = np.where(more <= left[options.pool][None, :], now[:, None] - options.cost, -np.inf)
        best = gain.argmax(axis=1)
        gains = gain[jobs, best]
        rates = gains / np.maximum(1, more[jobs, best])
        changed = False
        better = np.flatnonzero(gains > 1e-12 * (1.0 + np.abs(now)))
        for job in better[np.argsort(-rates[better], kind="stable")]:
            pick, old = best[job], chosen[job]
            if old >= 0:
                left[options.pool[old]] += options.count[old]
            if options.count[pick] <= left[options.pool[pick]]:
                chosen[job], changed = pick, True
                left[options.pool[pick]] -= options.count[pick]
            elif old >= 0:
                left[options.pool[old]] -= options.count[old]
        if not changed:
            break
    return chosen


def _exact(options: Options, kept: Ints, chosen: Ints, value: float, bound: float, gap: float) -> tuple[Ints, float]:
    """The best choice among the kept (job, option) pairs by HiGHS, if it is better; and the bound, then proved."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    number = np.arange(len(kept))
    jobs, picks = kept[:, 0], kept[:, 1]
    rows, compact = np.unique(jobs, return_inverse=True)
    pools = options.capacity.size
    matrix = coo_array(
        (
            np.concatenate([np.ones(len(kept)), options.count[picks].astype(float)]),
            (np.concatenate([compact, rows.size + options.pool[picks]]), np.concatenate([number, number])),
        ),
        shape=(rows.size + pools, len(kept)),
    ).tocsr()
    limits = np.concatenate([np.ones(rows.size), options.capacity.astype(float)])
    solver = {"mip_rel_gap": 0.0} if gap == 0 else {"mip_rel_gap": gap, "node_limit": 200}
    solved = milp(
        options.cost[jobs, picks] - options.idle[jobs],
        constraints=LinearConstraint(matrix, ub=limits),
        integrality=np.ones(len(kept)),
        bounds=Bounds(0, 1),
        options=solver,
    )
    if solved.x is None:
        return chosen, bound
    exact = np.full(chosen.size, -1, np.int64)
    used = np.flatnonzero(solved.x > 0.5)
    exact[jobs[used]] = picks[used]
    if solved.mip_dual_bound is not None:
        bound = max(bound, min(value, float(solved.mip_dual_bound + options.idle.sum())))
    return (exact if _value(options, exact) < value else chosen), bound
