"""Why a run's estimate is not the one of its plan file: what has been measured since, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.pricing.outcome import Evaluation
from planner.shared.plan import Plan
from profiles.records import dataclass

SAME = 0.002
"""Of an iteration: estimates that differ by less are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What `run --profile` measured and stored, since the store lacked it: layers, and how many times as slow as alone
    so many busy workers are (None: that was known)."""

    layers: int
    workers: int
    slowdown: float | None

    @property
    def sentence(self) -> str:
        """All of it in words; empty where nothing was measured."""
        parts = [f"times of {self.layers} layers"] if self.layers else []
        if self.slowdown is not None:
            parts.append(f"contention ({self.workers} busy workers {self.slowdown:.2f} times as slow as one)")
        return f"measured now and stored: {' and '.join(parts)}" if parts else ""


def changed_inputs(plan: Plan, evaluation: Evaluation, notes: Sequence[str]) -> list[str]:
    """Return what the estimate of a run rests on that the plan file's did not; empty where both are the same number.
    `notes` are those of the cluster as it is now."""
    then_s, now_s = plan.estimate.iteration_time_s, evaluation.iteration_time_s
    if abs(now_s - then_s) <= SAME * then_s:
        return []
    layers = len(set(evaluation.profile_ids) - set(plan.provenance.profile_ids))
    tables = len(set(evaluation.link_table_ids) - set(plan.provenance.link_table_ids))
    measured = [f"the times of {layers} layers"] if layers else []
    measured += [f"{tables} link tables"] if tables else []
    changed = [f"{' and '.join(measured)} that the file's had not"] if measured else []
    changed += [f"{note}; then that was otherwise" for note in notes if note not in plan.assumptions]
    if not changed:
        changed = ["this machine's rates or link tables, measured anew"]
    return [
        f"the plan file says {then_s:.4g} s; this estimate, and any made anew with the store, is {now_s:.4g} s by"
        f" {', and by '.join(changed)}"
    ]
