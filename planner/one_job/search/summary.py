"""The explanation of a plan in a few sentences, as an engineer would say it."""

from __future__ import annotations

from collections.abc import Sequence

from planner.one_job.search.best import Best
from planner.one_job.search.certificate import Certificate
from planner.one_job.search.explanation import Binding, RunnerUp
from planner.one_job.search.sensitivity import Sensitivity
from planner.one_job.search.varied import ALL
from planner.shared.options.search import Objective
from planner.shared.words import TIME_NAMES, format_seconds, percent

CLOSE = 0.01
"""Estimates of two plans that differ by less do not tell which one is faster."""
HARDLY = 0.005
NOTHING = 5e-4
"""Changes of less are hardly any, and none."""

PART_NAMES = TIME_NAMES | {"bubble_s": "the bubble", "optimizer_s": "the optimizer's step"}
"""As a sentence has them."""


def summarise(
    best: Best,
    objective: Objective,
    certificate: Certificate,
    binding: Binding,
    runners_up: Sequence[RunnerUp],
    sensitivities: Sequence[Sensitivity],
    constraints: Sequence[Sensitivity],
) -> tuple[str, ...]:
    """Three to six sentences: the plan and its time, what binds, the runner-up, what would help, what limits cost, and
    what is not proved."""
    said = [
        _where_the_time_goes(best, objective, binding),
        _what_binds(binding, sensitivities),
        _runner_up(objective, runners_up),
        _what_helps(sensitivities),
        _what_limits_cost(constraints),
    ]
    said.append(_by_events(certificate, runners_up))
    if not certificate.proved:
        said.append(not_proved(certificate))
    return tuple(sentence for sentence in said if sentence)


def not_proved(certificate: Certificate) -> str:
    """How far a better plan may be."""
    gap = "an unknown amount" if certificate.gap is None else f"at most {certificate.gap:.1%}"
    return f"The search was cut short after {certificate.families} families of plans: some plan may be {gap} better."


def _where_the_time_goes(best: Best, objective: Objective, binding: Binding) -> str:
    total = best.winner.evaluation.iteration_time_s
    parts = [f"{binding.compute_s / total:.0%} of it computes"]
    if binding.recompute_s > NOTHING * total:
        parts.append(f"{binding.recompute_s / total:.1%} recomputes")
    waiting = sum(exposed.seconds for exposed in binding.communication)
    if waiting > NOTHING * total:
        most = max(binding.communication, key=lambda exposed: exposed.seconds)
        over = f" over {most.link}" if most.link else ""
        which = "" if len(binding.communication) == 1 else "most of it "
        parts.append(f"{waiting / total:.1%} waits for communication ({which}{most.axis}{over})")
    if binding.bubble_s > NOTHING * total:
        parts.append(f"{binding.bubble_s / total:.1%} is pipeline bubble")
    rest = (binding.optimizer_s + binding.offload_s) / total
    if rest > 10 * NOTHING:
        parts.append(f"{rest:.1%} is the optimizer's step")
    pace = ""
    if binding.stages > 1:
        ahead = f", {binding.ahead:.1%} above the stages' mean" if binding.ahead > NOTHING else ""
        pace = f"; stage {binding.stage} of {binding.stages} sets the pace{ahead}"
    value = best.winner.found.value
    amounts = {
        "time": "",
        "cost": f" and costs {value:.3g} in the cluster file's currency",
        "energy": f" and {value / 3.6e6:.3g} kWh",
    }
    return f"An iteration takes {format_seconds(total)}{amounts[objective]}: {_listed(parts)}{pace}."


def _what_binds(binding: Binding, sensitivities: Sequence[Sensitivity]) -> str:
    gib = 2**30
    where = "the devices" if binding.stages == 1 else f"the fullest devices, of stage {binding.fullest_stage},"
    left = f"{where} have {binding.spare_bytes / gib:.1f} of {binding.device_memory_bytes / gib:.1f} GiB left"
    binds = f"{binding.resource[0].upper()}{binding.resource[1:]} binds" if binding.resource else "No rate binds"
    if binding.memory_gain is None:
        return f"{binds}; {left}."
    more = next(change for change in sensitivities if change.kind == "memory")
    least = next((change for change in sensitivities if change.kind == "least_memory"), None)
    if more.change > -NOTHING:
        said = f"{binds}, memory does not: {left}, and {more.name} would bring nothing"
    else:
        does = ", and so does memory" if more.change <= -HARDLY else "; memory hardly does"
        said = f"{binds}{does}: {left}; {more.name} would bring {percent(more.change)}{_instead(more)}"
    if least is not None and more.change < least.change < -NOTHING:
        said += f", {least.name.partition(' more')[0]} already {percent(least.change)}{_instead(least)}"
    return f"{said}."


