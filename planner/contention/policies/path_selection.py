"""Which way each connection takes: job after job, the least congested of its paths (Crux, section 4.1).

What "congested" means is not defined there. Here it is the busy share of the path's fullest link by what was placed
before (seconds of an iteration's bytes on the link, over the iteration alone), then the sum over its links, then the
path's number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from planner.contention.policies.loads import bytes_by_connection, path_taken
from planner.contention.policies.records import Choice, Contender, View


def least_congested_paths(view: View, order: Sequence[int]) -> tuple[tuple[Choice, ...], ...]:
    """Return a path for each connection of each job, the jobs placed in `order`; a job that is not in it keeps its
    paths, and is there before the others."""
    busy: dict[int, float] = defaultdict(float)
    paths: list[tuple[Choice, ...]] = [job.now for job in view.jobs]
    placed = set(order)
    for number in (*(job for job in range(len(view.jobs)) if job not in placed), *order):
        job = view.jobs[number]
        chosen: list[Choice] = []
        for connection, size in enumerate(bytes_by_connection(job)):
            choice = job.now[connection]
            if number in placed:
                choice = _least_congested(job, connection, busy, view.bytes_per_s)
            chosen.append(choice)
            for link, share in path_taken(job, connection, choice):
                rate = view.bytes_per_s[link]
                busy[link] += size * share / rate / job.alone_s if rate > 0 else float("inf")
        paths[number] = tuple(chosen)
    return tuple(paths)


def _least_congested(job: Contender, connection: int, busy: dict[int, float], bytes_per_s: Sequence[float]) -> int:
    options = job.paths[connection]
    if len(options) == 1:
        return 0
    # No path has less than the links that all of them take; the first that has no more is the one.
    on_all = [busy[link] if bytes_per_s[link] > 0 else float("inf") for link in job.sending.on_all_paths[connection]]
    least, least_together = max(on_all, default=0.0), sum(on_all)
    best, fullest, together = 0, float("inf"), float("inf")
    for number, path in enumerate(options):
        loads = [busy[link] if bytes_per_s[link] > 0 else float("inf") for link, _ in path]
        most = max(loads, default=0.0)
        if most <= fullest:
            total = sum(loads)
            if most < fullest or total < together:
                best, fullest, together = number, most, total
                if most <= least and total <= least_together:
                    return best
    return best
