"""What came of a run: losses, seconds and memory, rank by rank, whatever ran it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from estimator.profiling.setting import low_quantile
from planner.one_job.running.spans import Span
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What all workers of a run are told. `plan` is the plan file's text, `data` a file of tokens (None: random ones).
    `warm_ups` iterations are trained, but not counted as measured."""

    plan: str
    steps: int
    warm_ups: int
    seed: int
    learning_rate: float
    backend: str
    timeout_s: float
    threads: int
    data: str | None
    data_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIteration:
    """One iteration of one rank; `loss` is its part of the global batch's mean (None: another rank's to say).
    `cpu_seconds` is what its process computed meanwhile (None where that is not known)."""

    seconds: float
    loss: float | None
    spans: tuple[Span, ...]
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """All iterations, `iterations[step][rank]`, the warm-ups first, and each rank's peak of memory: of what its
    training took, and of its whole process on the host."""

    warm_ups: int
    iterations: tuple[tuple[RankIteration, ...], ...]
    peak_memory_bytes: tuple[int, ...]
    process_peak_bytes: tuple[int, ...]
    software: str

    @property
    def losses(self) -> tuple[float, ...]:
        """The global batch's mean loss in each iteration, warm-ups included."""
        return tuple(sum(rank.loss for rank in ranks if rank.loss is not None) for ranks in self.iterations)

    @property
    def iteration_times_s(self) -> tuple[float, ...]:
        """Seconds of the slowest rank in each measured iteration."""
        return tuple(max(rank.seconds for rank in ranks) for ranks in self.measured)

    @property
    def iteration_time_s(self) -> float:
        """Their 10th percentile, as of a profile: what other work on the machine disturbs least."""
        return low_quantile(self.iteration_times_s)

    @property
    def median_iteration_time_s(self) -> float:
        """Their median: what somebody who waits sees."""
        return median(self.iteration_times_s)

    @property
    def measured(self) -> Sequence[tuple[RankIteration, ...]]:
        """The iterations after the warm-ups."""
        return self.iterations[self.warm_ups :]

    @property
    def typical(self) -> tuple[RankIteration, ...]:
        """The measured iteration whose time is `iteration_time_s`: all of a run that is taken apart."""
        return self.measured[self.iteration_times_s.index(self.iteration_time_s)]