def _instead(change: Sensitivity) -> str:
    return f" ({'; '.join(change.differences[:3])})" if change.differences else ""


def _runner_up(objective: Objective, runners_up: Sequence[RunnerUp]) -> str:
    if not runners_up:
        return "No plan that does otherwise is possible."
    first = runners_up[0]
    said = f"The closest other plan ({first.without[0]}) {_loses(objective, first)}"
    if first.loss >= CLOSE:
        return f"{said}."
    if first.loss >= 5e-5:
        said += ": less than estimates tell apart"
    clear = next((other for other in runners_up if other.loss >= CLOSE), None)
    worse = {"time": "slower", "cost": "dearer", "energy": "more wasteful"}[objective]
    after = (
        "" if clear is None else f" The first that is clearly {worse} ({clear.without[0]}) {_loses(objective, clear)}."
    )
    return f"{said}.{after}"


def _loses(objective: Objective, other: RunnerUp) -> str:
    """`loses 1.2%, most of it by the bubble (+0.3 s)`."""
    name, more_s = max(other.parts, key=lambda pair: pair[1])
    most = f", most of it by {PART_NAMES[name]} (+{format_seconds(more_s)})" if more_s > 0 else ""
    if other.loss < 5e-5:
        return "is as good"
    if objective != "time":
        took = format_seconds(other.iteration_time_s)
        return f"loses {percent(other.loss).lstrip('+')}, with {took} on {other.devices} devices"
    return f"loses {percent(other.loss).lstrip('+')}{most}"


def _by_events(certificate: Certificate, runners_up: Sequence[RunnerUp]) -> str:
    """Where running the pipelines by events, in place of the closed form, turns the order round."""

    def stretch(plan: Certificate | RunnerUp) -> float:
        return (plan.simulated_s or plan.iteration_time_s) / plan.iteration_time_s

    changes = [((1 + other.loss) * stretch(other) / stretch(certificate) - 1, other) for other in runners_up]
    change, first = min(changes, key=lambda pair: pair[0], default=(0.0, None))
    if first is None or change > -NOTHING:
        return ""
    return f"Run by events another plan ({first.without[0]}) would be better, by {-change:.1%}: measure both."


def _what_helps(sensitivities: Sequence[Sensitivity]) -> str:
    helpful = [
        change for change in sensitivities if change.kind not in ("memory", "least_memory") and change.change < -NOTHING
    ]
    if not helpful:
        return "None of the changes that were tried would help." if sensitivities else ""
    named = [f"{change.name} ({percent(change.change)})" for change in helpful[:2]]
    idle = [change.name for change in sensitivities if change.kind == "link" and change.change > -HARDLY]
    said = f"What would help most: {_listed(named)}"
    return f"{said}; links hardly matter." if idle and len(idle) == _links(sensitivities) else f"{said}."


def _links(sensitivities: Sequence[Sensitivity]) -> int:
    return sum(change.kind == "link" for change in sensitivities)


def _what_limits_cost(constraints: Sequence[Sensitivity]) -> str:
    if not constraints:
        return ""
    single = [limit for limit in constraints if limit.name != ALL]
    costly = [limit for limit in single if limit.change < -NOTHING][:3]
    whole = next((limit for limit in constraints if limit.name == ALL), None)
    most = min((limit.change for limit in single), default=0.0)
    if whole is not None and whole.change < min(most, 0.0) - NOTHING:
        costly.append(whole)
    if not costly:
        return "None of your constraints costs anything."
    return f"Of your constraints {_listed([f'{_named(limit)} {_cost(limit)}' for limit in costly])}."


def _named(limit: Sensitivity) -> str:
    return "all together cost" if limit.name == ALL else f"{limit.name} costs"


def _cost(limit: Sensitivity) -> str:
    return percent(1 / (1 + limit.change) - 1).lstrip("+")


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
