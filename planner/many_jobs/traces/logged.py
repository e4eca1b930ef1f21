"""What a trace says of itself: how its jobs fared where it was logged, and how much it asks of a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from planner.many_jobs.traces.records import Trace, TraceRow
from planner.shared.words import three_digits
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """How the jobs fared as they were logged, in the figures of a simulation's summary; seconds. `most_devices` is how
    many were busy at once."""

    jobs: int
    jct_mean_s: float
    jct_median_s: float
    jct_p99_s: float
    queue_mean_s: float
    queue_median_s: float
    queue_p99_s: float
    makespan_s: float
    most_devices: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as values that `json.dumps` takes."""
        return asdict(self)


def as_logged(trace: Trace) -> Logged | None:
    """Return how the jobs of the trace fared; None where it does not say of every one how long it queued."""
    if not trace.rows or any(row.queue_s is None for row in trace.rows):
        return None
    queue_s = np.array([row.queue_s or 0.0 for row in trace.rows])
    jct_s = queue_s + np.array([row.duration_s for row in trace.rows])
    submitted_s = np.array([row.submit_time_s for row in trace.rows])
    return Logged(
        jobs=len(trace.rows),
        jct_mean_s=math.fsum(jct_s) / len(jct_s),
        jct_median_s=float(np.quantile(jct_s, 0.5)),
        jct_p99_s=float(np.quantile(jct_s, 0.99)),
        queue_mean_s=math.fsum(queue_s) / len(queue_s),
        queue_median_s=float(np.quantile(queue_s, 0.5)),
        queue_p99_s=float(np.quantile(queue_s, 0.99)),
        makespan_s=float((submitted_s + jct_s).max() - submitted_s.min()),
        most_devices=_most_at_once(trace.rows),
    )


def overfilling(trace: Trace, devices: int) -> tuple[str, ...]:
    """Return sentences that warn where the trace asks for more than `devices` devices can give: at once, as it was
    logged, or in all from its first submission to the last end."""
    said = []
    logged = as_logged(trace)
    if logged is not None and logged.most_devices > devices:
        said.append(
            f"warning: the log has {logged.most_devices} devices busy at once, the cluster has {devices}: jobs wait"
            " here that did not wait there"
        )
    asked = math.fsum(row.gpus * row.duration_s for row in trace.rows)
    if trace.rows:
        ends_s = [row.submit_time_s + (row.queue_s or 0.0) + row.duration_s for row in trace.rows]
        there = devices * (max(ends_s) - min(row.submit_time_s for row in trace.rows))
        if there > 0 and asked > there:
            said.append(
                f"warning: the log asks for {three_digits(asked / 3600)} device-hours, {asked / there:.2f} times what"
                " the cluster has from its first submission to its last end: under every policy the queue grows"
            )
    return tuple(said)


def _most_at_once(rows: Sequence[TraceRow]) -> int:
    """The most devices that ran at once by the log's own starts."""
    changes = []
    for row in rows:
        start_s = row.submit_time_s + (row.queue_s or 0.0)
        if row.duration_s > 0:
            changes += [(start_s, 1, row.gpus), (start_s + row.duration_s, 0, -row.gpus)]
    busy = most = 0
    for _, _, change in sorted(changes):
        busy += change
        most = max(most, busy)
    return most
