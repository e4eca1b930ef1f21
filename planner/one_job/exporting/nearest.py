"""The nearest plan that a tool can run, where it cannot run the plan itself.

From the plan's own degrees, made alike in all stages, a search changes what the tool's refusals name, one thing at a
time, until the tool accepts a plan that fits; of those that differ from the plan in as few things, the fastest counts.
It is bounded: `MOST_LOOKS` plans are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from estimator.pricing.build import uniform_setup
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import GradDType, OffloadPart, OptimizerName, ScheduleName, Setup, ZeroStage
from models_zoo.layers import Experts, TransformerBlock
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import read_plan
from planner.one_job.explicit.recording import record_plan
from planner.one_job.explicit.request import canonical
from planner.one_job.exporting.formats import Exporter
from planner.one_job.tools.export_records import CannotExpress, Export, ExportContext
from planner.one_job.tools.shape import MEGATRON_ORDER
from planner.shared.plan import Plan
from profiles.errors import InputError
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible, RecomputeKind

MOST_LOOKS = 240
ENOUGH = 10
"""So many plans that the tool accepts and that fit are compared at most."""

ONE_STAGE: dict[str, Any] = {"vpp": 1, "schedule": "1f1b", "own_split": False}

Evaluate = Callable[[Setup], Evaluation | Infeasible]


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a candidate is made of; every stage is alike. `own_split`: layers are shared out as in the plan."""

    tp: int
    cp: int
    pp: int
    ep: int
    etp: int
    vpp: int
    own_split: bool
    schedule: ScheduleName
    zero: ZeroStage
    shard: int | None
    sequence_parallel: bool
    recompute: RecomputeKind
    offload: frozenset[OffloadPart]
    optimizer: OptimizerName
    grad_dtype: GradDType

    def distance(self, other: Features) -> int:
        """How many decisions differ."""
        return sum(any(getattr(self, name) != getattr(other, name) for name in decision) for decision in DECISIONS)


