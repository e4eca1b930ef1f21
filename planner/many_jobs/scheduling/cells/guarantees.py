"""A schedule in which every job with a deadline that is in it ends in time, and how another job gets into it.

The schedule gives each job one Cell from one time to its end: a rectangle of devices of one pool over time, restart
included. Starts are now or times at which another rectangle ends, so that the policy is asked then; in rounds, ends
count as of the next call. As long as nothing fails the schedule of one decision still holds at the next: running jobs
run on, others start where their rectangles say. So a job once admitted is never late.

Admission takes three steps, each only where the one before failed:

1. The job's Cells in order of their cost (priced devices x seconds: the minimum satisfactory share of ElasticFlow,
   ASPLOS 2023, section 4.1, over all Cells); the first one that fits some time before the deadline is taken.
2. Those with the most device-seconds to give (devices x time from their end to their deadline) are taken out, 2, 4, 8,
   ... of them, jobs without deadline first; the new one is put in, then they, by deadline, each as it was if it can.
3. All are taken out and put in anew by deadline, then by the latest time at which they can start.

Of many that ask at once, step 1 is tried for all, then 3 once for those that hold something and 1 again, then 2 and 3
for each that is left. It is a heuristic: what it admits is in time, what it refuses might have had a place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.many_jobs.scheduling.cells.board import NOTHING, Board, Floats
from planner.many_jobs.scheduling.cells.timeline import ALIKE_S, Timeline
from profiles.records import dataclass

MOST_INSERTIONS = 600
"""Insertions in one decision, after which step 2 and 3 are left out."""
LEAST_EXTRA = 0.25
"""Devices that a change which needs no more of them counts as taking."""


@dataclass(slots=True)
class _Snapshot:
    """A schedule's state, to go back to."""

    lines: list[Timeline]
    column: list[int]
    start_s: list[float]
    end_s: list[float]


