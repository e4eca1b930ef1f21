"""What vouches for the best plan of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.one_job.search.best import Best


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """How large the space is, what removed what, and what is proved. `considered` ways to share the devices, of which
    `removed` took some by rule; of the `ways` left, `bounded` can hold no better plan, and in the others `plans` were
    priced. No plan's value falls below `lower_bound` (`gap`: how far the best is above it). `simulated_s`: the
    iteration by events, None where there is no pipeline."""

    considered: int
    removed: tuple[tuple[str, int], ...]
    ways: int
    bounded: int
    families: int
    plans: int
    out_of_memory: int
    proved: bool
    value: float
    lower_bound: float
    gap: float | None
    iteration_time_s: float
    simulated_s: float | None


def certify(best: Best) -> Certificate:
    """Return what vouches for the plan of a search."""
    counts, winner = best.counts, best.winner
    removed = sorted(counts.removed.items(), key=lambda pair: (-pair[1], pair[0]))
    return Certificate(
        considered=counts.considered,
        removed=tuple(removed),
        ways=counts.ways,
        bounded=counts.bounded,
        families=counts.families,
        plans=counts.plans,
        out_of_memory=counts.out_of_memory,
        proved=best.proved,
        value=winner.found.value,
        lower_bound=best.lower_bound,
        gap=best.gap if math.isfinite(best.gap) else None,
        iteration_time_s=winner.evaluation.iteration_time_s,
        simulated_s=winner.simulated_s,
    )
