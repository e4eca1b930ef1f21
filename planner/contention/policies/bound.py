"""Work that no paths, levels or offsets can pass: what links carry, and what jobs do alone (a linear programme).

Iterations a second x_j of each job, and bytes a second y of each connection on each of its paths, which may be split
freely. A connection's paths carry x_j times its bytes; a link carries no more than it can; no job is faster than alone.
Any schedule has such x and y in the mean over a long time, so that none does more work than the programme's best.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from planner.contention.policies.compression.solving import linear_programmes
from planner.contention.policies.loads import bytes_by_connection
from planner.contention.policies.records import Path, View


def bound_flops_per_s(view: View) -> float:
    """Return the bound, FLOP/s of all jobs. Raise ArithmeticError where the solver fails, InputError without scipy."""
    linprog, csr_array = linear_programmes()
    jobs = len(view.jobs)
    if jobs == 0:
        return 0.0
    connections = [
        (job, paths, size)
        for job, contender in enumerate(view.jobs)
        for paths, size in _connections(view, job)
        if size > 0
    ]
    entries: list[tuple[int, int, float]] = []
    equal: list[tuple[int, int, float]] = []
    columns = jobs
    rows: dict[int, int] = {}
    for number, (job, paths, size) in enumerate(connections):
        # In units of what the job sends alone, so that all figures are near 1.
        equal.append((number, job, -1.0))
        for path in paths:
            equal.append((number, columns, 1.0))
            for link, share in path:
                carried = size / view.jobs[job].alone_s * share
                entries.append((rows.setdefault(link, len(rows)), columns, carried))
            columns += 1
    rates = np.array([view.bytes_per_s[link] for link in rows])
    scale = np.where(rates > 0, rates, 1.0)
    worth = np.array([job.flops / job.alone_s for job in view.jobs])
    if not entries:
        return float(worth.sum())

    def matrix(cells: list[tuple[int, int, float]], height: int) -> Any:
        at, column, value = zip(*cells, strict=True)
        return csr_array((value, (at, column)), shape=(height, columns))

    top = float(worth.max()) or 1.0
    solution = linprog(
        np.concatenate((-worth / top, np.zeros(columns - jobs))),
        A_ub=matrix([(row, column, value / scale[row]) for row, column, value in entries], len(rows)),
        b_ub=np.where(rates > 0, 1.0, 0.0),
        A_eq=matrix(equal, len(connections)),
        b_eq=np.zeros(len(connections)),
        bounds=np.concatenate((np.tile([0.0, 1.0], (jobs, 1)), np.tile([0.0, np.inf], (columns - jobs, 1)))),
        method="highs",
    )
    if solution.status != 0:
        raise ArithmeticError(f"the programme of {jobs} jobs was not solved: {solution.message}")
    return float(-solution.fun * top)


def _connections(view: View, job: int) -> list[tuple[tuple[Path, ...], float]]:
    """A job's connections with their bytes; those that have the same paths are one."""
    sizes: dict[tuple[Path, ...], float] = defaultdict(float)
    for paths, size in zip(view.jobs[job].paths, bytes_by_connection(view.jobs[job]), strict=True):
        sizes[paths] += size
    return list(sizes.items())
