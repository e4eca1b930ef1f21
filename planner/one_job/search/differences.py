"""How two plans differ, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from planner.shared.plan import Plan, PlanStage

Describe = Callable[[Plan], str]


def describe_differences(plan: Plan, other: Plan) -> tuple[str, ...]:
    """What `other` does otherwise than `plan`: a phrase for each setting, `NAME ONE -> OTHER`. Stages that differ among
    themselves are listed in their order. Estimated figures are no settings; equal plans give nothing."""
    phrases = []
    for name, describe in SETTINGS.items():
        first, second = describe(plan), describe(other)
        if first != second:
            phrases.append(f"{name} {first} -> {second}")
    return tuple(phrases)


def _by_stage(describe: Callable[[Plan, PlanStage], object]) -> Describe:
    return lambda plan: _listed(str(describe(plan, stage)) for stage in plan.stages)


def _listed(values: Iterable[str]) -> str:
    """The value that all stages have, or the runs of equal ones.

    >>> _listed(["8", "8"]), _listed(["4", "4", "2"])
    ('8', '2 x 4, 2')
    """
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    if len(runs) == 1:
        return runs[0][0]
    return ", ".join(value if count == 1 else f"{count} x {value}" for value, count in runs)


def _per_rank(plan: Plan, stage: PlanStage) -> str:
    shares = stage.micro_batch_shares
    if shares is not None:
        return "+".join(str(share) for share in shares)
    return f"{plan.batch.micro_batch / stage.dp:g}"


def _recompute(_: Plan, stage: PlanStage) -> str:
    layers = sum(end - first for first, end in stage.chunks)
    rule = stage.recompute
    if rule.kind == "none" or rule.layers == layers:
        return rule.kind
    return f"{rule.kind} of {rule.layers} layers"


def _sharding(_: Plan, stage: PlanStage) -> str:
    sharding = stage.sharding
    copies = f" over {sharding.shard} ranks" if sharding.zero and sharding.replicate > 1 else ""
    return f"{sharding.zero}{copies}"


def _layers(_: Plan, stage: PlanStage) -> str:
    return "+".join(str(end - first) for first, end in stage.chunks)


def _joined(words: Iterable[str]) -> str:
    return "+".join(sorted(words)) or "none"


def _yes(flag: bool) -> str:
    return "on" if flag else "off"


SETTINGS: dict[str, Describe] = {
    "model": lambda plan: plan.model.name,
    "cluster": lambda plan: plan.cluster,
    "devices": lambda plan: str(len(plan.devices)),
    "device type": _by_stage(lambda _, stage: stage.device),
    "tp": _by_stage(lambda _, stage: stage.tp),
    "pp": lambda plan: str(len(plan.stages)),
    "dp": _by_stage(lambda _, stage: stage.dp),
    "cp": _by_stage(lambda _, stage: stage.cp),
    "ep": _by_stage(lambda _, stage: stage.ep),
    "etp": _by_stage(lambda _, stage: stage.etp),
    "chunks a stage": _by_stage(lambda _, stage: len(stage.chunks)),
    "layers of the stages": _by_stage(_layers),
    "schedule": lambda plan: plan.schedule,
    "global batch": lambda plan: str(plan.batch.global_batch),
    "micro-batch per rank": _by_stage(_per_rank),
    "micro-batches": lambda plan: str(plan.batch.micro_batches),
    "tokens a sample": lambda plan: str(plan.model.seq_len),
    "recompute": _by_stage(_recompute),
    "ZeRO": _by_stage(_sharding),
    "sequence parallelism": _by_stage(lambda _, stage: _yes(stage.sequence_parallel)),
    "offload": _by_stage(lambda _, stage: _joined(stage.offload)),
    "attention": _by_stage(lambda _, stage: stage.attention),
    "dtype": lambda plan: plan.model.dtype,
    "gradients in": lambda plan: plan.recipe.grad_dtype if plan.recipe else "the default",
    "optimizer": lambda plan: plan.optimizer,
    "overlap": lambda plan: _joined(plan.recipe.overlap) if plan.recipe else "the default",
    "software": lambda plan: plan.recipe.software.name if plan.recipe else "the default",
    "rank order": lambda plan: "-".join(plan.rank_axis_order),
}
"""Settings by their names, in the order in which they are told."""
