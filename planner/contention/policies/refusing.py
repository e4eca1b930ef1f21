"""Why a cap on slowdowns is refused: which job breaks it, and the smallest cap that works."""

from __future__ import annotations

from math import ceil, isfinite

from planner.contention.policies.exhaustive import Best
from planner.contention.policies.records import View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import CAP_PARTS, WITHIN


def refusal(view: View, rehearsals: Rehearsals, best: Best, cap: float) -> str:
    """Return what to tell users of the best that was found, which does not keep the cap."""
    rates = rehearsals.iterations_per_s(best.paths, best.levels)
    slowest = min(range(len(rates)), key=lambda job: (rates[job] * view.jobs[job].alone_s, view.jobs[job].id))
    known = "works" if best.proved else "was found to work"
    least = ceil(best.slowdown * (1 + WITHIN) * CAP_PARTS) / CAP_PARTS if isfinite(best.slowdown) else None
    if least is None:
        return f"job {view.jobs[slowest].id}: nothing that was found lets it run at all; no cap {known}"
    return (
        f"job {view.jobs[slowest].id}: no paths and levels keep its iteration within {cap:g} times alone;"
        f" the smallest cap that {known} is {least:.4f}"
    )
