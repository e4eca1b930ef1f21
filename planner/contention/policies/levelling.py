"""The levels of a decision: by rank, compressed to as many as the fabric has, or the same for all."""

from __future__ import annotations

from collections.abc import Sequence

from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.compression.dag import ContentionDag, contention_dag
from planner.contention.policies.intensity import intensities
from planner.contention.policies.loads import LinkSeconds, contending_jobs, contending_pairs, link_seconds
from planner.contention.policies.records import Choice, View

Levels = tuple[int | None, ...]


def by_job(jobs: int, order: Sequence[int], levels: Sequence[int]) -> Levels:
    """Return by the number of the job the levels that are given by rank; None of a job that has none."""
    level = dict(zip(order, levels, strict=True))
    return tuple(level.get(job) for job in range(jobs))


def own_levels(jobs: int, order: Sequence[int]) -> Levels:
    """Return a level of its own for each job in `order`."""
    return by_job(jobs, order, range(len(order)))


def same_level(seconds: Sequence[LinkSeconds]) -> Levels:
    """Return the first level for all jobs that share links."""
    contending = set(contending_jobs(seconds))
    return tuple(0 if job in contending else None for job in range(len(seconds)))


def needed_levels(view: View, paths: Sequence[Sequence[Choice]], levels: Sequence[int]) -> Levels:
    """Return `levels`, None of a job that shares no link on these paths."""
    contending = set(contending_jobs(link_seconds(view, paths)))
    return tuple(level if job in contending else None for job, level in enumerate(levels))


def compressed_levels(
    view: View,
    seconds: Sequence[LinkSeconds],
    order: Sequence[int],
    compression: str,
    intensity: str = "bottleneck",
) -> Levels:
    """Return levels by the named compression, of jobs that share links, the most important first in `order`."""
    if not order:
        return (None,) * len(view.jobs)
    weights = dict(enumerate(intensities(view, seconds, intensity)))
    return levels_of_dag(view, contention_dag(order, contending_pairs(seconds), weights), order, compression)


def levels_of_dag(view: View, dag: ContentionDag, order: Sequence[int], compression: str) -> Levels:
    """Return levels by the named compression of the contention DAG of the jobs in `order`."""
    if not order:
        return (None,) * len(view.jobs)
    return by_job(len(view.jobs), order, COMPRESSIONS[compression](dag, view.levels or len(order)))
