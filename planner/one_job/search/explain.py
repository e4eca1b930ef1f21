"""Why a plan is the best: what holds it back, what its neighbours lose, and what a change would bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from estimator.pricing.outcome import TimeBreakdown
from planner.one_job.search.best import Best, Candidate, describe_found, effects_of
from planner.one_job.search.certificate import certify
from planner.one_job.search.explanation import Binding, Explanation, Exposed, RunnerUp
from planner.one_job.search.links_used import PLACES, links_used, outermost_link
from planner.one_job.search.sensitivity import Sensitivity, plan_changes, spare_bytes
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.summary import summarise

PARTS = tuple(part.name for part in fields(TimeBreakdown))
AXES = ("tp", "cp", "ep", "dp", "pp")


def explain(
    best: Best,
    request: SearchRequest,
    *,
    others: Sequence[tuple[str, Best]] = (),
    sensitivities: Sequence[Sensitivity] = (),
    constraints: Sequence[Sensitivity] = (),
) -> Explanation:
    """The explanation of `best`, out of searches of the `others` (the best plan without one of its choices) and of
    changed requests."""
    certificate, binding = certify(best), find_binding(best.winner, sensitivities)
    runners_up = rank_others(best, others)
    ordered = tuple(sorted(sensitivities, key=lambda tried: (tried.change, tried.name)))
    limits = tuple(sorted(constraints, key=lambda tried: (tried.change, tried.name)))
    return Explanation(
        plan=best.plan,
        objective=request.objective,
        summary=summarise(best, request.objective, certificate, binding, runners_up, ordered, limits),
        certificate=certificate,
        binding=binding,
        runners_up=runners_up,
        sensitivities=ordered,
        constraints=limits,
        effects=effects_of(best),
    )


def find_binding(winner: Candidate, sensitivities: Sequence[Sensitivity] = ()) -> Binding:
    """What of the `sensitivities` binds, what the plan's time is made of, and where memory is scarcest."""
    evaluation, setup = winner.evaluation, winner.setup
    breakdown, uses = evaluation.breakdown, links_used(setup)
    pace = 0 if evaluation.pipeline is None else evaluation.pipeline.bottleneck
    passes = [
        each + other for each, other in zip(evaluation.stage_compute_s, evaluation.stage_communication_s, strict=True)
    ]
    exposed = []
    for axis in AXES:
        seconds = getattr(breakdown, f"{axis}_s")
        if seconds > 0:
            use = outermost_link(uses, axis)
            link = None if use is None else f"{use.link} {PLACES[use.place]}"
            exposed.append(Exposed(axis=axis, seconds=seconds, link=link))
    spare = spare_bytes(winner)
    fullest = min(range(len(spare)), key=lambda stage: spare[stage])
    memory = [each.change for each in sensitivities if each.kind == "memory"]
    return Binding(
        resource=_scarcest(sensitivities, breakdown, exposed),
        memory_gain=min(memory, default=None),
        stage=pace,
        stages=len(setup.stages),
        ahead=passes[pace] / (sum(passes) / len(passes)) - 1,
        compute_s=_compute_s(breakdown),
        recompute_s=breakdown.recompute_s,
        communication=tuple(sorted(exposed, key=lambda each: -each.seconds)),
        bubble_s=breakdown.bubble_s,
        optimizer_s=breakdown.optimizer_s,
        offload_s=breakdown.offload_s,
        fullest_stage=fullest,
        peak_memory_bytes=evaluation.memory[fullest].peak_bytes,
        device_memory_bytes=evaluation.device_memory_bytes[fullest],
        spare_bytes=spare[fullest],
    )


def _scarcest(sensitivities: Sequence[Sensitivity], breakdown: TimeBreakdown, exposed: Sequence[Exposed]) -> str | None:
    """The resource of which more saves most; where compute was measured and so not varied, what takes most."""
    names = {"flops": "compute", "memory_bandwidth": "memory bandwidth"}
    rates = [each for each in sensitivities if each.kind in (*names, "link")]
    if not any(each.kind == "flops" for each in rates):
        link = max(exposed, key=lambda each: each.seconds, default=None)
        if link is None or link.seconds < _compute_s(breakdown) + breakdown.recompute_s:
            return "compute"
    best = min(rates, key=lambda each: each.change, default=None)
    if best is None or best.change >= 0:
        return None
    return names.get(best.kind, best.name.removeprefix("10% faster "))


def _compute_s(breakdown: TimeBreakdown) -> float:
    names = ("gemm_s", "attention_s", "convolution_s", "memory_bound_s", "launch_s")
    return math.fsum(getattr(breakdown, name) for name in names)


def rank_others(best: Best, others: Sequence[tuple[str, Best]]) -> tuple[RunnerUp, ...]:
    """The different plans among `others`, each under all names that it has, the least loss first."""
    plans: dict[object, tuple[list[str], Best]] = {}
    for name, other in others:
        plan = other.winner.found
        key = (other.winner.space.device, plan.degrees, plan.schedule, plan.cut, plan.rule, plan.state)
        plans.setdefault(key, ([], other))[0].append(name)
    ranked = [compare_other(best, other, tuple(names)) for names, other in plans.values()]
    return tuple(sorted(ranked, key=lambda runner_up: (runner_up.loss, runner_up.plan)))


def compare_other(best: Best, other: Best, names: tuple[str, ...]) -> RunnerUp:
    """What the plan of `other` loses against that of `best`, part by part."""
    winner, candidate = best.winner, other.winner
    took, least = candidate.evaluation.breakdown, winner.evaluation.breakdown
    value = winner.found.value
    return RunnerUp(
        without=names,
        plan=describe_found(candidate.found),
        devices=candidate.setup.devices,
        differences=plan_changes(best, other),
        iteration_time_s=candidate.evaluation.iteration_time_s,
        simulated_s=candidate.simulated_s,
        loss=candidate.found.value / value - 1,
        least_loss=other.lower_bound / value - 1,
        proved=other.proved,
        slower_s=candidate.evaluation.iteration_time_s - winner.evaluation.iteration_time_s,
        parts=tuple((name, getattr(took, name) - getattr(least, name)) for name in PARTS),
        peak_memory_bytes=candidate.evaluation.peak_memory_bytes,
        more_memory_bytes=candidate.evaluation.peak_memory_bytes - winner.evaluation.peak_memory_bytes,
        spare_bytes=min(spare_bytes(candidate)),
    )


def describe_explanation(explanation: Explanation) -> dict[str, Any]:
    """Return it as a value that `json.dumps` takes, but for the plan."""
    return {
        "objective": explanation.objective,
        "summary": list(explanation.summary),
        "certificate": asdict(explanation.certificate),
        "binding": asdict(explanation.binding),
        "runners_up": [asdict(other) | {"parts": dict(other.parts)} for other in explanation.runners_up],
        "sensitivities": [asdict(change) for change in explanation.sensitivities],
        "constraints": [asdict(limit) for limit in explanation.constraints],
        "assumption_effects": [asdict(effect) for effect in explanation.effects],
    }
