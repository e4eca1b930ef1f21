"""Random workloads on the pools of `tests.scheduling_examples.two_pools` that every policy can run."""

from __future__ import annotations

from random import Random

from planner.many_jobs.jobs.records import Job
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
