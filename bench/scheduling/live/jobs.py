"""A queue of short jobs, drawn with a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.many_jobs.jobs.records import CellBook, Job, Pool, Workload
from profiles.errors import InputError

LEAST_ITERATIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """`count` jobs, each of `least_s` to `most_s` seconds on what it asks for, start not counted. The gaps between
    arrivals are exponential, such that the jobs ask for `load` times what there is; the first comes at 0."""

    count: int = 20
    least_s: float = 8.0
    most_s: float = 20.0
    load: float = 1.3

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 < self.least_s <= self.most_s or not self.load > 0:
            found = f"{self.count} jobs of {self.least_s} to {self.most_s} s at a load of {self.load}"
            raise InputError(
                where="queue", found=found, expected="1 job or more, of 0 < least <= most s, a load above 0"
            )


def draw_queue(
    menu: Sequence[Workload],
    pools: Mapping[str, Pool],
    cells: CellBook,
    rules: QueueRules,
    *,
    start_s: float,
    seed: int,
) -> tuple[Job, ...]:
    """The jobs: workload, pool and a power of two of its devices (all but whole pools of more than two, which would
    leave nothing to decide) are drawn evenly from those that fit; the work is whole iterations of the Cell asked for.

    A job's `duration_s` is `start_s` + these iterations, as its owner would state it.
    """
    rng = random.Random(seed)
    choices = [
        (workload, pool.name, count)
        for pool in pools.values()
        for count in _counts(pool)
        for workload in menu
        if cells.best(workload, pool.name, count) is not None
    ]
    if not choices:
        raise InputError(where="queue", found="no workload that fits anywhere", expected="one")
    total = sum(pool.devices for pool in pools.values())
    mean_gap_s = _mean_area(choices, rules) / total / rules.load
    jobs: list[Job] = []
    submit_s = 0.0
    for number in range(rules.count):
        workload, pool_name, devices = rng.choice(choices)
        best = cells.best(workload, pool_name, devices)
        assert best is not None
        work_s = rng.uniform(rules.least_s, rules.most_s)
        iterations = max(LEAST_ITERATIONS, round(work_s / best.iteration_time_s))
        jobs.append(
            Job(
                id=f"{number:02d}",
                submit_s=submit_s,
                pool=pool_name,
                devices=devices,
                workload=workload,
                iterations=iterations,
                duration_s=start_s + iterations * best.iteration_time_s,
            )
        )
        submit_s += rng.expovariate(1 / mean_gap_s)
    return tuple(jobs)


def _counts(pool: Pool) -> list[int]:
    most = pool.devices if pool.devices <= 2 else pool.devices - 1
    return [1 << k for k in range(most.bit_length()) if 1 << k <= most]


def _mean_area(choices: Sequence[tuple[Workload, str, int]], rules: QueueRules) -> float:
    """Device-seconds of a job in the mean."""
    return (rules.least_s + rules.most_s) / 2 * sum(count for *_, count in choices) / len(choices)
