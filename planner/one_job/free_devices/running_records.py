"""A job that runs, as the files say that list them."""

from __future__ import annotations

from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds `hosts`. `limit_s` is when its time limit ends it, in seconds since 1970 (None: it has none, or
    it stands still); `start_s` when it began, where that is said. `gpus` are the indices that it holds of each host
    (empty: nobody says which), `counts` how many it holds of each (empty: `gpus` say it, or nobody does); `movable`: it
    may be stopped and started elsewhere, which loses `lost_s` of its work. What a learned predictor asks beside: when
    it was submitted, its name, user and partition."""

    job: str
    hosts: tuple[str, ...]
    limit_s: float | None
    start_s: float | None = None
    gpus: tuple[tuple[int, ...], ...] = ()
    counts: tuple[int, ...] = ()
    movable: bool = True
    lost_s: float = 0.0
    submit_s: float | None = None
    name: str = ""
    user: str = ""
    partition: str = ""

    def gpus_on(self, host: str) -> tuple[int, ...] | None:
        """Return the indices of its GPUs on a host of its own; None where nobody says which."""
        return self.gpus[self.hosts.index(host)] if self.gpus else None

    def count_on(self, host: str) -> int | None:
        """Return how many GPUs of a host it holds, where only that is said."""
        return self.counts[self.hosts.index(host)] if self.counts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """The jobs of a file, and when it was written, in seconds since 1970, where it says so."""

    jobs: tuple[RunningJob, ...]
    written_s: float | None
