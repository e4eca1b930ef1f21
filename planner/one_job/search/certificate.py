"""What vouches for the best plan of a search."""

from __future__ import annotations

import math
from dataclasses import asdict

from planner.one_job.search.best import Best
from planner.one_job.search.spaces.found import Counts
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(Counts):
    """How large the space is and what removed what, and what is proved. No plan's value falls below
    `lower_bound` (`gap`: how far the best is above it). `simulated_s`: the iteration by events, None where there is no
    pipeline."""

    proved: bool
    value: float
    lower_bound: float
    gap: float | None
    iteration_time_s: float
    simulated_s: float | None


def certify(best: Best) -> Certificate:
    """Return what vouches for the plan of a search."""
    counts, winner = best.counts, best.winner
    figures = asdict(counts)
    figures["removed"] = dict(sorted(counts.removed.items(), key=lambda pair: (-pair[1], pair[0])))
    return Certificate(
        **figures,
        proved=best.proved,
        value=winner.found.value,
        lower_bound=best.lower_bound,
        gap=best.gap if math.isfinite(best.gap) else None,
        iteration_time_s=winner.evaluation.iteration_time_s,
        simulated_s=winner.simulated_s,
    )
