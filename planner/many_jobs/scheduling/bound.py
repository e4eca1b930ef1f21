"""What no policy can beat: bounds on the throughput and the completion times of a whole run.

Both stand on one relaxation. Give every device of pool p a price, so that the whole cluster costs 1 a second. A job on
Cell c consumes price_p x devices_c a second while it advances by rate_c, so that all its work W costs at least

    cost = W x min over its Cells of price x devices / rate

and the cluster cannot deliver more than 1 a second. Hence, for any prices,

- the run cannot end before t + the costs of all jobs submitted at t or later, nor before a job's own submission + W
  over its greatest rate; all work over that time bounds the average throughput of a run to its end;
- completion times are no shorter, on average, than those of one server of speed 1 for jobs of these costs under
  shortest remaining processing time first, which is optimal there (Schrage 1968), nor than W over the greatest rate;
- in a time that ends earlier, the work done is bounded by the dual of the linear program of seconds on each Cell.

The prices are searched for; a bound is one whatever they are. Restarts, failures, rounds and whole devices are relaxed.
It holds for policies whose grants lie on one pool and have the counts that are asked about (`counts_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jobs.records import CellBook, Job, Pool
from profiles.records import dataclass

Floats = NDArray[np.float64]
FACTORS = (8.0, 3.0, 1.6, 1.2, 1.05)
"""Steps of the search for prices, coarse to fine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`throughput_mean` from above (the sum of relative rates, averaged over the run), `jct_mean_s` and `makespan_s`
    from below; `prices` a second of a device of each pool, for the throughput and for the completion times."""

    throughput_mean: float
    jct_mean_s: float
    makespan_s: float
    throughput_prices: Mapping[str, float]
    jct_prices: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Of each job that has a Cell: submission (s from the first), seconds on the Cell asked for, greatest rate, and
    `density[j, p]`: the fewest devices of pool p a unit of rate (inf: no Cell there)."""

    submit_s: Floats
    work_s: Floats
    fastest: Floats
    density: Floats
    sizes: Floats


def counts_of(jobs: Sequence[Job], pool: Pool) -> tuple[int, ...]:
    """Return the device counts that policies use on a pool: powers of two, and what a job asked for times powers of
    two."""
    starts = {1} | {job.devices >> k for job in jobs for k in range(job.devices.bit_length())}
    return tuple(sorted({start << k for start in starts for k in range(32) if 0 < start << k <= pool.devices}))


def bound_run(
    jobs: Sequence[Job],
    pools: Mapping[str, Pool],
    cells: CellBook,
    *,
    until_s: float | None = None,
    counts: Callable[[Sequence[Job], Pool], Sequence[int]] = counts_of,
) -> Bounds:
    """Return what no policy can beat on these jobs. With `until_s` (a time of day, seconds) the throughput is averaged
    up to there, and completion times and makespan are bounded as if the run went on. Jobs without any Cell are left
    out. Modelled."""
    work, names = _work(jobs, pools, cells, counts), tuple(pools)
    if not len(work.work_s):
        empty = dict.fromkeys(names, 0.0)
        return Bounds(throughput_mean=0.0, jct_mean_s=0.0, makespan_s=0.0, throughput_prices=empty, jct_prices=empty)
    even = np.full(len(names), 1.0 / work.sizes.sum())
    makespan_s, ending = _searched(lambda prices: _least_makespan_s(work, _scaled(work, prices)), even)
    jct_mean_s, waiting = _searched(lambda prices: _least_jct_s(work, _scaled(work, prices)), ending)
    ending, waiting = _scaled(work, ending), _scaled(work, waiting)
    all_work_s = float(work.work_s.sum())
    throughput = all_work_s / makespan_s if makespan_s > 0 else 0.0
    if until_s is not None:
        span_s = until_s - min(job.submit_s for job in jobs)
        most = -_searched(lambda prices: -_most_work_s(work, prices, span_s), ending * all_work_s / makespan_s)[0]
        throughput = most / span_s if span_s > 0 else 0.0
    return Bounds(
        throughput_mean=throughput,
        jct_mean_s=jct_mean_s,
        makespan_s=makespan_s,
        throughput_prices=dict(zip(names, ending.tolist(), strict=True)),
        jct_prices=dict(zip(names, waiting.tolist(), strict=True)),
    )


