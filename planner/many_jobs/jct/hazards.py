"""How soon the jobs of a group end, by the last of them that got so far: product-limit estimates that forget.

A job tells something at each threshold that it passes, not only when it has ended: of those that ran beyond one
threshold, these ended by the next and those ran on. The share that ended is a hazard, and hazards make a distribution
(Kaplan and Meier, "Nonparametric estimation from incomplete observations", 1958). Taken over the last few jobs of a
group at each threshold, it follows a habit that changes while the first jobs of the new habit are still running, and
short jobs have no more say for being known first. Nothing is used before it can be seen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jct.groups import group_codes, groups_of
from planner.many_jobs.jct.intervals import INTERVAL_S
from planner.many_jobs.jct.jobs import Floats, Ints
from planner.many_jobs.jct.prepared import Prepared
from profiles.records import dataclass

WINDOWS = (1_000_000_000, 1024, 256, 100, 50, 25, 12, 6, 3)
"""Jobs of a group that are looked back to at each threshold: all, then ever fewer."""
BEHIND = 3.0
"""The jobs that a longer window's hazard counts for beside those of a shorter one; of all jobs beside a group's."""
FIRST_ENDED, FIRST = 0.3, 2.0
"""What all jobs' hazards begin with: so many ended of so many."""
EACH = 24
"""Every interval up to this one is a threshold; then each is an eighth more than the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What jobs told, in order of time: at `time_s` the job of row `row` had ended by threshold number `threshold`
    (`ended`), or ran beyond it."""

    time_s: Floats
    row: Ints
    threshold: Ints
    ended: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.row)

    def of(self, chosen: NDArray[np.bool_]) -> Steps:
        """The steps of the rows that are chosen (a truth value for each row of the trace)."""
        kept = chosen[self.row]
        return Steps(
            time_s=self.time_s[kept], row=self.row[kept], threshold=self.threshold[kept], ended=self.ended[kept]
        )


def thresholds_told(cap: int) -> Ints:
    """The intervals that jobs are seen to pass or not; the last is the one before the open interval.

    >>> thresholds_told(4).tolist(), thresholds_told(24).tolist()[-2:], thresholds_told(60).tolist()[-9:]
    ([1, 2, 3], [22, 23], [24, 27, 30, 33, 37, 41, 46, 51, 59])
    """
    thresholds = list(range(1, min(cap, EACH + 1)))
    while thresholds[-1] * 9 // 8 < cap - 1:
        thresholds.append(thresholds[-1] * 9 // 8)
    if len(thresholds) > EACH and cap - 1 < thresholds[-1] * 17 // 16:
        thresholds.pop()
    return np.array(sorted({*thresholds, cap - 1}), np.int64)


def steps_of(prepared: Prepared) -> Steps:
    """All that the jobs of a trace tell. Of a job that was killed, or whose end is not known, it is known how far it
    ran; that it ended tells nothing."""
    jobs, cap = prepared.jobs, prepared.cap
    thresholds = thresholds_told(cap)
    seen, start = jobs.seen_finish_s, jobs.start_s
    closes = np.isfinite(seen) & (prepared.interval < cap)
    interval = np.where(closes, np.nan_to_num(prepared.interval, nan=cap), cap)
    last = np.searchsorted(thresholds, interval)
    count = np.where(closes & ~jobs.killed, last + 1, last)
    row = np.repeat(np.arange(len(jobs)), count)
    number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    ended = closes[row] & (number == last[row])
    passed = np.nextafter(start[row] + thresholds[number] * INTERVAL_S, np.inf)
    time_s = np.where(ended, seen[row], passed)
    order = np.argsort(time_s, kind="stable")
    return Steps(time_s=time_s[order], row=row[order], threshold=number[order], ended=ended[order])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """Steps sorted by group and threshold, and by time in each: `keys` is both in one number, `ended` the count of the
    ended before each."""

    codes: Ints
    thresholds: int
    keys: Ints
    ended: Ints

    @classmethod
    def sort(cls, steps: Steps, codes: Ints, thresholds: int) -> _Told:
        """The steps by the group of their jobs, whose numbers are `codes`."""
        cell = codes[steps.row] * thresholds + steps.threshold
        order = np.argsort(cell, kind="stable")
        return cls(
            codes=codes,
            thresholds=thresholds,
            keys=cell[order] * (len(steps) + 1) + order,
            ended=np.concatenate([[0], np.cumsum(steps.ended[order])]),
        )

    def counts(self, rows: Ints, known: Ints, windows: tuple[int, ...]) -> tuple[Floats, Floats]:
        """How many of the last steps at each threshold (the first `known` steps of all are known), and how many of
        them ended: a window, a row, a threshold."""
        cell = self.codes[rows][:, None] * self.thresholds + np.arange(self.thresholds)
        first = np.searchsorted(self.keys, cell * len(self.ended))
        end = np.searchsorted(self.keys, cell * len(self.ended) + known[:, None])
        begins = np.array([np.maximum(first, end - window) for window in windows])
        return (end - begins).astype(np.float64), (self.ended[end] - self.ended[begins]).astype(np.float64)


class Hazards:
    """The steps of a trace by each of its groups."""

    def __init__(self, prepared: Prepared, steps: Steps) -> None:
        jobs, self._cap = prepared.jobs, prepared.cap
        self._thresholds = thresholds_told(prepared.cap)
        self._known = np.searchsorted(steps.time_s, jobs.submit_s, side="right")
        count = len(self._thresholds)
        self._all = _Told.sort(steps, np.zeros(len(jobs), np.int64), count)
        self._groups = [
            _Told.sort(steps, group_codes(jobs, [name for name in group if name in prepared.columns]), count)
            for group in groups_of(prepared.columns)
        ]

    def masses(self, rows: Ints) -> Floats:
        """The probability of each interval by what was known when each of `rows` was submitted: for each group and
        window of it (in this order) a row a job."""
        known = self._known[rows]
        (count,), (ended,) = self._all.counts(rows, known, WINDOWS[:1])
        of_all = (ended + FIRST_ENDED) / (count + FIRST)
        hazards = []
        for told in self._groups:
            hazard = of_all
            for count, ended in zip(*told.counts(rows, known, WINDOWS), strict=True):
                hazard = (ended + BEHIND * hazard) / (count + BEHIND)
                hazards.append(hazard)
        return spread_evenly(np.array(hazards), self._thresholds, self._cap)


def hazard_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """What each of `Hazards.masses` is of: a group, and how many of its jobs."""
    groups = ("-".join(group) or "all" for group in groups_of(columns))
    names = ["all" if window == WINDOWS[0] else f"last {window}" for window in WINDOWS]
    return tuple(f"{group}, {name}" for group in groups for name in names)


def spread_evenly(hazards: Floats, thresholds: Ints, cap: int) -> Floats:
    """Probabilities of intervals from the hazards at thresholds (the last axis), even between two of them."""
    beyond = np.cumprod(1.0 - hazards, axis=-1)
    edge = np.ones((*hazards.shape[:-1], 1))
    passed = np.concatenate([edge, beyond], axis=-1)
    steps = np.concatenate([hazards * passed[..., :-1], passed[..., -1:]], axis=-1)
    widths = np.diff(np.concatenate([[0], thresholds, [cap]]))
    return np.asarray(np.repeat(steps / widths, widths, axis=-1))
