"""When running jobs end: certain by their time limits, or likely by what `cellplan jct predict` said of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from planner.one_job.free_devices.running_records import RunningJob
from profiles.errors import InputError
from profiles.files import read_json
from profiles.records import dataclass

LONGEST_S = 1e12
"""What lasts longer is a slip."""
LOW, LIKELY, HIGH = 0.05, 0.5, 0.95
"""The shares of jobs that end before the low end of a 90% interval, its point, and its high end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How long a job runs, in seconds: the point, and the 90% interval (no high end: None)."""

    point_s: float
    low_s: float
    high_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """When a job ends, in seconds since 1970: at `likely_s`; the share `shares[i]` of such jobs has by `times_s[i]`.
    `by_limit`: that is its time limit's word alone."""

    likely_s: float
    times_s: tuple[float, ...]
    shares: tuple[float, ...]
    by_limit: bool = False

    def chance_by(self, time_s: float) -> float:
        """Return the chance that it has ended by a time.

        >>> ending_by_limit(100.0).chance_by(99.0), ending_by_limit(100.0).chance_by(100.0)
        (0.0, 1.0)
        """
        place = bisect_right(self.times_s, time_s)
        if place == len(self.times_s):
            return self.shares[-1]
        if place == 0:
            return 0.0
        before_s, after_s = self.times_s[place - 1], self.times_s[place]
        share = (time_s - before_s) / (after_s - before_s)
        return self.shares[place - 1] + share * (self.shares[place] - self.shares[place - 1])


def ending_by_limit(limit_s: float) -> Ending:
    """Return the ending of a job that runs to its time limit."""
    return Ending(likely_s=limit_s, times_s=(limit_s,), shares=(1.0,), by_limit=True)


def ending_of(job: RunningJob, prediction: Prediction | None, now_s: float) -> Ending | None:
    """Return when `job` ends: by its time limit, or where it is predicted and began at a known time, as likely as the
    prediction says of a job that has run until now; its time limit ends it at the latest. By its time limit as well
    where it has outrun the prediction's interval, or that has no high end and the limit comes before its point. None
    where nothing says."""
    limit_s = None if job.limit_s is None else max(job.limit_s, now_s)
    by_limit = None if limit_s is None else ending_by_limit(limit_s)
    if prediction is None or job.start_s is None:
        return by_limit
    lows = (0.0, prediction.low_s, max(prediction.low_s, prediction.point_s))
    if prediction.high_s is not None:
        high_s = max(prediction.high_s, lows[-1])
    elif limit_s is not None and limit_s - job.start_s > lows[-1]:
        high_s = limit_s - job.start_s
    else:
        return by_limit
    whole = Ending(likely_s=lows[-1], times_s=_rising((*lows, high_s)), shares=(0.0, LOW, LIKELY, HIGH))
    gone = whole.chance_by(now_s - job.start_s)
    if gone >= HIGH:
        return by_limit
    times_s = [now_s, *(job.start_s + time_s for time_s in whole.times_s if job.start_s + time_s > now_s)]
    shares = [(whole.chance_by(time_s - job.start_s) - gone) / (1 - gone) for time_s in times_s]
    likely_s = _reached(times_s, shares)
    if limit_s is not None and (likely_s is None or likely_s >= limit_s):
        likely_s = limit_s
    if likely_s is None:
        return None
    kept = [place for place, time_s in enumerate(times_s) if limit_s is None or time_s < limit_s]
    ends = ([limit_s], [1.0]) if limit_s is not None else ([], [])
    return Ending(
        likely_s=likely_s,
        times_s=tuple([times_s[place] for place in kept] + ends[0]),
        shares=tuple([shares[place] for place in kept] + ends[1]),
    )


def read_predictions(path: Path) -> dict[str, Prediction]:
    """Return by job what `cellplan jct predict --json` said. Raise InputError for a file that is none of that, or says
    two things of one job."""
    where, data = str(path), read_json(path)
    rows = data.get("jobs") if isinstance(data, dict) else None
    if not isinstance(rows, list):
        raise InputError(where=where, key="jobs", found="none", expected="what `cellplan jct predict --json` prints")
    predictions: dict[str, Prediction] = {}
    for number, row in enumerate(rows):
        at = f"{where}, jobs[{number}]"
        job, prediction = _prediction(row, at)
        if predictions.setdefault(job, prediction) != prediction:
            raise InputError(where=at, key="job_id", found=f"{job[:60]!r} a second time", expected="each job once")
    return predictions


def _prediction(row: Any, where: str) -> tuple[str, Prediction]:
    told: Mapping[str, Any] = row if isinstance(row, dict) else {}
    job, point_s, span = told.get("job_id"), told.get("point_s"), told.get("interval_90_s")
    low_s, high_s = span if isinstance(span, list) and len(span) == 2 else (None, None)
    named = isinstance(job, str | int) and not isinstance(job, bool)
    if not named or not _is_span(point_s) or not _is_span(low_s) or not (high_s is None or _is_span(high_s)):
        expected = f"job_id, point_s and interval_90_s, of seconds from 0 to {LONGEST_S:.0e}"
        raise InputError(where=where, found=str(row)[:60], expected=expected)
    if high_s is not None and high_s < low_s:
        expected = "its low end, then its high end"
        raise InputError(where=where, key="interval_90_s", found=str(span)[:60], expected=expected)
    return str(job), Prediction(point_s=float(point_s), low_s=float(low_s), high_s=high_s)


def _is_span(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_S


def _rising(times_s: tuple[float, ...]) -> tuple[float, ...]:
    """The times, those that are equal apart by a hair, so that shares rise from each to the next."""
    rising: list[float] = []
    for time_s in times_s:
        rising.append(time_s if not rising or time_s > rising[-1] else rising[-1] + 1e-3)
    return tuple(rising)


def _reached(times_s: list[float], shares: list[float]) -> float | None:
    """When half of such jobs have ended; None where the shares do not come so far."""
    for place in range(1, len(times_s)):
        if shares[place] >= LIKELY:
            rise = shares[place] - shares[place - 1]
            part = (LIKELY - shares[place - 1]) / rise if rise else 1.0
            return times_s[place - 1] + part * (times_s[place] - times_s[place - 1])
    return None
