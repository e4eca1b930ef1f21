"""What rates are worth: the work that is done, and whether every job stays below a cap on its slowdown."""

from __future__ import annotations

from collections.abc import Iterable

from planner.contention.policies.records import Contender

WITHIN = 1e-9
"""A slowdown that is above a cap by no more, relatively, keeps it."""

CAP_PARTS = 10_000
"""Of 1: to so much the smallest cap is said, rounded up."""


def work_per_s(jobs: Iterable[Contender], rates: Iterable[float]) -> float:
    """Return FLOP/s of all jobs (Crux, eq. 1, over time)."""
    return sum(job.flops * rate for job, rate in zip(jobs, rates, strict=True))


def slowdowns(jobs: Iterable[Contender], rates: Iterable[float]) -> tuple[float, ...]:
    """Return how many times as long as alone each job's iteration takes; inf of one that gets nowhere."""
    return tuple(1 / (rate * job.alone_s) if rate > 0 else float("inf") for job, rate in zip(jobs, rates, strict=True))


def excess_of(worst: float, cap: float | None) -> float:
    """Return by how much the worst slowdown is above the cap; 0 where it keeps it, or there is none."""
    return 0.0 if cap is None or worst <= cap * (1 + WITHIN) else worst - cap
