"""A present setting beside the best plan: both times, and what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.one_job.explicit.request import ExplicitRequest
from planner.one_job.explicit.unsaid import Evaluate
from planner.one_job.search.differences import describe_differences
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_to_values
from profiles.records import dataclass

FindBest = Callable[[ExplicitRequest, Evaluate], Plan | None]
"""The best plan for the job of a request (its model, batch, cluster and software; its setup is what is compared with),
priced by the same function as the setup. None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The seconds of an iteration of both, `speedup` of the best over the present, and phrases about what differs.
    `fits` False: the present setting lacks memory."""

    present_s: float
    best_s: float
    best: Plan
    differences: tuple[str, ...]
    fits: bool = True

    @property
    def speedup(self) -> float:
        """How many times as fast the best is."""
        return self.present_s / self.best_s


def compare(estimated: Plan, best: Plan | None, *, fits: bool = True) -> Comparison | None:
    """The estimated plan, which `fits` or not, beside the best; None where there is none to compare it with."""
    if best is None:
        return None
    return Comparison(
        present_s=estimated.estimate.iteration_time_s,
        best_s=best.estimate.iteration_time_s,
        best=best,
        differences=describe_differences(estimated, best),
        fits=fits,
    )


def describe_comparison(comparison: Comparison | None) -> dict[str, Any] | None:
    """As a value that `json.dumps` takes."""
    if comparison is None:
        return None
    return {
        "iteration_time_s": comparison.present_s,
        "best_iteration_time_s": comparison.best_s,
        "speedup": comparison.speedup,
        "fits": comparison.fits,
        "differences": list(comparison.differences),
        "notes": _notes(comparison.best),
        "best": plan_to_values(comparison.best),
    }


def _notes(best: Plan) -> list[str]:
    """What the best plan is the best of, and whether that is proved."""
    sure = "proved: none of them is faster" if best.provenance.optimality_proved else "not proved"
    return [*best.assumptions, sure]
