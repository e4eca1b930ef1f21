"""The most work that jobs can do on links which carry so much, paths split freely: every corner of what is possible."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from planner.contention.policies.loads import bytes_by_connection
from planner.contention.policies.records import View


def most_work(view: View) -> float:
    """FLOP/s. Of n unknowns (the rate of each job as a share of that alone, and what of its bytes goes over each path)
    a corner has n of the limits tight; the equalities always are."""
    jobs = len(view.jobs)
    paths = [
        (job, connection, path)
        for job, contender in enumerate(view.jobs)
        for connection, options in enumerate(contender.paths)
        for path in options
    ]
    count = jobs + len(paths)
    equal, below, limit = [], [], []
    for job, contender in enumerate(view.jobs):
        for connection in range(len(contender.paths)):
            row = np.zeros(count)
            row[job] = -1.0
            for place, (other, its, _) in enumerate(paths):
                row[jobs + place] = (other, its) == (job, connection)
            equal.append(row)
        row = np.zeros(count)
        row[job] = 1.0
        below.append(row)
        limit.append(1.0)
    for link in sorted({link for _, _, path in paths for link, _ in path}):
        row = np.zeros(count)
        for place, (job, connection, path) in enumerate(paths):
            size = bytes_by_connection(view.jobs[job])[connection] / view.jobs[job].alone_s
            row[jobs + place] = size * dict(path).get(link, 0.0) / view.bytes_per_s[link]
        below.append(row)
        limit.append(1.0)
    below += list(-np.eye(count))
    limit += [0.0] * count
    worth = np.array([job.flops / job.alone_s for job in view.jobs] + [0.0] * len(paths))
    best = 0.0
    for tight in combinations(range(len(below)), count - len(equal)):
        matrix = np.array([*equal, *(below[row] for row in tight)])
        if abs(np.linalg.det(matrix)) < 1e-9:
            continue
        at = np.linalg.solve(matrix, np.array([0.0] * len(equal) + [limit[row] for row in tight]))
        if all(np.dot(row, at) <= most + 1e-9 for row, most in zip(below, limit, strict=True)):
            best = max(best, float(np.dot(worth, at)))
    return best
