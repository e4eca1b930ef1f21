"""Which of many jobs `cellplan contention` prints: those that it is about most. `--json` has all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Job = dict[str, Any]

ALL = 50
"""So many jobs are printed one by one, in the order of the file."""
FIRST = 20
"""Of more jobs so many are, those that it is about most."""
NAMES = 12
"""So many names stand in a sentence."""


def shown_jobs(jobs: Sequence[Job], matter: Callable[[Job], float]) -> list[Job]:
    """Return all jobs of few; of many the first by how much they `matter`, then by name."""
    if len(jobs) <= ALL:
        return list(jobs)
    return sorted(jobs, key=lambda job: (-matter(job), job["id"]))[:FIRST]


def shown_title(title: str, shown: Sequence[Job], jobs: Sequence[Job], which: str) -> str:
    """Return what a table of jobs is called, and which of them are in it where it has not all."""
    if len(shown) == len(jobs):
        return f"{title} (modelled)"
    return f"{title}, of {len(jobs):,} jobs the {len(shown)} {which} (modelled; --json has all)"


def names_shown(names: Sequence[str]) -> str:
    """Return names as a sentence has them, of many the first and how many more there are."""
    more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more


def devices_lost(job: Job) -> float:
    """Return how many devices' worth of work a job does less now than alone."""
    return _devices(job, job["alone_s"]) - _devices(job, job["iteration_time_s"])


def devices_moved(job: Job) -> float:
    """Return how many devices' worth of work a decision brings a job, or takes from it."""
    return abs(_devices(job, job["planned_s"]) - _devices(job, job["now_s"]))


def devices_paid(job: Job) -> float:
    """Return how many devices' worth of work a decision takes from a job."""
    return _devices(job, job["now_s"]) - _devices(job, job["planned_s"])


def _devices(job: Job, seconds: float | None) -> float:
    """What its devices do of what they would alone; nothing in an iteration that never ends."""
    if seconds is None or job["alone_s"] is None:
        return 0.0
    return float(job["devices"]) * float(job["alone_s"]) / float(seconds)
