"""Why not another choice: the best plan with something asked for, beside the best plan, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, get_args

from planner.one_job.explicit.request import recompute_rule
from planner.one_job.planning.plan_comparison import PartPair, PlanComparison, compare_plans
from planner.one_job.search.best import Best, Progress, find_best
from planner.one_job.search.spaces.constraints import NUMBERS, Constraints, read_numbers
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.spaces.stated import SCHEDULES
from planner.one_job.search.varied import with_constraints
from planner.shared.options.search import Freedom
from planner.shared.options.training import RECOMPUTE
from planner.shared.plan import Plan, PlanStage
from profiles.errors import InputError, NothingFits
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind, ScheduleName

Change = Callable[[Constraints], Constraints]
Holds = Callable[[Plan], bool]

WORDS = ("recompute", "schedule", "sequence-parallel", "offload")
"""What is asked for beside numbers."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked for instead, as written: how it narrows a space, and whether a plan has it already."""

    text: str
    change: Change
    holds: Holds
    tp: int = 1


@dataclass(frozen=True, kw_only=True)
class WhyNot:
    """The answer to one question. `already`: the best plan has what is asked for. Else `comparison` sets the best plan
    that has it beside the best plan, of which `proved` tells whether none with it is better and `loss` how much more of
    the objective it takes (relative); or nothing that has it fits, and `reason` says why."""

    asked: str
    already: bool
    proved: bool = False
    loss: float | None = None
    comparison: PlanComparison | None = None
    device_memory_bytes: int | None = None
    reason: str | None = None

    @property
    def parts(self) -> tuple[PartPair, ...]:
        """The parts of the iteration that differ, as people are told of them."""
        return () if self.comparison is None else parts_that_differ(self.comparison)

    @property
    def differences(self) -> tuple[str, ...]:
        """What the plan with it does otherwise, as people are told: of other stages or chunks not the layers too."""
        phrases = () if self.comparison is None else self.comparison.differences
        cut = any(phrase.startswith(("pp ", "chunks a stage ")) for phrase in phrases)
        return tuple(phrase for phrase in phrases if not (cut and phrase.startswith("layers of the stages ")))


def read_asked(text: str) -> Asked:
    """Return what `text` asks for: NAME=VALUE pairs with commas between, all at once. Raise InputError where it asks
    for nothing that there is.

    >>> read_asked("tp=8,recompute=full").text
    'tp=8, recompute=full'
    """
    pairs = [pair.strip() for pair in text.split(",")]
    names = [pair.partition("=")[0].strip().lower().replace("_", "-") for pair in pairs]
    if len(set(names)) != len(names):
        _refuse(text, "each name once")
    words = {name: pair.partition("=")[2].strip() for name, pair in zip(names, pairs, strict=True) if name in WORDS}
    stated = tuple(pair for name, pair in zip(names, pairs, strict=True) if name not in WORDS)
    numbers = _read_numbers(text, stated)
    parts = [_read_word(text, name, value) for name, value in words.items()]

    def change(limits: Constraints) -> Constraints:
        narrowed = replace(limits, fix={**limits.fix, **numbers})
        if "zero" in numbers:
            narrowed = replace(narrowed, zero=(0, 1, 2, 3))
        for narrow, _ in parts:
            narrowed = narrow(narrowed)
        return narrowed

    def holds(plan: Plan) -> bool:
        each = all(_number_of(plan, name) == {value} for name, value in numbers.items())
        return each and all(has(plan) for _, has in parts)

    return Asked(text=", ".join(pairs), change=change, holds=holds, tp=numbers.get("tp", 1))


def explain_why_not(
    best: Best, request: SearchRequest, asked: Sequence[Asked], *, progress: Progress | None = None
) -> tuple[WhyNot, ...]:
    """Return what the best plan that has each of `asked` loses against `best`, the best of `request`."""
    return tuple(_why_not(best, request, question, progress) for question in asked)


def _why_not(best: Best, request: SearchRequest, asked: Asked, progress: Progress | None) -> WhyNot:
    if asked.holds(best.plan):
        return WhyNot(asked=asked.text, already=True)
    narrowed = with_constraints(request, asked.change)
    if any(asked.tp > part.space.island for part in request.spaces):
        wide: frozenset[Freedom] = frozenset({"tp-across-islands"})
        narrowed = with_constraints(narrowed, lambda limits: replace(limits, allow=limits.allow | wide))
    try:
        other = find_best(narrowed, progress=progress)
    except NothingFits as failure:
        return WhyNot(asked=asked.text, already=False, reason=str(failure))
    fullest = max(other.winner.evaluation.memory, key=lambda rank: rank.peak_bytes)
    return WhyNot(
        asked=asked.text,
        already=False,
        proved=other.proved,
        loss=other.winner.found.value / best.winner.found.value - 1,
        comparison=compare_plans(best.plan, other.plan),
        device_memory_bytes=other.winner.evaluation.device_memory_bytes[fullest.stage],
    )