class Schedule:
    """The schedule of one decision over the rows of a board. Row j has Cell `column[j]` (NOTHING: none) from
    `start_s[j]` to `end_s[j]` (both clock times; the end as the policy sees it, at a call)."""

    def __init__(self, board: Board, now_s: float, *, gap_s: float) -> None:
        """Those that run, on what they have; late ones are not in it. `gap_s` as of `Cadence`."""
        rows = len(board.ids)
        self.board, self.now_s, self.gap_s = board, now_s, gap_s
        self.column = [NOTHING] * rows
        self.start_s, self.end_s = [now_s] * rows, [now_s] * rows
        self.insertions = 0
        free = list(board.free)
        for row in range(board.held):
            free[int(board.pool_of[board.real[row]])] += int(board.devices[row, board.real[row]])
        self.lines = [Timeline(now_s, count) for count in free]
        self.prices = _prices(board)
        lasts_s = np.where(board.devices > 0, board.lasts_s, np.inf)
        held_s = self._calls_s(now_s + lasts_s) - now_s
        self.cost = np.maximum(board.devices, 1) * self.prices[board.pool_of] * held_s
        self._lasts: list[list[float]] = board.lasts_s.tolist()
        self._devices: list[list[int]] = board.devices.tolist()
        self._pool: list[int] = board.pool_of.tolist()
        # Who is admitted has this much to spare, so that noise makes nobody late.
        self._due: list[float] = (board.due_s - ALIKE_S).tolist()
        self._columns: dict[int, list[int]] = {}

    def holds(self, row: int) -> bool:
        """Whether the job is in the schedule."""
        return self.column[row] != NOTHING

    def in_time(self, row: int, column: int, start_s: float) -> bool:
        """Whether it would end by its deadline."""
        return start_s + self._length(row, column, start_s) <= self._due[row] + 2 * ALIKE_S

    def put(self, row: int, column: int, start_s: float) -> None:
        """Into the schedule, whatever there is."""
        line = self.lines[self._pool[column]]
        end_s = line.snap(self._call_s(start_s + self._length(row, column, start_s)))
        start_s = line.snap(start_s)
        line.take(start_s, end_s, self._devices[row][column])
        self.column[row], self.start_s[row], self.end_s[row] = column, start_s, end_s

    def remove(self, row: int) -> None:
        """Out of it."""
        column = self.column[row]
        if column != NOTHING:
            line = self.lines[self._pool[column]]
            line.take(self.start_s[row], self.end_s[row], -self._devices[row][column])
            self.column[row] = NOTHING

    def fits(self, row: int, column: int, start_s: float) -> bool:
        """Whether the devices are free and the job would be in time."""
        if not self.in_time(row, column, start_s):
            return False
        line, length_s = self.lines[self._pool[column]], self._length(row, column, start_s)
        return line.room(start_s, self._call_s(start_s + length_s)) >= self._devices[row][column]

    def least_cost(self, row: int) -> float:
        """Priced device-seconds that the job takes at least; inf where nothing is in time."""
        columns = self._by_cost(row)
        return float(self.cost[row, columns[0]]) if columns else math.inf

    def insert(self, row: int) -> bool:
        """Step 1. A job without a deadline only from now on."""
        self.insertions += 1
        due_s = self._due[row]
        lasts, devices, real = self._lasts[row], self._devices[row], self._real(row)
        for column in self._by_cost(row):
            if column == real and self.fits(row, column, self.now_s):
                self.put(row, column, self.now_s)
                return True
            lasts_s = self._length(row, column, math.inf) if column == real else lasts[column]
            latest_s = due_s - lasts_s if math.isfinite(due_s) else self.now_s
            whole_s = self._call_s(self.now_s + lasts_s) - self.now_s
            start_s = self.lines[self._pool[column]].earliest(devices[column], whole_s, latest_s)
            if start_s is not None:
                self.put(row, column, start_s)
                return True
        return False

    def keep(self, row: int) -> bool:
        """Step 1, but on what it runs on if that can be."""
        real = self._real(row)
        if real != NOTHING and self.fits(row, real, self.now_s):
            self.put(row, real, self.now_s)
            return True
        return self.insert(row)

    def admit(self, row: int) -> bool:
        """Get the job in without making any other late; where that fails nothing is changed."""
        if self.insert(row):
            return True
        if not self._by_cost(row) or self.insertions >= MOST_INSERTIONS:
            return False
        before = self.copy()
        others = sorted(
            (other for other in range(len(self.column)) if self.holds(other)), key=self._gives, reverse=True
        )
        count = 2
        while others and count < 2 * len(others):
            if self._again([row], sorted(others[:count], key=self._turn), others[:count]):
                return True
            self.restore(before)
            count *= 2
        for key in (self._turn, self._latest_start):
            if self._again(sorted([row, *others], key=key), [], others):
                return True
            self.restore(before)
        return False

    def admit_all(self, rows: Sequence[int]) -> list[int]:
        """`admit` for many, in this order; returns those that are not in. Step 1 for all; then all that is held is
        taken out and put in anew (step 3), and step 1 again, which stays if it lets anyone in; then `admit`."""
        left = [row for row in rows if not self.insert(row)]
        able = [row for row in left if self._by_cost(row)]
        before = self.copy()
        others = [other for other in range(len(self.column)) if self.holds(other)]
        for key in (self._turn, self._latest_start) if able and others else ():
            if self._again(sorted(others, key=key), [], others):
                still = [row for row in able if not self.insert(row)]
                if len(still) < len(able):
                    able = still
                    break
            self.restore(before)
        refused = {row for row in able if not self.admit(row)}
        return [row for row in left if not self.holds(row) or row in refused]

    def compress(self) -> None:
        """All that start later: as early as they can on their Cells, which is never later than before."""
        later = [row for row in range(len(self.column)) if self.holds(row) and self.start_s[row] > self.now_s]
        for row in sorted(later, key=lambda row: (self.start_s[row], row)):
            column, start_s = self.column[row], self.start_s[row]
            self.remove(row)
            length_s = self._length(row, column, start_s)
            whole_s = self._call_s(self.now_s + length_s) - self.now_s
            line = self.lines[self._pool[column]]
            earlier_s = line.earliest(self._devices[row][column], whole_s, start_s)
            self.put(row, column, start_s if earlier_s is None else earlier_s)

    def copy(self) -> _Snapshot:
        """What `restore` takes."""
        return _Snapshot([line.copy() for line in self.lines], list(self.column), list(self.start_s), list(self.end_s))

    def restore(self, kept: _Snapshot) -> None:
        """Back to that."""
        self.lines = [line.copy() for line in kept.lines]
        self.column, self.start_s, self.end_s = list(kept.column), list(kept.start_s), list(kept.end_s)

    def fill(self) -> None:
        """Give what is left over: time after time the change that gains most value a priced device among those that
        make nobody late."""
        board = self.board
        if not len(board.ids):
            return
        value, devices, pool_of = board.value, board.devices, board.pool_of
        ends = self._calls_s(self.now_s + board.lasts_s)
        rows = np.arange(len(board.ids))
        priced = devices * self.prices[pool_of]
        timely = self.now_s + board.lasts_s <= board.due_s[:, None]
        column = np.array(self.column)
        running = (column != NOTHING) & (np.array(self.start_s) <= self.now_s)
        room = np.stack([self._rooms(int(pool_of[cell]), ends[:, cell]) for cell in range(len(pool_of))], axis=1)
        own_end = np.array(self.end_s)
        for _ in range(2 * len(rows)):
            at = np.where(running, column, 0)
            held = np.where(running, devices[rows, at], 0)
            has = np.where(running, value[rows, at], 0.0)
            paid = np.where(running, priced[rows, at], 0.0)
            same = running[:, None] & (pool_of[at][:, None] == pool_of[None, :]) & (ends <= own_end[:, None])
            gain = value - has[:, None]
            open_ = (
                timely
                & (devices <= room + np.where(same, held[:, None], 0))
                & (gain > 1e-9 * (1.0 + np.abs(has))[:, None])
            )
            least = LEAST_EXTRA * self.prices[pool_of]
            score = np.where(open_, gain / np.maximum(priced - paid[:, None], least[None, :]), -np.inf)
            row, best = divmod(int(score.argmax()), score.shape[1])
            if not np.isfinite(score[row, best]):
                return
            touched = {self._pool[best]} | ({self._pool[self.column[row]]} if self.holds(row) else set())
            self.remove(row)
            self.put(row, best, self.now_s)
            column[row], running[row], own_end[row] = best, True, self.end_s[row]
            for cell in np.flatnonzero(np.isin(pool_of, list(touched))).tolist():
                room[:, cell] = self._rooms(int(pool_of[cell]), ends[:, cell])

    def _again(self, first: Sequence[int], then: Sequence[int], out: Sequence[int]) -> bool:
        """Take `out` out, then put in `first` and `then`; False where one with a deadline has no place."""
        for row in out:
            self.remove(row)
        for place, row in enumerate((*first, *then)):
            done = self.keep(row) if place >= len(first) else self.insert(row)
            if not done and math.isfinite(self._due[row]):
                return False
        return True

    def _gives(self, row: int) -> tuple[float, int]:
        left_s = self._due[row] - self.end_s[row]
        return left_s * self._devices[row][self.column[row]], -row

    def _turn(self, row: int) -> tuple[float, int]:
        return self._due[row], row

    def _latest_start(self, row: int) -> tuple[float, int]:
        columns = self._by_cost(row)
        return self._due[row] - (self._lasts[row][columns[0]] if columns else 0.0), row

    def _by_cost(self, row: int) -> list[int]:
        columns = self._columns.get(row)
        if columns is None:
            lasts = self.board.lasts_s[row]
            usable = np.flatnonzero(np.isfinite(lasts) & (self.now_s + lasts <= self._due[row]))
            columns = self._columns[row] = usable[np.argsort(self.cost[row, usable], kind="stable")].tolist()
        return columns

    def _real(self, row: int) -> int:
        return self.board.real[row]

    def _length(self, row: int, column: int, start_s: float) -> float:
        """Seconds on the Cell; who runs on it now and leaves it pays for coming back."""
        again = column == self.board.real[row] and start_s > self.now_s
        return self._lasts[row][column] + (float(self.board.restart_s[row]) if again else 0.0)

    def _call_s(self, time_s: float) -> float:
        if not self.gap_s or not math.isfinite(time_s):
            return time_s
        return self.now_s + self.gap_s * math.ceil((time_s - self.now_s) / self.gap_s - 1e-6)

    def _calls_s(self, times_s: Floats) -> Floats:
        if not self.gap_s:
            return times_s
        calls_s: Floats = self.now_s + self.gap_s * np.ceil((times_s - self.now_s) / self.gap_s - 1e-6)
        return calls_s

    def _rooms(self, pool: int, ends_s: Floats) -> Floats:
        """Devices of the pool that are free from now to each of the times."""
        line = self.lines[pool]
        least = np.minimum.accumulate(np.array(line.free, dtype=np.float64))
        rooms: Floats = least[np.maximum(np.array(line.times).searchsorted(ends_s - ALIKE_S, side="left") - 1, 0)]
        return rooms


def _prices(board: Board) -> Floats:
    """What a device of each pool is worth: the mean over jobs of the work it does at best beside the best pool."""
    pools = len(board.free)
    if not len(board.ids):
        return np.ones(pools)
    with np.errstate(divide="ignore", invalid="ignore"):
        work = np.where(np.isfinite(board.lasts_s), 1.0 / (board.devices * board.lasts_s), 0.0)
    best = np.stack([work[:, board.pool_of == pool].max(axis=1, initial=0.0) for pool in range(pools)], axis=1)
    most = best.max(axis=1, keepdims=True)
    workable = (most[:, 0] > 0) & np.isfinite(most[:, 0])
    if not workable.any():
        return np.ones(pools)
    prices: Floats = np.maximum((best[workable] / most[workable]).mean(axis=0), 1e-3)
    return prices
