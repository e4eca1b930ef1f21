"""The nearest plan that a tool can run, where it cannot run the plan itself.

From the plan's own degrees, made alike in all stages, one decision is changed, then two, and so on: whatever the tool's
record allows is priced, until some plan fits; of those that differ from the plan in as few things, the fastest counts.
The search is bounded: `MOST_LOOKS` plans are priced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from operator import attrgetter
from typing import Any

from estimator.pricing.build import Ranges, uniform_setup
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import GradDType, OffloadPart, OptimizerName, ScheduleName, Setup, ZeroStage
from models_zoo.user_code import UserCode
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import read_plan
from planner.one_job.explicit.recording import record_plan
from planner.one_job.explicit.request import canonical
from planner.one_job.tools.base.export_records import CannotExpress, Export, ExportContext
from planner.one_job.tools.base.shape import MEGATRON_ORDER, Shape, experts_of, job_of_recipe
from planner.one_job.tools.base.tool import TrainingTool
from planner.one_job.tools.base.writing import write_plan
from planner.shared.plan import Plan
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible, RecomputeKind

MOST_LOOKS = 240
MOST_CHANGES = 5
ENOUGH = 10
"""So many plans that the tool accepts and that fit are compared at most."""


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
    plan: Plan, *, tool: TrainingTool, context: ExportContext, store: ProfileStore | None = None
) -> Search:
    """Return the fastest of the nearest plans that `tool` runs and that fit."""
    try:
        setup = _own_setup(plan, store, context.code)
    except InputError:
        return Search(refused_time_s=plan.estimate.iteration_time_s, nearest=None)
    priced = evaluate_with_store(setup, store=store)
    refused_s = plan.estimate.iteration_time_s if isinstance(priced, Infeasible) else priced.iteration_time_s
    accepted: list[Nearest] = []
    looks, closest = 0, MOST_CHANGES
    for changes, features in _by_distance(setup, tool):
        if changes > closest or looks >= MOST_LOOKS or len(accepted) >= ENOUGH:
            break
        candidate = _build(setup, features, tool)
        if candidate is None:
            continue
        looks += 1
        evaluation = evaluate_with_store(candidate, store=store)
        if isinstance(evaluation, Infeasible) or evaluation.out_of_memory is not None:
            continue
        nearest = _written(plan, candidate, evaluation, tool, context)
        if nearest is not None:
            accepted.append(nearest)
            closest = changes
    best = min(accepted, key=lambda nearest: nearest.plan.estimate.iteration_time_s, default=None)
    return Search(refused_time_s=refused_s, nearest=best)


def _own_setup(plan: Plan, store: ProfileStore | None, code: UserCode) -> Setup:
    """The plan's setup, but for what no setup can say: another order of ranks, weights in host memory."""
    stages = tuple(
        replace(stage, offload=tuple(part for part in stage.offload if part != "weights")) for stage in plan.stages
    )
    plain = replace(plan, rank_axis_order=MEGATRON_ORDER, stages=stages)
    return read_plan(plain, where="plan", store=store, code=code).setups[0]


def _written(
    plan: Plan, setup: Setup, evaluation: Evaluation, tool: TrainingTool, context: ExportContext
) -> Nearest | None:
    """The candidate as a plan with the tool's files; None where the tool cannot run it."""
    candidate = record_plan(setup, evaluation, reference=plan.model.reference, assumptions=plan.assumptions)
    changes = describe_changes(plan, candidate)
    said = f"changed for a tool that cannot run the plan as it was: {'; '.join(changes)}"
    candidate = replace(candidate, assumptions=(*plan.assumptions, said))
    try:
        return Nearest(plan=candidate, export=write_plan(candidate, tool, context), changes=changes)
    except CannotExpress:
        return None


def _by_distance(setup: Setup, tool: TrainingTool) -> Iterator[tuple[int, Features]]:
    """What the tool's record allows, as far as degrees, state, schedule and precision tell, in the order of how many
    decisions differ from the plan's own."""
    roots = list(_roots(setup))
    if tool.job_refusal(replace(job_of_recipe(setup.model, setup.recipe), optimizer="adamw", grad_dtype=None)):
        return
    waiting: dict[int, dict[Features, None]] = {}
    for changes in range(MOST_CHANGES + 1):
        for root in roots:
            for features in _changed(root, setup, changes):
                if _allowed(features, setup, tool):
                    apart = min(features.distance(other) for other in roots)
                    waiting.setdefault(apart, {})[features] = None
        yield from ((changes, features) for features in waiting.pop(changes, {}))


def _allowed(features: Features, setup: Setup, tool: TrainingTool) -> bool:
    """Whether the tool's record allows the features, as far as they tell."""
    if setup.devices % (features.tp * features.cp * features.pp):
        return False
    shape = _shape(features, setup)
    runs = (features.pp == 1 or features.schedule in tool.schedules) and features.recompute in tool.recompute
    return runs and bool(tool.allows_degrees(shape)) and tool.allows_state(shape)


def _shape(features: Features, setup: Setup) -> Shape:
    """The features in tools' numbers."""
    dp = setup.devices // (features.tp * features.cp * features.pp)
    recipe = replace(setup.recipe, optimizer=features.optimizer, grad_dtype=features.grad_dtype)
    shard = (features.shard or dp * features.cp) if features.zero else 1
    names = ("tp", "cp", "pp", "ep", "etp", "vpp", "sequence_parallel", "zero", "schedule", "recompute")
    return Shape(
        **{name: getattr(features, name) for name in names},
        job=job_of_recipe(setup.model, recipe),
        dp=dp,
        shard=shard,
        replicate=dp * features.cp // shard,
        offload=tuple(features.offload),
    )


