"""A trace as our own CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from planner.many_jobs.traces.cellplan_csv import COLUMNS
from planner.many_jobs.traces.records import Trace
from profiles.files import write_atomically


def trace_csv(trace: Trace) -> str:
    """The text of a trace in our own CSV; reading it gives the same rows again (but for the numbers of their lines)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in trace.rows:
        cells = (getattr(row, name) for name in COLUMNS)
        writer.writerow("" if cell is None else _short(cell) for cell in cells)
    return text.getvalue()


def save_trace(path: str | Path, trace: Trace) -> None:
    """Write a trace as our own CSV, wholly or not at all."""
    write_atomically(path, trace_csv(trace))


def _short(cell: object) -> object:
    return int(cell) if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53 else cell
