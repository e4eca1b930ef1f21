"""Random workloads on the pools of `tests.scheduling_examples.two_pools` that every policy can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from planner.many_jobs.jobs.records import Announcement, Job
from tests.scheduling_examples import FakeCells, make_job

MODELS = ("bert-0.3b", "bert-1.3b", "bert-2.6b", "moe-10b", "gpt-30b")


def draw_workload(rng: Random, count: int, *, mean_gap_s: float = 300.0) -> tuple[Job, ...]:
    """Jobs that fit where they ask to run; some with deadlines, priorities, and bursts of one time."""
    cells, now_s = FakeCells(), 0.0
    found: list[Job] = []
    while len(found) < count:
        now_s += rng.choice((0.0, rng.expovariate(1 / mean_gap_s)))
        pool, devices, model = rng.choice(("a100", "v100")), rng.choice((1, 1, 2, 4, 8, 16)), rng.choice(MODELS)
        job = make_job(
            f"j{len(found)}",
            submit_s=now_s,
            pool=pool,
            devices=devices,
            model=model,
            user=rng.choice(("ada", "alan")),
            virtual_cluster=rng.choice(("x", "y")),
            priority=rng.choice((0, 0, 1)),
            checkpoint_bytes=rng.choice((0, 10**10)),
        )
        best = cells.best(job.workload, pool, devices)
        if best is None:
            continue
        duration_s = rng.choice((60.0, 600.0, 3000.0, 10_000.0)) * rng.uniform(0.5, 1.5)
        found.append(
            make_job(
                job.id,
                submit_s=now_s,
                pool=pool,
                devices=devices,
                model=model,
                iterations=duration_s / best.iteration_time_s,
                duration_s=duration_s,
                user=job.user,
                virtual_cluster=job.virtual_cluster,
                priority=job.priority,
                deadline_s=rng.choice((None, now_s + duration_s * rng.uniform(1, 3))),
                checkpoint_bytes=job.checkpoint_bytes,
            )
        )
    return tuple(found)


def announce(rng: Random, jobs: Sequence[Job], *, cancelling: bool = True) -> tuple[Job, ...]:
    """The jobs, a third of them announced up to two hours before, some for another time than they come at, and some
    (where `cancelling`) withdrawn; a fifth is preemptible."""
    drawn = []
    for job in jobs:
        if rng.random() < 1 / 3:
            known_s = max(0.0, job.submit_s - rng.uniform(0.0, 7200.0))
            arrival_s = max(known_s, job.submit_s + rng.choice((0.0, 0.0, 0.0, -900.0, 900.0, 3000.0)))
            cancelled = cancelling and rng.random() < 0.15
            plan = Announcement(known_s=known_s, arrival_s=arrival_s, cancelled=cancelled)
            drawn.append(replace(job, planned=plan))
        else:
            drawn.append(replace(job, preemptible=rng.random() < 0.2))
    return tuple(drawn)