DECISIONS = (
    ("tp",),
    ("cp",),
    ("pp",),
    ("vpp", "schedule", "own_split"),
    ("ep", "etp"),
    ("zero", "shard"),
    ("sequence_parallel",),
    ("recompute",),
    ("offload",),
    ("optimizer",),
    ("grad_dtype",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The nearest plan: what it changes, in words, and the tool's files for it."""

    plan: Plan
    export: Export
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What the tool refused. `refused_time_s` is its iteration, estimated as the nearest plan's is; `nearest` None: no
    plan was found that the tool runs and that fits."""

    refused_time_s: float
    nearest: Nearest | None


def find_nearest(
    plan: Plan, *, exporter: Exporter, context: ExportContext, store: ProfileStore | None = None
) -> Search:
    """The fastest of the nearest plans that `exporter` accepts and that fit."""

    def evaluate(setup: Setup) -> Evaluation | Infeasible:
        return evaluate_with_store(setup, store=store)

    try:
        setup = _own_setup(plan, store)
    except InputError:
        return Search(refused_time_s=plan.estimate.iteration_time_s, nearest=None)
    own = evaluate(setup)
    refused = plan.estimate.iteration_time_s if isinstance(own, Infeasible) else own.iteration_time_s
    found = list(_accepted(plan, setup, evaluate, exporter, context))
    best = min(found, key=lambda one: one.plan.estimate.iteration_time_s, default=None)
    return Search(refused_time_s=refused, nearest=best)


def _own_setup(plan: Plan, store: ProfileStore | None) -> Setup:
    """The plan's setup, but for what no setup can say: another order of ranks, weights in host memory."""
    stages = tuple(
        replace(stage, offload=tuple(part for part in stage.offload if part != "weights")) for stage in plan.stages
    )
    plain = replace(plan, rank_axis_order=MEGATRON_ORDER, stages=stages)
    return read_plan(plain, where="plan", store=store).setups[0]


def _accepted(
    plan: Plan, setup: Setup, evaluate: Evaluate, exporter: Exporter, context: ExportContext
) -> Iterator[Nearest]:
    """Plans that the tool accepts and that fit, nearest first."""
    roots = list(_roots(setup))

    def distance(features: Features) -> int:
        return min(features.distance(root) for root in roots)

    waiting, seen = list(roots), set(roots)
    accepted, furthest = 0, len(DECISIONS)
    for _ in range(MOST_LOOKS):
        if not waiting or accepted >= ENOUGH or distance(waiting[0]) > furthest:
            return
        features = waiting.pop(0)
        key = _try(plan, setup, features, evaluate, exporter, context)
        if isinstance(key, Nearest):
            accepted += 1
            furthest = distance(features)
            yield key
            continue
        for child in _repairs(features, key, setup, is_root=features in roots):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
        waiting.sort(key=distance)


def _try(
    plan: Plan, setup: Setup, features: Features, evaluate: Evaluate, exporter: Exporter, context: ExportContext
) -> Nearest | str:
    """The plan of these features if the tool accepts it and it fits; else the key that is wrong with it."""
    made = _build(setup, features)
    evaluation = None if made is None else evaluate(made)
    if made is None or evaluation is None or isinstance(evaluation, Infeasible):
        return "degrees"
    candidate = record_plan(made, evaluation, reference=plan.model.reference, assumptions=plan.assumptions)
    changes = describe_changes(plan, candidate)
    said = f"changed for a tool that cannot run the plan as it was: {'; '.join(changes)}"
    candidate = replace(candidate, assumptions=(*plan.assumptions, said))
    try:
        export = exporter(candidate, context)
    except CannotExpress as refusal:
        return refusal.key
    if evaluation.out_of_memory is not None:
        return "memory"
    return Nearest(plan=candidate, export=export, changes=changes)


def _build(setup: Setup, features: Features) -> Setup | None:
    """The setup of these features with micro-batches as large as the plan's, or the next smaller; None for none."""
    slots = tuple(slot for stage in setup.stages for slot in stage.slots)
    dp, left = divmod(len(slots), features.tp * features.cp * features.pp)
    if left or not dp:
        return None
    recipe = replace(
        setup.recipe, schedule=features.schedule, optimizer=features.optimizer, grad_dtype=features.grad_dtype
    )
    for samples in range(-(-setup.micro_batch // dp), 0, -1):
        made = uniform_setup(
            setup.model,
            setup.cluster,
            recipe,
            tp=features.tp,
            pp=features.pp,
            dp=dp,
            cp=features.cp,
            ep=features.ep,
            etp=features.etp,
            vpp=features.vpp,
            micro_batch_per_rank=samples,
            sequence_parallel=features.sequence_parallel,
            zero=features.zero,
            shard=features.shard,
            recompute=features.recompute,
            offload=features.offload,
            devices=slots,
        )
        if isinstance(made, Setup):
            return _with_own_split(made, setup, features)
    return None


def _with_own_split(made: Setup, setup: Setup, features: Features) -> Setup | None:
    """`made` with the plan's own layers in each stage where they are kept; None where stages have mixed devices."""
    if any(len({slot.device for slot in stage.slots}) > 1 for stage in made.stages):
        return None
    if features.own_split:
        pairs = zip(made.stages, setup.stages, strict=True)
        made = replace(made, stages=tuple(replace(stage, chunks=own.chunks) for stage, own in pairs))
    return canonical(made)


def _roots(setup: Setup) -> Iterator[Features]:
    """The plan's own features with one value for all stages: each stage's in turn, those that most stages have first;
    where none divides the devices, without tensor or context parallelism."""
    stages, recipe = setup.stages, setup.recipe
    vpp = len(stages[0].chunks) if recipe.schedule == "interleaved" else 1
    kinds: list[RecomputeKind] = ["full", "selective", "none"]
    strongest = next(kind for kind in kinds if any(stage.recompute == kind for stage in stages))
    tried: list[Features] = []
    for stage in stages:
        root = Features(
            tp=stage.tp,
            cp=stage.cp,
            pp=len(stages),
            ep=stage.ep,
            etp=stage.etp,
            vpp=vpp,
            own_split=True,
            schedule=recipe.schedule,
            zero=max(one.zero for one in stages),
            shard=stage.shard,
            sequence_parallel=any(one.sequence_parallel for one in stages) and stage.tp > 1,
            recompute=strongest,
            offload=frozenset(part for one in stages for part in one.offload),
            optimizer=recipe.optimizer,
            grad_dtype=recipe.grad_dtype,
        )
        tried.append(root)
    yield from sorted(dict.fromkeys(tried), key=tried.count, reverse=True)


def _repairs(features: Features, key: str, setup: Setup, *, is_root: bool) -> Iterator[Features]:
    """`features` with one thing changed that the key of a refusal names. Degrees that go nowhere are left there, unless
    they are the plan's own (`is_root`)."""
    name = re.sub(r"^stages\[\d*\]\.?", "", key)
    if name.startswith("sharding") or name == "memory":
        yield from _other_sharding(features)
    if name.startswith("recompute") or name == "memory":
        yield from _other_recompute(features, heavier=name == "memory")
    if name == "schedule":
        yield from _other_schedule(features)
    if name == "sequence_parallel":
        yield replace(features, sequence_parallel=not features.sequence_parallel)
        yield replace(features, sequence_parallel=False, tp=1, etp=min(features.etp, 1))
    if name == "offload":
        yield replace(features, offload=frozenset())
        yield from (replace(features, offload=features.offload - {part}) for part in sorted(features.offload))
        yield from _other_sharding(features)
    if name == "optimizer":
        yield replace(features, optimizer="adamw")
    if name == "recipe.grad_dtype":
        widths: tuple[GradDType, ...] = ("fp32", "bf16", "fp16")
        yield from (replace(features, grad_dtype=width) for width in widths if width != features.grad_dtype)
        yield from _other_sharding(features)
    if name in ("ep", "etp"):
        yield from _other_experts(features, setup)
        yield from _other_sharding(features)
    if name == "chunks":
        yield replace(features, own_split=False)
    if name in ("tp", "cp"):
        yield from _other_degrees(features, setup, (name,))
    if name in ("dp", "ranks", "micro_batch_shares") or (name == "degrees" and is_root):
        yield from _other_degrees(features, setup, ("tp", "cp", "pp"))
    if name in ("chunks", "batch.micro_batches"):
        yield from _other_degrees(features, setup, ("pp",))
    if name == "memory" and features.recompute == "full":
        yield from _other_degrees(features, setup, ("tp", "pp"))
    if features.pp > 1 and (key == "stages" or name in ("tp", "ep") or name.startswith("sharding")):
        yield replace(features, pp=1, **ONE_STAGE)


def _other_sharding(features: Features) -> Iterator[Features]:
    stages: tuple[ZeroStage, ...] = (1, 3, 2, 0)
    if features.shard is not None:
        yield replace(features, shard=None)
    nearest = sorted(stages, key=lambda zero: abs(zero - features.zero))
    yield from (replace(features, zero=zero, shard=None) for zero in nearest if zero != features.zero)


def _other_recompute(features: Features, *, heavier: bool) -> Iterator[Features]:
    kinds: tuple[RecomputeKind, ...] = ("none", "selective", "full")
    own = kinds.index(features.recompute)
    for kind in kinds[own + 1 :] if heavier else kinds:
        if kind != features.recompute:
            yield replace(features, recompute=kind)


def _other_schedule(features: Features) -> Iterator[Features]:
    plain: tuple[Literal["1f1b"], Literal["gpipe"]] = ("1f1b", "gpipe")
    same = features.own_split and features.schedule not in ("interleaved", "dualpipe")
    for name in plain:
        if name != features.schedule:
            yield replace(features, schedule=name, vpp=1, own_split=same)
    if features.pp > 1:
        yield replace(features, pp=1, **ONE_STAGE)


def _other_experts(features: Features, setup: Setup) -> Iterator[Features]:
    pairs = [(features.ep, 1), (features.ep, features.tp), (1, features.tp), (1, 1)]
    blocks = [layer for layer in setup.model.layers if isinstance(layer, TransformerBlock)]
    counts = {block.feed_forward.count for block in blocks if isinstance(block.feed_forward, Experts)}
    for ep, etp in pairs:
        if all(count % ep == 0 for count in counts) and (ep, etp) != (features.ep, features.etp):
            yield replace(features, ep=ep, etp=etp)


def _other_degrees(features: Features, setup: Setup, names: tuple[str, ...]) -> Iterator[Features]:
    """The degrees next to these: one of `names` doubled, halved or left out; experts follow tp."""
    devices = setup.devices
    for name in names:
        own = getattr(features, name)
        for value in dict.fromkeys((own * 2, own // 2, 1, *(stage.tp for stage in setup.stages if name == "tp"))):
            if not value or value == own or devices % value:
                continue
            changed = replace(features, **{name: value})
            if changed.tp != features.tp and features.etp == features.tp:
                changed = replace(changed, etp=changed.tp)
            if changed.tp == 1:
                changed = replace(changed, sequence_parallel=False)
            if changed.pp == 1:
                changed = replace(changed, **ONE_STAGE)
            yield replace(changed, shard=None, own_split=changed.own_split and changed.pp == features.pp)


def describe_changes(plan: Plan, other: Plan) -> tuple[str, ...]:
    """What `other` does otherwise than `plan`, in words; one stage has no schedule."""
    was, now = _describe(plan), _describe(other)
    if len(other.stages) == 1:
        del now["schedule"], now["layers by stage"]
    return tuple(f"{name} {now[name]} (the plan: {was[name]})" for name in now if now[name] != was[name])


def _describe(plan: Plan) -> dict[str, str]:
    """A plan's features in words; where stages differ, each one's."""

    def by_stage(path: str) -> str:
        values = [attrgetter(path)(stage) for stage in plan.stages]
        words = [", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value) for value in values]
        return words[0] if len(set(words)) == 1 else " | ".join(words[:8]) + (" | ..." if len(words) > 8 else "")

    names = ("tp", "dp", "cp", "ep", "etp", "sequence_parallel", "offload")
    layers = [str(sum(end - first for first, end in stage.chunks)) for stage in plan.stages]
    return {
        "schedule": plan.schedule,
        "stages": str(len(plan.stages)),
        **{name.replace("_", " "): by_stage(name) for name in names},
        "ZeRO": by_stage("sharding.zero"),
        "shards": by_stage("sharding.shard"),
        "recomputation": by_stage("recompute.kind"),
        "recomputed layers": by_stage("recompute.layers"),
        "layers by stage": ", ".join(layers),
        "optimizer": plan.optimizer,
        "micro-batch": str(plan.batch.micro_batch),
        "gradients": "as wide as the weights" if plan.recipe is None else plan.recipe.grad_dtype,
        "rank order": ", ".join(plan.rank_axis_order),
    }
