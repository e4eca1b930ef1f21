"""Jobs that pay much for the work that others do: their iterations take more than twice as long as now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, inf
from typing import Any

MUCH = 2.0
"""Jobs whose iterations take more times as long as now are warned of."""


def much_slower(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the jobs whose iterations take more than `times` as long as planned as now, the slowest first, each with
    how many times that is (null: it gets nowhere), and the `slowdown_cap` that keeps each of them within `times`; None
    where there are none. Of a job `now_s`, `planned_s` and `alone_s` are seconds of an iteration, None without end."""
    much = [job for job in jobs if job["now_s"] is not None and _times_now(job) > MUCH]
    if not much:
        return None
    worst = sorted(much, key=lambda job: (-_times_now(job), job["id"]))
    return {
        "times": MUCH,
        "jobs": [
            {"id": job["id"], "times_now": None if job["planned_s"] is None else _times_now(job)} for job in worst
        ],
        "slowdown_cap": _cap_for(much),
    }


def _times_now(job: Mapping[str, Any]) -> float:
    return inf if job["planned_s"] is None else float(job["planned_s"]) / float(job["now_s"])


def _cap_for(jobs: Sequence[Mapping[str, Any]]) -> float:
    """The greatest cap, to a tenth, that keeps each of these jobs within twice what it takes now."""
    least = min(MUCH * float(job["now_s"]) / float(job["alone_s"]) for job in jobs)
    return max(floor(least * 10) / 10, 1.0)
