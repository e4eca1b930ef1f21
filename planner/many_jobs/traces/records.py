"""A trace as records: its rows, what was left out of it and why, and the parts and speeds of it that people replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from planner.shared.garbage import collection_paused
from profiles.errors import InputError
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """A job of a trace; the names are the columns of our CSV (`planner.many_jobs.traces.cellplan_csv`). `line` is where
    it stands in its file. Text is empty and everything else None where the trace says nothing; `gpus` is whole, as
    `read_trace(fractional=...)` made it. `status` is one word: completed, failed, cancelled, timeout, node_fail, or the
    trace's own in lower case. `hosts`: where it sat, in the order of its ranks, with how many GPUs on each; empty where
    the trace does not say."""

    line: int
    job_id: str
    submit_time_s: float
    duration_s: float
    gpus: int
    nodes: int | None = None
    cpus: float | None = None
    mem_gb: float | None = None
    user: str = ""
    vc_or_department: str = ""
    job_type_or_name: str = ""
    status: str = ""
    queue_s: float | None = None
    model: str = ""
    global_batch: int | None = None
    iterations: float | None = None
    device: str = ""
    deadline_s: float | None = None
    priority: int | None = None
    planned_s: float | None = None
    planned_for_s: float | None = None
    cancelled_s: float | None = None
    preemptible: bool | None = None
    hosts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Rows by submit time, those of one time as they stood in the file.

    `skipped` holds (line, reason) of what is no job on GPUs that ran, and, where the reader was lenient, of malformed
    lines (their reasons begin with "malformed"). `rounded_up` rows asked for a fraction of a GPU. `zero` is the date
    at which the trace's clock shows 0 s, without a time zone; None where the trace does not say. `ignored_columns`
    were not read.
    """

    source: str
    format: str
    rows: tuple[TraceRow, ...]
    skipped: tuple[tuple[int, str], ...] = ()
    rounded_up: int = 0
    zero: datetime | None = None
    ignored_columns: tuple[str, ...] = ()

    @property
    def reasons(self) -> dict[str, int]:
        """How many lines were skipped for which reason, most frequent first; malformed ones together."""
        return count_reasons(reason for _, reason in self.skipped)


def count_reasons(reasons: Iterable[str]) -> dict[str, int]:
    """How often each reason stands, most frequent first; those of malformed lines together."""
    return dict(Counter("malformed" if reason.startswith("malformed") else reason for reason in reasons).most_common())


def head(trace: Trace, count: int) -> Trace:
    """Return the trace with its first `count` jobs. Raise InputError for fewer than one."""
    if count < 1:
        raise InputError(where="trace", key="head", found=count, expected="at least one job")
    return replace(trace, rows=trace.rows[:count])


def window(trace: Trace, first_s: float, last_s: float) -> Trace:
    """Return the trace with the jobs submitted in [`first_s`, `last_s`) seconds on its clock, which then shows 0 at
    `first_s`. Raise InputError where there are none."""
    if not first_s < last_s:
        raise InputError(where="trace", key="window", found=f"{first_s} to {last_s}", expected="a first before a last")
    with collection_paused():
        rows = tuple(
            _moved(row, row.submit_time_s - first_s) for row in trace.rows if first_s <= row.submit_time_s < last_s
        )
    if not rows:
        nothing = f"no job in {first_s:g} to {last_s:g} s"
        span = f"{trace.rows[0].submit_time_s:g} to {trace.rows[-1].submit_time_s:g} s" if trace.rows else "nothing"
        raise InputError(where=trace.source, key="window", found=nothing, expected=f"a part of {span}")
    zero = trace.zero + timedelta(seconds=first_s) if trace.zero is not None else None
    return replace(trace, rows=rows, zero=zero)


def load(trace: Trace, factor: float) -> Trace:
    """Return the same jobs arriving `factor` times as fast: gaps between submissions are divided by it, counted from
    the first job. Durations stay, and deadlines stay as far behind their submissions."""
    if not 0 < factor < float("inf"):
        raise InputError(where="trace", key="load", found=factor, expected="a factor above 0")
    if not trace.rows:
        return trace
    first_s = trace.rows[0].submit_time_s
    with collection_paused():
        rows = tuple(_moved(row, first_s + (row.submit_time_s - first_s) / factor) for row in trace.rows)
    return replace(trace, rows=rows)


def _moved(row: TraceRow, submit_time_s: float) -> TraceRow:
    """The row submitted at another time; its deadline and its announcement move along."""
    moved: dict[str, Any] = {}
    for name in ("deadline_s", "planned_s", "planned_for_s", "cancelled_s"):
        time_s = getattr(row, name)
        if time_s is not None:
            moved[name] = time_s + (submit_time_s - row.submit_time_s)
    return replace(row, submit_time_s=submit_time_s, **moved)
