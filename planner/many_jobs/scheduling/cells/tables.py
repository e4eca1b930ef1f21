"""The Cells a job may run as: so many times what it asked for, on every pool, with rates relative to what it asked for.

All jobs share one numbering of their Cells ("columns"): column = pool * number of levels + level, where level l stands
for `factor[l]` times the devices asked for. Crius section 6.1 takes the factors 1/2, 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jobs.records import CellBook, Job, Workload
from profiles.records import dataclass

CRIUS_LEVELS = (-1, 0, 1)
"""Half, once and twice the devices asked for (Crius section 6.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """The Cells of one job. `rates[c]` is how many times faster than on the Cell asked for column c runs (0: there is
    no such Cell), `devices[c]` what it takes; `asked_s` is an iteration on the Cell asked for (where that does not
    exist: on the fastest of all), `asked` its column; `pools` are those where it has a Cell."""

    rates: NDArray[np.float64]
    devices: NDArray[np.int64]
    asked_s: float
    asked: int
    pools: frozenset[int]


class CellTables:
    """The rows of all workloads seen, made once each."""

    def __init__(self, levels: Sequence[int] = CRIUS_LEVELS, *, other_pools: bool = True) -> None:
        """`levels` are powers of two times the devices asked for; `other_pools` False keeps jobs on their own."""
        self.levels, self.other_pools = tuple(levels), other_pools
        self._pools: tuple[str, ...] = ()
        self._rows: dict[tuple[Workload, str, int], CellRow] = {}

    def set_pools(self, pools: Sequence[str]) -> None:
        """Number the pools; rows are made anew when they are others than before."""
        if tuple(pools) != self._pools:
            self._pools, self._rows = tuple(pools), {}

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools in the order of the columns."""
        return self._pools

    @property
    def pool_of(self) -> NDArray[np.int64]:
        """The pool of each column."""
        return np.repeat(np.arange(len(self._pools)), len(self.levels))

    def costs(self) -> NDArray[np.int64]:
        """Single moves between two columns: doublings or halvings, and one for another pool."""
        level = np.tile(np.array(self.levels), len(self._pools))
        pool = self.pool_of
        steps: NDArray[np.int64] = np.abs(level[:, None] - level[None, :]) + (pool[:, None] != pool[None, :])
        return steps

    def column(self, row: CellRow, pool: str, devices: int) -> int | None:
        """The column of so many devices of a pool; None where it is none of the job's Cells."""
        if pool not in self._pools:
            return None
        first = self._pools.index(pool) * len(self.levels)
        for column in range(first, first + len(self.levels)):
            if row.rates[column] > 0 and row.devices[column] == devices:
                return column
        return None

    def row(self, cells: CellBook, job: Job) -> CellRow:
        """The job's Cells. Where none of the levels fits anywhere, levels count from the smallest Cell that does."""
        key = (job.workload, job.pool, job.devices)
        cell_row = self._rows.get(key)
        if cell_row is None:
            cell_row = self._made(cells, job, job.devices)
            if not cell_row.rates.any():
                least = [cells.least_devices(job.workload, pool) for pool in self._allowed(job)]
                smallest = min((count for count in least if count is not None), default=None)
                cell_row = cell_row if smallest is None else self._made(cells, job, smallest)
            self._rows[key] = cell_row
        return cell_row

    def _allowed(self, job: Job) -> tuple[str, ...]:
        return self._pools if self.other_pools else (job.pool,)

    def _made(self, cells: CellBook, job: Job, asked: int) -> CellRow:
        width = len(self._pools) * len(self.levels)
        times, devices = np.full(width, np.inf), np.zeros(width, dtype=np.int64)
        for pool in self._allowed(job):
            first = self._pools.index(pool) * len(self.levels)
            for index, level in enumerate(self.levels):
                count = asked << level if level >= 0 else asked >> -level
                cell = cells.best(job.workload, pool, count) if count > 0 else None
                if cell is not None:
                    times[first + index], devices[first + index] = cell.iteration_time_s, count
        reference = cells.best(job.workload, job.pool, job.devices)
        asked_s = reference.iteration_time_s if reference is not None else float(times.min())
        rates = asked_s / times if np.isfinite(asked_s) else np.zeros(width)
        zero = self.levels.index(0)
        column = self._pools.index(job.pool) * len(self.levels) + zero if job.pool in self._pools else zero
        pools = frozenset((np.flatnonzero(rates) // len(self.levels)).tolist())
        return CellRow(rates=rates, devices=devices, asked_s=asked_s, asked=column, pools=pools)
