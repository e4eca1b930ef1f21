"""A plan for people: its settings, its stages, its estimate, what vouches for it and what was assumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from planner.cli.headline import print_assumptions, print_headline, print_labelled
from planner.cli.output import (
    format_bytes,
    format_count,
    format_range,
    format_seconds,
    print_table,
    print_text,
    repeats,
)
from planner.shared.words import RUN_BY, RUN_BY_NONE, SAFE_TAKEN

if TYPE_CHECKING:
    from planner.one_job.search.certificate import Certificate
    from planner.shared.plan import Plan, PlanStage

FEW_CHUNKS = 3
FEW_STAGES = 4


def print_plan(
    plan: Plan,
    certificate: Certificate | None = None,
    *,
    effects: Sequence[Mapping[str, Any]] = (),
    every_assumption: bool = True,
) -> None:
    """Print the plan's figures, settings and stages, what vouches for it, what moves it most, and what it rests on."""
    print_figures(plan, certificate)
    print_assumptions(plan.assumptions, every=every_assumption, effects=effects)


def print_figures(plan: Plan, certificate: Certificate | None = None) -> None:
    """Print the lines that matter first, and a row for each stage."""
    batch, basis = plan.batch, plan.provenance
    types = {stage.device for stage in plan.stages}
    length = f" of {plan.model.seq_len:,} tokens" if plan.model.seq_len else ""
    print_text(
        f"{plan.model.name} on {plan.cluster}: {batch.global_batch:,} samples{length} an iteration on"
        f" {len(plan.devices)} {' and '.join(sorted(types))}",
        indent="  ",
    )
    print_headline(asdict(plan.estimate), len(plan.devices))
    print_labelled("", [sentence for sentence in plan.assumptions if sentence.startswith(SAFE_TAKEN)])
    first, *others = describe_settings(plan)
    print_labelled("plan", [describe_degrees(plan)])
    print_labelled("batch", [first])
    print_labelled("state", others)
    print_labelled("run by", [sentence for sentence in plan.assumptions if sentence.startswith((RUN_BY, RUN_BY_NONE))])
    print_labelled(
        "rests on",
        [
            f"compute {basis.compute}, communication {basis.communication or 'not needed'}, memory {basis.memory}",
            *([] if certificate is None else [describe_certificate(certificate)]),
        ],
    )
    print()
    _print_stages(plan)


def describe_degrees(plan: Plan) -> str:
    """How the devices share the work, in a line.

    tp 2, pp 4 in 2 chunks, dp 8, recomputation full
    """
    stages = plan.stages
    parts = []
    for name in ("tp", "cp", "ep", "etp"):
        degrees = _listed(str(getattr(stage, name)) for stage in stages)
        if name == "tp" or (degrees != "1" and not (name == "etp" and all(stage.ep == 1 for stage in stages))):
            parts.append(f"{name} {degrees}")
    chunks = len(stages[0].chunks)
    parts.append(f"pp {len(stages)}" + (f" in {chunks} chunks a stage" if chunks > 1 else ""))
    parts.append(f"dp {_listed(str(stage.dp) for stage in stages)}")
    kinds = _listed(stage.recompute.kind for stage in stages)
    parts.append("no recomputation" if kinds == "none" else f"recomputation {kinds}")
    return ", ".join(parts)


def describe_settings(plan: Plan) -> list[str]:
    """What the stages' table does not tell: how the batch, the schedule and the state are shared."""
    batch, stages = plan.batch, plan.stages
    per_rank = _listed(
        "+".join(map(str, stage.micro_batch_shares))
        if stage.micro_batch_shares
        else f"{batch.micro_batch / stage.dp:g}"
        for stage in stages
    )
    chunks = len(stages[0].chunks)
    schedule = f"{plan.schedule} in {chunks} chunks of layers a stage" if chunks > 1 else plan.schedule
    batches = "1 micro-batch" if batch.micro_batches == 1 else f"{batch.micro_batches} micro-batches"
    samples = "1 sample" if batch.micro_batch == 1 else f"{batch.micro_batch} samples"
    said = [
        f"{batches} of {samples} ({per_rank} a rank), {schedule}, {plan.model.dtype}, {plan.optimizer}",
        f"optimizer sharding: {_listed(map(_sharding, stages))}",
    ]
    if any(stage.tp > 1 for stage in stages):
        shares = "yes" if all(stage.sequence_parallel for stage in stages if stage.tp > 1) else "no"
        said.append(f"sequence parallelism: {shares}")
    if any(stage.offload for stage in stages):
        held = _listed(" and ".join(stage.offload) or "nothing" for stage in stages)
        said.append(f"held in host memory: {held}")
    return said


