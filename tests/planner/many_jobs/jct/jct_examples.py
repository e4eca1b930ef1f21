"""Traces for the tests of completion times: random ones, such as can be learned, and as a file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from planner.many_jobs.jct.jobs import Jobs, make_jobs

HEADER = "job_id,submit_time_s,duration_s,gpus,nodes,cpus,mem_gb,user,vc_or_department,job_type_or_name,status,queue_s"


def random_jobs(
    rows: int, *, seed: int, ties: bool = True, queues: bool = True, unfinished: float = 0.05, killed: float = 0.1
) -> Jobs:
    """Jobs whose durations say nothing, with ties in time, durations of 0, queues and jobs that never end."""
    rng = np.random.default_rng(seed)
    submit = np.cumsum(rng.choice([0.0, 1.0, 30.0, 700.0, 4000.0], rows) if ties else rng.exponential(300.0, rows) + 1)
    lengths = [0.0, 1.0, 599.0, 600.0, 601.0, 4000.0, 14_000.0, 100_000.0]
    duration = rng.choice(lengths, rows) * rng.choice([1.0, 2.0], rows)
    duration[rng.random(rows) < unfinished] = np.nan
    return make_jobs(
        ids=[f"j{number}" for number in range(rows)],
        submit_s=submit,
        duration_s=duration,
        gpus=rng.choice([1.0, 2.0, 8.0], rows),
        queue_s=rng.choice([0.0, 0.0, 600.0, 5000.0], rows) if queues else None,
        numbers={"cpus": rng.choice([4.0, 8.0, np.nan], rows)},
        words={"vc": rng.choice(["a", "b"], rows).tolist(), "user": rng.choice(["u", "v", "w"], rows).tolist()},
        status=np.where(rng.random(rows) < killed, "killed", "completed").tolist(),
    )


def learnable_jobs(rows: int, *, seed: int) -> Jobs:
    """Each user has a habit, changed now and then, which the last finished jobs show."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, 6, rows)
    phase = np.arange(rows) * 4 // rows
    habit = rng.choice([300.0, 1500.0, 5000.0, 9000.0, 30_000.0], (6, 4))[users, phase]
    return make_jobs(
        ids=[str(number) for number in range(rows)],
        submit_s=np.cumsum(rng.exponential(900.0, rows)),
        duration_s=habit * rng.lognormal(0.0, 0.3, rows),
        gpus=rng.choice([1.0, 8.0], rows),
        words={"user": [f"u{user}" for user in users.tolist()]},
    )


def write_trace(path: Path, jobs: Jobs, **columns: list[str]) -> Path:
    """The jobs as our CSV; `columns` replace or add some."""
    users = jobs.words.get("user")
    held = {
        "job_id": list(jobs.ids),
        "submit_time_s": [repr(value) for value in jobs.submit_s.tolist()],
        "duration_s": ["" if np.isnan(value) else repr(value) for value in jobs.duration_s.tolist()],
        "gpus": [f"{value:g}" for value in jobs.gpus.tolist()],
        "queue_s": [f"{value:g}" for value in jobs.queue_s.tolist()],
        **({} if users is None else {"user": [f"u{code}" for code in users.tolist()]}),
        **columns,
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(held)
        writer.writerows(zip(*held.values(), strict=True))
    return path
