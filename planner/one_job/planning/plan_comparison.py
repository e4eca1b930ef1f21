"""Two plans side by side: what they do otherwise, and which part of the iteration and of memory that changes."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from estimator.profiling.setting import Framework
from models_zoo.user_code import NO_CODE, UserCode
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import read_plan
from planner.one_job.search.differences import describe_differences
from planner.shared.inputs import open_existing
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan
from planner.shared.plan_parts import PlanMemory
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPair:
    """One part of both plans, in seconds of an iteration or bytes of a device."""

    name: str
    one: float
    other: float

    @property
    def more(self) -> float:
        """What the other takes more."""
        return self.other - self.one


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """`one` beside `other`. `parts` of an iteration sum to `one_s` and `other_s`; `memory` is that of each plan's
    fullest rank, by part where both plans tell. `speed` is how many times as many samples a second `one` has."""

    one: Plan
    other: Plan
    one_s: float
    other_s: float
    speed: float
    differences: tuple[str, ...]
    parts: tuple[PartPair, ...]
    memory: tuple[PartPair, ...]
    notes: tuple[str, ...] = ()


def compare_plans(one: Plan, other: Plan, *, notes: tuple[str, ...] = ()) -> PlanComparison:
    """What `other` does otherwise than `one`, and what of it takes more or less."""
    return PlanComparison(
        one=one,
        other=other,
        one_s=one.estimate.iteration_time_s,
        other_s=other.estimate.iteration_time_s,
        speed=one.estimate.samples_per_s / other.estimate.samples_per_s,
        differences=describe_differences(one, other),
        parts=_parts(one, other),
        memory=_memory(one, other),
        notes=notes,
    )


def compare_with_file(
    plan: Plan, file: Path, *, store: Path | None, profiles: Framework | None, code: UserCode = NO_CODE
) -> PlanComparison:
    """`plan` beside the plan in a file, which is estimated again as `plan` was; `code` is what of the user's own it may
    run. InputError if there is none."""
    recorded = load_plan(file)
    with open_existing(store) as opened:
        request = read_plan(recorded, where=str(file), store=opened, code=code)
        found = estimate_explicit(
            request, evaluate=lambda setup: evaluate_with_store(setup, store=opened, profiles=profiles)
        )
    now_s, then_s = found.plan.estimate.iteration_time_s, recorded.estimate.iteration_time_s
    notes = []
    if not math.isclose(now_s, then_s, rel_tol=1e-6):
        notes.append(f"{file} says {then_s:.4g} s: it was made by another version, or with other measurements")
    if found.shortfall is not None:
        notes.append(f"the plan of {file} does not fit: {found.shortfall}")
    return compare_plans(plan, found.plan, notes=tuple(notes))


def _parts(one: Plan, other: Plan) -> tuple[PartPair, ...]:
    first, second = (asdict(plan.estimate.breakdown) for plan in (one, other))
    return tuple(PartPair(name=name, one=first[name], other=second[name]) for name in first)


def _memory(one: Plan, other: Plan) -> tuple[PartPair, ...]:
    fullest = [max(plan.stages, key=lambda stage: stage.memory_bytes) for plan in (one, other)]
    first, second = (stage.memory for stage in fullest)
    peak = PartPair(name="peak_bytes", one=fullest[0].memory_bytes, other=fullest[1].memory_bytes)
    if not isinstance(first, PlanMemory) or not isinstance(second, PlanMemory):
        return (peak,)
    values = [asdict(memory) for memory in (first, second)]
    names = [name for name in values[0] if not name.endswith("reserve_bytes")]
    return (*(PartPair(name=name, one=values[0][name], other=values[1][name]) for name in names), peak)


def describe_plan_comparison(found: PlanComparison) -> dict[str, Any]:
    """As a value that `json.dumps` takes; the other plan by its settings' differences, not whole."""
    return {
        "iteration_time_s": found.one_s,
        "other_iteration_time_s": found.other_s,
        "speed": found.speed,
        "differences": list(found.differences),
        "parts": [_describe_pair(pair) for pair in found.parts],
        "memory": [_describe_pair(pair) for pair in found.memory],
        "notes": list(found.notes),
    }


def _describe_pair(pair: PartPair) -> dict[str, Any]:
    return {"name": pair.name, "one": pair.one, "other": pair.other, "more": pair.more}
