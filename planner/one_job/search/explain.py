"""Why a plan is the best: what holds it back, what its neighbours lose, and what a change would bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from estimator.pricing.outcome import TimeBreakdown
from planner.one_job.search.best import Best, Candidate, describe_found
from planner.one_job.search.links_used import PLACES, links_used, outermost_link
from planner.one_job.search.request import SearchRequest
from planner.one_job.search.sensitivity import Sensitivity, plan_changes, spare_bytes
from planner.shared.options.search import Objective
from planner.shared.plan import Plan

PARTS = tuple(part.name for part in fields(TimeBreakdown))
AXES = ("tp", "cp", "ep", "dp", "pp")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Seconds of an iteration that communication of an axis takes and nothing hides, and the link that it crosses."""

    axis: str
    seconds: float
    link: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What holds the plan back: `resource` is the one of which a little more would save most (None: none would; where
    compute was measured, what takes most), and `memory_gain` what 8 GiB more would change (None: not tried).

    What an iteration's time is made of on the stage that sets the pace (`ahead`: how far its passes are above the
    stages' mean), and where memory is scarcest: `spare_bytes` are left on a device of `fullest_stage` if the allocator
    keeps nothing that it could give back."""

    resource: str | None
    memory_gain: float | None

    stage: int
    stages: int
    ahead: float
    compute_s: float
    recompute_s: float
    communication: tuple[Exposed, ...]
    bubble_s: float
    optimizer_s: float
    offload_s: float
    fullest_stage: int
    peak_memory_bytes: int
    device_memory_bytes: int
    spare_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The best plan without one choice of the best one (`without`: which; several where it is the same plan).

    `loss` is relative and of the objective, `parts` are seconds that each part of the iteration takes more than with
    the best plan; they sum to `slower_s`. `proved` False: the search was cut short, it loses at least `least_loss`.
    """

    without: tuple[str, ...]
    plan: str
    devices: int
    differences: tuple[str, ...]
    iteration_time_s: float
    simulated_s: float | None
    loss: float
    least_loss: float
    proved: bool
    slower_s: float
    parts: tuple[tuple[str, float], ...]
    peak_memory_bytes: int
    more_memory_bytes: int
    spare_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why `plan` is the best: plain sentences, the certificate, what binds, the runners-up with the least loss first,
    what changes would bring, and what each of the user's own constraints costs."""

    plan: Plan
    objective: Objective
    summary: tuple[str, ...]
    certificate: Certificate
    binding: Binding
    runners_up: tuple[RunnerUp, ...]
    sensitivities: tuple[Sensitivity, ...]
    constraints: tuple[Sensitivity, ...]


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
    from planner.one_job.search.summary import summarise

    certificate, binding = certify(best), find_binding(best.winner, sensitivities)
    runners_up = rank_others(best, others)
    ordered = tuple(sorted(sensitivities, key=lambda one: (one.change, one.name)))
    limits = tuple(sorted(constraints, key=lambda one: (one.change, one.name)))
    return Explanation(
        plan=best.plan,
        objective=request.objective,
        summary=summarise(best, request.objective, certificate, binding, runners_up, ordered, limits),
        certificate=certificate,
        binding=binding,
        runners_up=runners_up,
        sensitivities=ordered,
        constraints=limits,
    )


def certify(best: Best) -> Certificate:
    """What vouches for a plan."""
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


def find_binding(winner: Candidate, sensitivities: Sequence[Sensitivity] = ()) -> Binding:
    """What of the `sensitivities` binds, what the plan's time is made of, and where memory is scarcest."""
    evaluation, setup = winner.evaluation, winner.setup
    breakdown, uses = evaluation.breakdown, links_used(setup)
    pace = 0 if evaluation.pipeline is None else evaluation.pipeline.bottleneck
    passes = [
        one + other for one, other in zip(evaluation.stage_compute_s, evaluation.stage_communication_s, strict=True)
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
    memory = [one.change for one in sensitivities if one.kind == "memory"]
    return Binding(
        resource=_scarcest(sensitivities, breakdown, exposed),
        memory_gain=min(memory, default=None),
        stage=pace,
        stages=len(setup.stages),
        ahead=passes[pace] / (sum(passes) / len(passes)) - 1,
        compute_s=_compute_s(breakdown),
        recompute_s=breakdown.recompute_s,
        communication=tuple(sorted(exposed, key=lambda one: -one.seconds)),
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
    rates = [one for one in sensitivities if one.kind in (*names, "link")]
    if not any(one.kind == "flops" for one in rates):
        link = max(exposed, key=lambda one: one.seconds, default=None)
        if link is None or link.seconds < _compute_s(breakdown) + breakdown.recompute_s:
            return "compute"
    best = min(rates, key=lambda one: one.change, default=None)
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
        found = other.winner.found
        key = (other.winner.space.device, found.degrees, found.schedule, found.cut, found.rule, found.state)
        plans.setdefault(key, ([], other))[0].append(name)
    ranked = [compare_other(best, other, tuple(names)) for names, other in plans.values()]
    return tuple(sorted(ranked, key=lambda one: (one.loss, one.plan)))


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


def describe_explanation(found: Explanation) -> dict[str, Any]:
    """As a value that `json.dumps` takes, but for the plan."""
    certificate = asdict(found.certificate) | {"removed": dict(found.certificate.removed)}
    return {
        "objective": found.objective,
        "summary": list(found.summary),
        "certificate": certificate,
        "binding": asdict(found.binding),
        "runners_up": [asdict(one) | {"parts": dict(one.parts)} for one in found.runners_up],
        "sensitivities": [asdict(one) for one in found.sensitivities],
        "constraints": [asdict(one) for one in found.constraints],
    }
