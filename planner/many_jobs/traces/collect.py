"""The one place where rows come together: what is skipped, what is malformed, what comes twice, and the order."""

from __future__ import annotations

import math
from dataclasses import field, replace
from operator import attrgetter, itemgetter
from typing import NoReturn

from planner.many_jobs.traces.cells import BadCell, date_at
from planner.many_jobs.traces.records import Trace, TraceRow, count_reasons
from planner.shared.options.simulate import Fractional
from profiles.errors import InputError
from profiles.records import dataclass

NO_GPUS = "asked for no GPU"
NEVER_RAN = "never ran"
UNFINISHED = "had not ended when the trace was taken"


@dataclass(slots=True, kw_only=True)
class Collector:
    """Rows of one trace as they are read. `where` names the file in messages."""

    where: str
    lenient: bool
    fractional: Fractional
    rows: list[TraceRow] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    rounded_up: int = 0
    first_s: float | None = None

    def since_first(self, seconds: float) -> float:
        """Seconds since the first submission that was read, for traces whose clock shows dates."""
        if self.first_s is None:
            self.first_s = seconds
        return seconds - self.first_s

    def add(self, row: TraceRow) -> None:
        """Take a row in; BadCell where its id was there before."""
        if row.job_id in self.lines:
            first = self.lines[row.job_id]
            raise BadCell("job_id", f"{row.job_id!r} again (first in line {first})", "an id for each job")
        self.lines[row.job_id] = row.line
        self.rows.append(row)

    def skip(self, line: int, reason: str) -> None:
        """Leave a line out that is no job to replay."""
        self.skipped.append((line, reason))

    def malformed(self, line: int, bad: BadCell) -> None:
        """Leave a malformed line out where the reader is lenient; InputError where not."""
        if not self.lenient:
            raise InputError(where=f"{self.where}, line {line}", key=bad.key, found=bad.found, expected=bad.expected)
        self.skipped.append((line, f"malformed: {bad}"))

    def refuse(self, seen: str, expected: str, *, line: int | None = None) -> NoReturn:
        """InputError about the file as a whole, lenient or not."""
        raise InputError(
            where=self.where if line is None else f"{self.where}, line {line}", found=seen, expected=expected
        )

    def gpus(self, asked: float, key: str) -> int:
        """Whole GPUs for what was asked: fractions rounded up and counted, or BadCell, as `fractional` says."""
        count = max(1, math.ceil(asked - 1e-6))
        if abs(count - asked) > 1e-6:
            if self.fractional == "refuse":
                raise BadCell(key, f"{asked:g} GPUs", "a whole number (--fractional round-up)")
            self.rounded_up += 1
        return count

    def trace(self, form: str, *, ignored: tuple[str, ...] = ()) -> Trace:
        """All rows in order of submission; where the clock shows dates, counted from the earliest. InputError where no
        row is left."""
        if not self.rows:
            reasons = count_reasons(reason for _, reason in self.skipped)
            shown = ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "nothing"
            self.refuse(f"no job in it (skipped: {shown})", "a job with GPUs and a duration")
        rows, zero = sorted(self.rows, key=attrgetter("submit_time_s")), None
        if self.first_s is not None:
            late_s = rows[0].submit_time_s
            zero = date_at(self.first_s + late_s)
            if late_s:
                rows = [replace(row, submit_time_s=row.submit_time_s - late_s) for row in rows]
        return Trace(
            source=self.where,
            format=form,
            rows=tuple(rows),
            skipped=tuple(sorted(self.skipped, key=itemgetter(0))),
            rounded_up=self.rounded_up,
            zero=zero,
            ignored_columns=ignored,
        )