def _build(setup: Setup, features: Features, tool: TrainingTool) -> Setup | None:
    """The setup of these features with micro-batches as large as the plan's, or the next smaller; None for none."""
    slots = tuple(slot for stage in setup.stages for slot in stage.slots)
    dp = len(slots) // (features.tp * features.cp * features.pp)
    recipe = replace(
        setup.recipe, schedule=features.schedule, optimizer=features.optimizer, grad_dtype=features.grad_dtype
    )
    names = ("tp", "pp", "cp", "ep", "etp", "vpp", "sequence_parallel", "zero", "shard", "recompute", "offload")
    build = partial(uniform_setup, setup.model, setup.cluster, recipe, dp=dp, devices=slots)
    for samples in range(-(-setup.micro_batch // dp), 0, -1):
        made = build(micro_batch_per_rank=samples, **{name: getattr(features, name) for name in names})
        if isinstance(made, Setup):
            return _with_split(made, setup, features, tool)
    return None


def _with_split(made: Setup, setup: Setup, features: Features, tool: TrainingTool) -> Setup | None:
    """`made` with layers divided as the tool does itself, or where they are kept as in the plan; None where it cannot
    divide them, or stages have mixed devices."""
    if any(len({slot.device for slot in stage.slots}) > 1 for stage in made.stages):
        return None
    cut: Sequence[Ranges] | None = [stage.chunks for stage in (setup if features.own_split else made).stages]
    if tool.division is not None and features.pp > 1:
        cut = tool.division.cut(_shape(features, setup))
    if cut is None:
        return None
    stages = (replace(stage, chunks=chunks) for stage, chunks in zip(made.stages, cut, strict=True))
    return canonical(replace(made, stages=tuple(stages)))


def _roots(setup: Setup) -> Iterator[Features]:
    """The plan's own features with one value for all stages: each stage's in turn, those that most stages have
    first."""
    stages, recipe = setup.stages, setup.recipe
    kinds: list[RecomputeKind] = ["full", "selective", "none"]
    tried = [
        Features(
            tp=stage.tp,
            cp=stage.cp,
            pp=len(stages),
            ep=stage.ep,
            etp=stage.etp,
            vpp=len(stages[0].chunks) if recipe.schedule == "interleaved" else 1,
            own_split=True,
            schedule=recipe.schedule,
            zero=max(other.zero for other in stages),
            shard=stage.shard,
            sequence_parallel=any(other.sequence_parallel for other in stages) and stage.tp > 1,
            recompute=next(kind for kind in kinds if any(other.recompute == kind for other in stages)),
            offload=frozenset(part for other in stages for part in other.offload),
            optimizer=recipe.optimizer,
            grad_dtype=recipe.grad_dtype,
        )
        for stage in stages
    ]
    yield from sorted(dict.fromkeys(tried), key=tried.count, reverse=True)


def _changed(root: Features, setup: Setup, changes: int) -> Iterator[Features]:
    """`root` with so many decisions made otherwise."""
    for decisions in combinations(_alternatives(root, setup), changes):
        for values in product(*decisions):
            yield _settled(root, replace(root, **{name: value for each in values for name, value in each.items()}))


def _alternatives(root: Features, setup: Setup) -> list[list[dict[str, Any]]]:
    """For each decision the other values there are, the nearest first."""
    degrees = sorted((n for n in range(1, setup.devices + 1) if setup.devices % n == 0), key=lambda n: -n)
    interleaved = root.schedule in ("interleaved", "dualpipe")
    pairs = dict.fromkeys([(root.ep, 1), (root.ep, root.tp), (1, root.tp), (1, 1)] if experts_of(setup.model) else [])
    options: list[Iterable[dict[str, Any]]] = [
        *([{name: n} for n in _nearest(degrees, getattr(root, name))] for name in ("tp", "cp", "pp")),
        [{"vpp": 1, "schedule": name, "own_split": not interleaved} for name in ("1f1b", "gpipe")],
        [{"own_split": False}],
        [{"ep": ep, "etp": etp} for ep, etp in pairs],
        [{"zero": zero, "shard": None} for zero in (*_nearest((1, 3, 2, 0), root.zero, by_ratio=False), root.zero)],
        [{"sequence_parallel": not root.sequence_parallel}],
        [{"recompute": kind} for kind in ("none", "selective", "full")],
        [{"offload": frozenset()}, *({"offload": root.offload - {part}} for part in sorted(root.offload))],
        [{"optimizer": "adamw"}],
        [{"grad_dtype": width} for width in ("fp32", "bf16", "fp16")],
    ]
    others = [[values for values in each if replace(root, **values) != root] for each in options]
    return [each for each in others if each]


def _nearest(values: Iterable[int], to: int, *, by_ratio: bool = True) -> list[int]:
    def apart(value: int) -> float:
        return max(value, to) / max(1, min(value, to)) if by_ratio else abs(value - to)

    return sorted((value for value in values if value != to), key=apart)


def _settled(root: Features, features: Features) -> Features:
    """`features` with what follows from other degrees than `root`'s: experts follow tp, one stage has no schedule."""
    if features.tp != root.tp and features.etp == root.etp == root.tp:
        features = replace(features, etp=features.tp)
    if features.tp == 1:
        features = replace(features, sequence_parallel=False)
    if features.pp == 1:
        features = replace(features, vpp=1, schedule="1f1b", own_split=False)
    degrees = attrgetter("tp", "cp", "pp")
    if degrees(features) != degrees(root):
        features = replace(features, shard=None, own_split=features.own_split and features.pp == root.pp)
    return features


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
