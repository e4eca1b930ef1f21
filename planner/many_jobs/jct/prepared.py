"""A trace ready to train on."""

from __future__ import annotations

from planner.many_jobs.jct.features import Matrix, job_features
from planner.many_jobs.jct.groups import columns_of
from planner.many_jobs.jct.intervals import interval_of
from planner.many_jobs.jct.jobs import Floats, Jobs
from profiles.errors import InputError
from profiles.records import dataclass

MOST_CAP = 2016


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A trace ready to train on: its features are the slow part and are made once."""

    jobs: Jobs
    cap: int
    columns: tuple[str, ...]
    features: Matrix
    interval: Floats

    @property
    def product_s(self) -> Floats | None:
        """Iterations times iteration time, where the trace tells it."""
        return self.jobs.numbers.get("product_s")


def prepare(jobs: Jobs, cap: int, columns: tuple[str, ...] | None = None) -> Prepared:
    """Return the trace with its features, of `columns` (default: its own), and its durations as intervals of 600 s up
    to `cap`. Raise InputError for a cap outside 2 to 2016 intervals (two weeks)."""
    if not 2 <= cap <= MOST_CAP:
        raise InputError(where="jct", key="--cap", found=cap, expected=f"2 to {MOST_CAP} intervals of 600 s")
    return Prepared(
        jobs=jobs,
        cap=cap,
        columns=columns_of(jobs) if columns is None else columns,
        features=job_features(jobs, cap, columns),
        interval=interval_of(jobs.duration_s, cap),
    )
