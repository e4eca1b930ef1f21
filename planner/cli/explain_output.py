"""Why a plan is the best, for people; and two plans side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.cli.output import format_bytes, format_seconds, print_items, print_notes, print_table, print_text
from planner.shared.words import TIME_NAMES, percent

if TYPE_CHECKING:
    from planner.one_job.planning.plan_comparison import PartPair, PlanComparison
    from planner.one_job.search.certificate import Certificate
    from planner.one_job.search.explanation import Binding, Explanation, RunnerUp
    from planner.one_job.search.sensitivity import Sensitivity

COLUMNS: dict[str, tuple[str, ...]] = {
    "compute": ("gemm_s", "attention_s", "convolution_s", "memory_bound_s", "launch_s"),
    "recomp.": ("recompute_s",),
    "tp": ("tp_s",),
    "cp": ("cp_s",),
    "ep": ("ep_s",),
    "dp": ("dp_s",),
    "pp": ("pp_s",),
    "bubble": ("bubble_s",),
    "optim.": ("optimizer_s", "offload_s"),
}
"""Columns of the runners-up and the parts of an iteration that each sums; together they are all parts."""
MOST_SHOWN = 8
MOST_COLUMNS = 7
SEEN = 1e-3
"""Parts that are never more than this share of an iteration have no column."""

MEMORY_NAMES = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "activation_bytes": "activations",
    "temporary_bytes": "temporary tensors",
    "communication_bytes": "communication buffers",
    "peak_bytes": "peak of the fullest device",
}
OBJECTIVES = {"time": "time", "cost": "cost", "energy": "energy"}


def print_explanation(explanation: Explanation) -> None:
    """The summary, what binds, the runners-up, what changes would bring, what constraints cost, and the space."""
    print_notes("why this plan:", explanation.summary)
    print()
    _print_binding(explanation.binding, explanation.plan.estimate.iteration_time_s)
    _print_runners_up(explanation)
    _print_changes(explanation)
    _print_space(explanation.certificate)


def _print_binding(binding: Binding, total: float) -> None:
    """Where the time goes on the stage that sets the pace, by what it waits for."""
    rows = [("compute", binding.compute_s, ""), ("recomputation", binding.recompute_s, "")]
    rows += [
        (f"communication of {waiting.axis}", waiting.seconds, f"over {waiting.link}" if waiting.link else "")
        for waiting in binding.communication
    ]
    rows += [("pipeline bubble", binding.bubble_s, ""), ("optimizer's step", binding.optimizer_s, "")]
    rows += [("offload", binding.offload_s, "to and from the host")]
    shown = [(name, format_seconds(s), f"{s / total:.1%}", where) for name, s, where in rows if s > SEEN / 10 * total]
    place = f", on stage {binding.stage} of {binding.stages}, which sets the pace" if binding.stages > 1 else ""
    print_table(f"What an iteration waits for{place}", ("", "time", "share", ""), shown)


def _print_runners_up(explanation: Explanation) -> None:
    """The best plan without one choice of the best, a row each: what it loses, part by part."""
    shown = explanation.runners_up[:MOST_SHOWN]
    if not shown:
        print_text("no runners-up: nothing else fits the space that is left open")
        print()
        return
    total = explanation.plan.estimate.iteration_time_s
    sums = [_column_sums(runner_up) for runner_up in shown]
    largest = {name: max(abs(row[name]) for row in sums) for name in COLUMNS}
    seen = sorted((name for name in COLUMNS if largest[name] > SEEN * total), key=lambda name: -largest[name])
    kept = seen if len(seen) <= MOST_COLUMNS else seen[: MOST_COLUMNS - 1]
    names = [name for name in COLUMNS if name in kept]
    rest = [sum(value for name, value in row.items() if name not in names) for row in sums]
    has_rest = any(abs(seconds) > SEEN * total for seconds in rest)
    fewer = any(runner_up.devices != len(explanation.plan.devices) for runner_up in shown)
    rows = [
        (
            number,
            _loss(runner_up),
            format_seconds(runner_up.iteration_time_s),
            format_seconds(runner_up.simulated_s),
            *([runner_up.devices] if fewer else []),
            *(_points(row[name], total) for name in names),
            *([_points(left, total)] if has_rest else []),
            f"{runner_up.more_memory_bytes / 2**30:+.1f}",
        )
        for number, (runner_up, row, left) in enumerate(zip(shown, sums, rest, strict=True), start=1)
    ]
    columns = (
        "",
        "loses",
        "time",
        "events",
        *(["devices"] if fewer else []),
        *names,
        *(["rest"] if has_rest else []),
        "GiB",
    )
    print_table("Runners-up: what they lose, in % of the iteration; memory of the fullest device", columns, rows)
    for number, runner_up in enumerate(shown, start=1):
        print_text(f"  {number}  {', '.join(runner_up.without)}: {runner_up.plan}", indent="     ")
    more = len(explanation.runners_up) - len(shown)
    print(f"     ({more} more with --json)\n" if more else "")


def _loss(runner_up: RunnerUp) -> str:
    return percent(runner_up.loss) if runner_up.proved else f"{percent(runner_up.least_loss)} or more"


def _column_sums(runner_up: RunnerUp) -> dict[str, float]:
    parts = dict(runner_up.parts)
    return {name: sum(parts[part] for part in names) for name, names in COLUMNS.items()}


def _points(seconds: float, total: float) -> str:
    return "-" if abs(seconds) < 5e-4 * total else f"{seconds / total:+.1%}"


def _signed(seconds: float, total: float) -> str:
    if abs(seconds) <= SEEN / 10 * total:
        return "-"
    return f"{'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))}"


def _signed_bytes(more: float) -> str:
    return f"{'+' if more > 0 else '-'}{format_bytes(abs(more))}" if more else "-"


def _print_changes(explanation: Explanation) -> None:
    """What other hardware, another batch and fewer constraints would bring."""
    objective = OBJECTIVES[explanation.objective]
    title = f"What a change would bring ({objective} a sample)"
    print_table(
        title, ("with", objective, "the best plan then"), [_change(change) for change in explanation.sensitivities]
    )
    if not any(change.kind == "flops" for change in explanation.sensitivities):
        print_text("What faster devices would bring is not known: layers are measured on these.")
        print()
    if explanation.constraints:
        rows = [_change(change) for change in explanation.constraints]
        print_table("What your constraints cost", ("without", objective, "the best plan then"), rows)


def _change(change: Sensitivity) -> tuple[str, str, str]:
    loss = percent(change.change)
    if not change.proved:
        loss = f"{percent(min(change.change, 0.0))} or better"
    return change.name, loss, "; ".join(change.differences) or "the same"


def _print_space(certificate: Certificate) -> None:
    """How large the space is and what removed what."""
    opened, short = certificate.ways - certificate.bounded, certificate.out_of_memory
    families = f"{certificate.families:,} famil{'y' if certificate.families == 1 else 'ies'} of plans"
    memory = f"{short:,} of them do not fit into memory" if short else "all fit into memory"
    rows = [("ways to share the devices", f"{certificate.considered:,}", "")]
    rows += [("  removed", f"{count:,}", why) for why, count in certificate.removed.items()]
    rows += [
        ("  left", f"{certificate.ways:,}", ""),
        ("  bounded", f"{certificate.bounded:,}", "no plan of these can be better"),
        ("  opened", f"{opened:,}", f"{families} of these priced, the others bounded with their communication"),
        ("plans priced", f"{certificate.plans:,}", memory),
    ]
    print_table("The space", ("", "number", ""), rows)


def print_lack(result: dict[str, Any]) -> None:
    """What would make a plan possible."""
    reliefs = result["explanation"]["reliefs"]
    if reliefs:
        said = [
            f"{relief['name']}: {relief['plan']}, {format_seconds(relief['iteration_time_s'])} an iteration"
            for relief in reliefs
        ]
        print_notes("no plan is possible; there would be one:", said)
    else:
        print("no plan is possible, nor with any one constraint less or a node more")


def print_comparison(comparison: PlanComparison, name: str) -> None:
    """Another plan beside the best: how much slower, what it does otherwise, and which parts of it take more."""
    faster = comparison.speed
    if abs(faster - 1) < 5e-4:
        verdict = "they are as fast"
    elif faster > 1:
        verdict = (
            f"this plan is {faster:.3g} times as fast" if faster >= 1.1 else f"this plan is {faster - 1:.1%} faster"
        )
    else:
        verdict = f"that plan is {1 / faster - 1:.1%} faster"
    this_s, that_s = format_seconds(comparison.one_s), format_seconds(comparison.other_s)
    print_text(f"compared with {name}: {this_s} with this plan, {that_s} with that, {verdict}")
    print_items(comparison.notes)
    print_notes("that plan differs in:", comparison.differences or ("nothing",))
    print()
    total = max(comparison.one_s, comparison.other_s)
    pairs = [pair for pair in comparison.parts if max(pair.one, pair.other) > SEEN / 2 * total]
    rows = [_pair_row(TIME_NAMES[pair.name], pair) for pair in pairs]
    rest_s = [
        sum(values) for values in zip(*((p.one, p.other) for p in comparison.parts if p not in pairs), strict=True)
    ]
    if rest_s and max(rest_s) > SEEN / 2 * total:
        rows.append(("the rest", *_seconds_cells(*rest_s)))
    rows.append(("in all", *_seconds_cells(comparison.one_s, comparison.other_s)))
    print_table("Where the time goes", ("part", "this plan", "that plan", "that takes more"), rows)
    memory = [
        (MEMORY_NAMES[pair.name], format_bytes(pair.one), format_bytes(pair.other), _signed_bytes(pair.more))
        for pair in comparison.memory
    ]
    print_table("Memory of the fullest device", ("part", "this plan", "that plan", "that takes more"), memory)


def _pair_row(name: str, pair: PartPair) -> tuple[str, str, str, str]:
    return (name, *_seconds_cells(pair.one, pair.other))


def _seconds_cells(this_s: float, that_s: float) -> tuple[str, str, str]:
    return format_seconds(this_s), format_seconds(that_s), _signed(that_s - this_s, max(this_s, that_s))