def parts_that_differ(comparison: PlanComparison, *, least: float = 5e-4) -> tuple[PartPair, ...]:
    """Return the parts of the iteration that differ by more than a share of it, the largest difference first."""
    total_s = max(comparison.one_s, comparison.other_s)
    kept = [pair for pair in comparison.parts if abs(pair.more) > least * total_s]
    return tuple(sorted(kept, key=lambda pair: -abs(pair.more)))


def describe_why_not(answer: WhyNot) -> dict[str, Any]:
    """Return it as a value that `json.dumps` takes."""
    comparison = answer.comparison
    described: dict[str, Any] = {
        "asked": answer.asked,
        "already": answer.already,
        "fits": answer.already or comparison is not None,
        "reason": answer.reason,
        "proved": answer.proved,
        "loss": answer.loss,
    }
    if comparison is None:
        return described
    return described | {
        "iteration_time_s": comparison.one_s,
        "other_iteration_time_s": comparison.other_s,
        "differences": list(comparison.differences),
        "parts": [_describe_pair(pair) for pair in parts_that_differ(comparison, least=0.0)],
        "memory": [_describe_pair(pair) for pair in comparison.memory],
        "device_memory_bytes": answer.device_memory_bytes,
    }


def _describe_pair(pair: PartPair) -> dict[str, Any]:
    return {"name": pair.name, "best": pair.one, "other": pair.other, "more": pair.more}


# What is asked for


def _read_numbers(text: str, pairs: tuple[str, ...]) -> dict[Any, int]:
    names = ", ".join((*(name.replace("_", "-") for name in NUMBERS), *WORDS))
    for pair in pairs:
        if pair.partition("=")[0].strip().lower().replace("-", "_") not in NUMBERS:
            _refuse(text, f"NAME=VALUE such as tp=8, or several with commas between; NAME one of {names}")
    numbers = read_numbers("--why", tuple(pair.lower() for pair in pairs))
    if numbers.get("zero", 0) > 3:
        _refuse(text, "zero=0 to zero=3")
    return dict(numbers)


def _read_word(text: str, name: str, value: str) -> tuple[Change, Holds]:
    """How a space is narrowed to plans whose `name` is `value`, and whether a plan is one."""
    if name == "recompute":
        return _read_recompute(text, value)
    if name == "schedule":
        schedule: ScheduleName | None = next((each for each in SCHEDULES if each == value), None)
        if schedule is None:
            _refuse(text, f"schedule={'|'.join(SCHEDULES)}")
        only = (schedule,)
        return lambda limits: replace(limits, schedules=only), lambda plan: plan.schedule == value
    if value not in ("on", "off"):
        _refuse(text, f"{name}=on or {name}=off")
    if name == "offload":
        if value == "on":
            _refuse(text, "offload=off: no search must have state in host memory")
        return lambda limits: replace(limits, offload=False), lambda plan: not any(s.offload for s in plan.stages)
    shares = value == "on"

    def as_asked(plan: Plan) -> bool:
        return all(stage.sequence_parallel == shares for stage in plan.stages if stage.tp > 1)

    return lambda limits: replace(limits, shares_tokens=shares), as_asked


def _read_recompute(text: str, value: str) -> tuple[Change, Holds]:
    if value == "auto" or not RECOMPUTE.holds(value):
        _refuse(text, f"recompute={'|'.join(get_args(RecomputeKind))}, or recompute=full:LAYERS")
    kind, layers = recompute_rule(value)

    def recomputes(plan: Plan) -> bool:
        rules = [stage.recompute for stage in plan.stages]
        if layers is not None:
            return all(rule.kind == kind and rule.layers == layers for rule in rules)
        return any(rule.kind == kind for rule in rules) and {rule.kind for rule in rules} <= {kind, "none"}

    return lambda limits: replace(limits, recompute=(kind,), recompute_layers=layers), recomputes


def _number_of(plan: Plan, name: str) -> set[float]:
    """What number of that name a plan has: of each stage, where these may differ."""
    if name in ("pp", "devices", "micro_batches"):
        numbers = {"pp": len(plan.stages), "devices": len(plan.devices), "micro_batches": plan.batch.micro_batches}
        return {numbers[name]}

    def of_stage(stage: PlanStage) -> float:
        if name == "zero":
            return stage.sharding.zero
        if name == "vpp":
            return len(stage.chunks)
        return plan.batch.micro_batch / stage.dp if name == "micro_batch" else float(getattr(stage, name))

    return {of_stage(stage) for stage in plan.stages}


def _refuse(text: str, expected: str) -> NoReturn:
    raise InputError(where="plan", key="--why", found=repr(text), expected=expected)
