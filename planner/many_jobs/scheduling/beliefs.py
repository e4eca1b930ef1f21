"""What a scheduler believes that profiles data parallelism alone (Crius section 8.1), as tables of rates by count."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from planner.many_jobs.jobs.records import CellBook, Job, JobState, View, Workload
from profiles.records import dataclass

MOST_KNOWN = 100_000
"""Jobs whose own ladders are kept at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Counts of devices of one pool on which a workload fits, rising, and the iterations a second believed there.
    Rates never fall from one count to the next: where a profile says so, the count is left out."""

    counts: tuple[int, ...]
    rates: tuple[float, ...]

    def upto(self, devices: int) -> int:
        """How many of the counts are at most so many devices."""
        return bisect_right(self.counts, devices)

    def rate(self, devices: int) -> float:
        """Iterations a second on the largest count that is at most so many devices; 0 below the smallest."""
        rungs = self.upto(devices)
        return self.rates[rungs - 1] if rungs else 0.0


def believed_rate(cells: CellBook, workload: Workload, pool: str, devices: int) -> float | None:
    """Return iterations a second by the data-parallel profile; None where that has none, or where in truth no Cell
    fits."""
    if cells.best(workload, pool, devices) is None:
        return None
    seconds = cells.data_parallel_s(workload, pool, devices)
    return 1.0 / seconds if seconds else None


class Ladders:
    """Ladders of jobs, made once for each (workload, pool, size of the pool, count asked for).

    The counts are the powers of two that the pool holds and what the job asked for there (so that a job which fits on
    nothing else still runs). Each count must be feasible in truth too: a grant is never refused for memory. Where the
    profile has nothing for any count on which some Cell fits, the ladder is the smallest of these, at its true rate.
    """

    def __init__(self) -> None:
        self._ladders: dict[tuple[Workload, str, int, int], Ladder] = {}
        self._of_job: dict[str, tuple[Job, int, Ladder]] = {}

    def of(self, view: View, job: Job, pool: str | None = None) -> Ladder:
        """The ladder of the job on a pool (None: its own); empty where nothing fits or the pool is gone."""
        name = pool or job.pool
        there = view.pools.get(name)
        size = there.devices if there else 0
        if name != job.pool:
            return self._of(view, (job.workload, name, size, 0))
        kept = self._of_job.get(job.id)
        if kept is not None and kept[0] is job and kept[1] == size:
            return kept[2]
        ladder = self._of(view, (job.workload, name, size, job.devices if job.devices & (job.devices - 1) else 0))
        if len(self._of_job) >= MOST_KNOWN:
            self._of_job.clear()
        self._of_job[job.id] = (job, size, ladder)
        return ladder

    def _of(self, view: View, key: tuple[Workload, str, int, int]) -> Ladder:
        ladder = self._ladders.get(key)
        if ladder is None:
            ladder = self._ladders[key] = _ladder(view.cells, *key)
        return ladder


def _ladder(cells: CellBook, workload: Workload, pool: str, size: int, asked: int) -> Ladder:
    counts, rates = list[int](), list[float]()
    wanted = {1 << power for power in range(size.bit_length())} | ({asked} if asked else set())
    for count in sorted(count for count in wanted if count <= size):
        rate = believed_rate(cells, workload, pool, count)
        if rate is not None and (not rates or rate > rates[-1]):
            counts.append(count)
            rates.append(rate)
    if not counts:
        for count in sorted(count for count in wanted if count <= size):
            best = cells.best(workload, pool, count)
            if best is not None:
                return Ladder(counts=(count,), rates=(1.0 / best.iteration_time_s,))
    return Ladder(counts=tuple(counts), rates=tuple(rates))


def least_counts(states: Iterable[JobState], ladders: Mapping[str, Ladder], left: int) -> dict[str, int]:
    """Return the smallest device count of each job, oldest first, while `left` devices last; who does not fit is passed
    over."""
    counts = dict[str, int]()
    for state in sorted(states, key=lambda state: (state.job.submit_s, state.job.id)):
        least = ladders[state.job.id].counts[0]
        if least <= left:
            left -= least
            counts[state.job.id] = least
    return counts
