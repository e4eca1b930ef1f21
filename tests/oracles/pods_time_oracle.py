"""The least iteration time over every way to put cells into pods, up to names of pods; shares the price alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from estimator.pricing.outcome import Evaluation
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.site_job import Seating, SiteJob


def least_time_s(job: SiteJob, evaluate: Evaluate) -> float:
    """Return the least seconds of an iteration over all placements on the job's free nodes."""
    times_s = []
    for seating in _all(job):
        evaluation = evaluate(job.seated(seating))
        assert isinstance(evaluation, Evaluation)
        times_s.append(evaluation.iteration_time_s)
    return min(times_s)


def _all(job: SiteJob) -> Iterator[Seating]:
    heights = [column.cells for column in job.matrix.columns]
    width = job.matrix.nodes_a_cell
    (level,) = job.site.network.levels
    alike = [(part.oversubscription, len(nodes)) for part, nodes in zip(level.parts, job.nodes.nodes, strict=True)]
    for pods in product(range(len(job.nodes.nodes)), repeat=sum(heights)):
        left = [list(nodes) for nodes in job.nodes.nodes]
        if any(pods.count(pod) * width > len(nodes) for pod, nodes in enumerate(left)):
            continue
        # Of pods that differ in names alone the first is met first.
        first = [pods.index(pod) if pod in pods else len(pods) for pod in range(len(alike))]
        if any(alike[a] == alike[b] and first[b] < first[a] for a, b in combinations(range(len(alike)), 2)):
            continue
        cells = iter([tuple(left[pod].pop(0) for _ in range(width)) for pod in pods])
        yield tuple(tuple(next(cells) for _ in range(height)) for height in heights)