def _sharding(stage: PlanStage) -> str:
    sharding = stage.sharding
    if not sharding.zero:
        return "none (ZeRO 0)"
    what = {1: "optimizer state", 2: "optimizer state and gradients", 3: "weights, gradients and optimizer state"}
    copies = f", {sharding.replicate} times" if sharding.replicate > 1 else ""
    return f"ZeRO {sharding.zero}, {what[sharding.zero]} over {sharding.shard} ranks{copies}"


def describe_certificate(certificate: Certificate) -> str:
    """What was searched, whether it is proved, and the closed form against events, in a line."""
    searched = (
        f"searched: {format_count(certificate.plans)} plans of {certificate.ways - certificate.bounded} ways to share"
        f" the devices priced, the other {certificate.bounded} ways bounded"
    )
    if not certificate.plans:
        searched = f"searched: the first plans priced bound all {certificate.ways} ways to share the devices"
    if certificate.proved:
        proof = "proved: no plan of the space is better"
    elif certificate.gap is None:
        proof = "cut short, nothing proved"
    else:
        proof = f"cut short: a better plan is at most {certificate.gap:.1%} better"
    return f"{searched}; {proof}; {describe_events(certificate)}"


def describe_events(certificate: Certificate) -> str:
    """The iteration by events beside the closed form."""
    if certificate.simulated_s is None:
        return "no pipeline of so few steps that it is run by events"
    more = certificate.simulated_s / certificate.iteration_time_s - 1
    same = "as much" if abs(more) < 5e-4 else f"{more:+.1%}"
    return f"run by events it takes {format_seconds(certificate.simulated_s)} ({same})"


def _print_stages(plan: Plan) -> None:
    """A row for each stage; of many, one for each run of those that are alike."""
    stages = plan.stages
    mixed = len({stage.device for stage in stages}) > 1
    degrees = ["dp", "tp", *(name for name in ("cp", "ep", "etp") if any(getattr(stage, name) > 1 for stage in stages))]
    runs = [[number] for number in range(len(stages))]
    if len(stages) > FEW_STAGES:
        alike = groupby(
            range(len(stages)), key=lambda number: (_sizes(stages[number]), _row(stages[number], degrees, mixed=mixed))
        )
        runs = [list(run) for _, run in alike]
    rows = []
    for run in runs:
        first, last = stages[run[0]], stages[run[-1]]
        span = str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
        layers = describe_layers(first) if len(run) == 1 else f"{_counted(first)} each"
        memory = sorted(stages[number].memory_bytes for number in run)
        spread = format_range(format_bytes(memory[0]), format_bytes(memory[-1]))
        rows.append((span, layers, *_row(last, degrees, mixed=mixed), spread))
    print_table(
        "Stages; seconds of one micro-batch",
        ("stage", "layers", "devices", *degrees, "recompute", "compute", "comm.", "memory"),
        rows,
    )


def _sizes(stage: PlanStage) -> tuple[int, ...]:
    return tuple(end - first for first, end in stage.chunks)


def _counted(stage: PlanStage) -> str:
    """How many layers a stage has: by chunk, or of many chunks from the least to the most.

    4+5, 12 chunks of 1-2
    """
    sizes = _sizes(stage)
    if len(sizes) <= FEW_CHUNKS:
        return "+".join(map(str, sizes))
    return f"{len(sizes)} chunks of {format_range(str(min(sizes)), str(max(sizes)))}"


def describe_layers(stage: PlanStage) -> str:
    """The layers of a stage: their ranges, or of many chunks how large they are."""
    if len(stage.chunks) > FEW_CHUNKS:
        return _counted(stage)
    return ", ".join(f"{first}-{end - 1}" if end - first > 1 else str(first) for first, end in stage.chunks)


def _row(stage: PlanStage, degrees: Iterable[str], *, mixed: bool) -> tuple[object, ...]:
    """All of a stage but its layers and memory; `mixed`: devices are of several types."""
    rule = stage.recompute
    part = f" {rule.layers}" if rule.kind != "none" and rule.layers < sum(_sizes(stage)) else ""
    return (
        f"{len(stage.ranks)} x {stage.device}" if mixed else len(stage.ranks),
        *(getattr(stage, name) for name in degrees),
        f"{rule.kind}{part}",
        format_seconds(stage.compute_s),
        format_seconds(stage.communication_s),
    )


def _listed(values: Iterable[str]) -> str:
    """The value that all have, or the runs of equal ones."""
    each = list(values)
    return each[0] if len(set(each)) == 1 else "; ".join(repeats(each))
