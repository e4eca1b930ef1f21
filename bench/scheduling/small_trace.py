"""The trace that comes with the project, `planner/many_jobs/traces/small.csv`: 60 jobs of our own making.

They are drawn by a seed and written in our own CSV.

Four hours of submissions in which the evening is busier than the day, 1 to 8 GPUs each with most on one, durations
from two minutes to two hours, three departments and seven users, one job in ten failed or cancelled. A third of the
rows state their model and batch, seven of these their iterations too; one row in five has a deadline, one in six a
priority. No row names a device, so that the trace runs on any cluster. Nothing in it was copied from a real cluster.

    python -m bench.scheduling.small_trace        # prints it
"""

from __future__ import annotations

import csv
import io
import math

import numpy as np

from planner.many_jobs.traces.cellplan_csv import COLUMNS, PLANNING
from planner.many_jobs.traces.records import Trace, TraceRow

SEED = 6
JOBS = 60

_GPUS, _GPU_SHARES = (1, 2, 4, 8), (0.5, 0.2, 0.18, 0.12)
_USERS = {"vision": ("ada", "emmy"), "speech": ("alan", "grace", "kurt"), "search": ("mary", "sofia")}
_MODELS = {1: ("bert-0.76b", 128), 2: ("wide-resnet-1b", 256), 4: ("moe-1.3b", 256), 8: ("bert-2.6b", 256)}


def small_trace() -> Trace:
    """The rows of `small.csv`, drawn anew; always the same."""
    rng = np.random.default_rng(SEED)
    submits_s = np.sort(np.rint(4 * 3600 * np.sqrt(rng.random(JOBS)))).tolist()
    rows = tuple(_row(rng, place, submit_s - submits_s[0]) for place, submit_s in enumerate(submits_s))
    return Trace(source="small.csv", format="cellplan", rows=rows)


def _row(rng: np.random.Generator, place: int, submit_s: float) -> TraceRow:
    gpus = int(rng.choice(_GPUS, p=_GPU_SHARES))
    duration_s = float(np.rint(math.exp(rng.uniform(math.log(120), math.log(7200)))))
    department = str(rng.choice(list(_USERS)))
    status = str(rng.choice(["completed", "failed", "cancelled"], p=[0.9, 0.05, 0.05]))
    user, queue_s, slack, priority = rng.choice(_USERS[department]), rng.integers(0, 300), rng.uniform(1.2, 3), 0
    model, global_batch = _MODELS[gpus] if place % 3 == 1 else ("", None)
    if place % 6 == 0:
        priority = int(rng.integers(1, 4))
    return TraceRow(
        line=place + 2,
        job_id=f"small-{place:02d}",
        submit_time_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        nodes=1,
        cpus=8.0 * gpus,
        mem_gb=64.0 * gpus,
        user=str(user),
        vc_or_department=department,
        job_type_or_name="training",
        status=status,
        queue_s=float(queue_s),
        model=model,
        global_batch=global_batch,
        iterations=float(np.rint(duration_s / 4) + 1) if place % 9 == 4 else None,
        deadline_s=submit_s + float(np.rint(duration_s * slack)) if place % 5 == 2 else None,
        priority=priority or None,
    )


def trace_csv(trace: Trace) -> str:
    """The text of a trace in our own CSV; reading it gives the same rows again (but for the numbers of their lines).
    What no row says of announcements and hosts has no column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    seldom = (*PLANNING, "preemptible", "hosts")
    unsaid = {name for name in seldom if all(getattr(row, name) in (None, ()) for row in trace.rows)}
    columns = tuple(name for name in COLUMNS if name not in unsaid)
    writer.writerow(columns)
    for row in trace.rows:
        cells = (getattr(row, name) for name in columns)
        writer.writerow("" if cell is None else _short(cell) for cell in cells)
    return text.getvalue()


def _short(cell: object) -> object:
    if isinstance(cell, tuple):
        return " ".join(f"{host}:{count}" for host, count in cell)
    return int(cell) if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53 else cell


if __name__ == "__main__":
    print(trace_csv(small_trace()), end="")