def _work(
    jobs: Sequence[Job],
    pools: Mapping[str, Pool],
    cells: CellBook,
    counts: Callable[[Sequence[Job], Pool], Sequence[int]],
) -> _Work:
    asked = {pool.name: counts(jobs, pool) for pool in pools.values()}
    of_kind: dict[object, tuple[float | None, float, list[float]]] = {}
    rows = []
    first_s = min((job.submit_s for job in jobs), default=0.0)
    for job in jobs:
        key = (job.workload, job.pool, job.devices)
        if key not in of_kind:
            of_kind[key] = _cells_of(job, asked, cells)
        own_s, least_s, needed_s = of_kind[key]
        if np.isfinite(least_s):
            asked_s = own_s if own_s is not None else job.duration_s / job.iterations if job.iterations else 1.0
            row = (
                job.submit_s - first_s,
                job.iterations * asked_s,
                asked_s / least_s,
                [seconds / asked_s for seconds in needed_s],
            )
            rows.append(row)
    return _Work(
        submit_s=np.array([row[0] for row in rows]),
        work_s=np.array([row[1] for row in rows]),
        fastest=np.array([row[2] for row in rows]),
        density=np.array([row[3] for row in rows]).reshape(len(rows), len(pools)),
        sizes=np.array([float(pool.devices) for pool in pools.values()]),
    )


def _cells_of(
    job: Job, counts: Mapping[str, Sequence[int]], cells: CellBook
) -> tuple[float | None, float, list[float]]:
    """Seconds an iteration on the Cell asked for and on the fastest, and the fewest device-seconds that one takes on
    each pool."""
    times = [
        [(count, cell.iteration_time_s) for count in some if (cell := cells.best(job.workload, pool, count))]
        for pool, some in counts.items()
    ]
    asked = cells.best(job.workload, job.pool, job.devices)
    least_s = min((time_s for on_pool in times for _, time_s in on_pool), default=np.inf)
    needed_s = [min((count * time_s for count, time_s in on_pool), default=np.inf) for on_pool in times]
    return None if asked is None else asked.iteration_time_s, least_s, needed_s


def _scaled(work: _Work, prices: Floats) -> Floats:
    """So that the whole cluster costs 1."""
    scaled: Floats = prices / float(prices @ work.sizes)
    return scaled


def _cost(work: _Work, prices: Floats) -> Floats:
    """Of a unit of each job's work."""
    with np.errstate(invalid="ignore"):
        priced = np.where(np.isfinite(work.density), work.density * prices, np.inf)
    least: Floats = priced.min(axis=1)
    return least


def _least_makespan_s(work: _Work, prices: Floats) -> float:
    cost_s = _cost(work, prices) * work.work_s
    order = np.argsort(-work.submit_s, kind="stable")
    queued_s = work.submit_s[order] + np.cumsum(cost_s[order])
    return max(float(queued_s.max()), float((work.submit_s + work.work_s / work.fastest).max()))


def _least_jct_s(work: _Work, prices: Floats) -> float:
    """One server, shortest remaining processing time first; or every job alone on its fastest Cell."""
    alone_s = float((work.work_s / work.fastest).mean())
    return max(alone_s, shortest_first_s(work.submit_s.tolist(), (_cost(work, prices) * work.work_s).tolist()))


def shortest_first_s(submit_s: Sequence[float], sizes_s: Sequence[float]) -> float:
    """The mean time in system of jobs of these sizes on one server under shortest remaining processing time first."""
    order = sorted(range(len(submit_s)), key=lambda number: submit_s[number])
    heap: list[float] = []
    now_s, total_s, following = 0.0, 0.0, 0
    while heap or following < len(order):
        if not heap:
            now_s = max(now_s, submit_s[order[following]])
        while following < len(order) and submit_s[order[following]] <= now_s:
            heappush(heap, sizes_s[order[following]])
            following += 1
        left_s = heappop(heap)
        next_s = submit_s[order[following]] if following < len(order) else np.inf
        if now_s + left_s <= next_s:
            now_s += left_s
            total_s += now_s
        else:
            heappush(heap, left_s - (next_s - now_s))
            now_s = next_s
    return (total_s - sum(submit_s)) / len(order)


def _most_work_s(work: _Work, prices: Floats, span_s: float) -> float:
    """The dual of the linear program of seconds on each Cell, up to `span_s`."""
    doable_s = np.minimum(work.work_s, np.maximum(0.0, span_s - work.submit_s) * work.fastest)
    left = np.maximum(0.0, 1.0 - _cost(work, prices))
    return float((doable_s * left).sum() + prices @ work.sizes * span_s)


def _searched(value: Callable[[Floats], float], start: Floats) -> tuple[float, Floats]:
    """The greatest value found by changing one price after the other, or all, and where."""
    best, prices = value(start), start
    ways = [np.eye(len(start))[pool] for pool in range(len(start))] + [np.ones(len(start))]
    for factor in FACTORS:
        for _ in range(4):
            before = best
            for way in ways:
                for power in (1.0, -1.0):
                    tried = prices * factor ** (power * way)
                    reached = value(tried)
                    if reached > best * (1 + 1e-9) + 1e-300 if best >= 0 else reached > best:
                        best, prices = reached, tried
            if best == before:
                break
    return best, prices
