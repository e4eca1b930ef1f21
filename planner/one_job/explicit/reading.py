"""From a plan record back to the setup that it fixes: the model loaded again, the ranks found on the cluster."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields

from estimator.pricing.recipe import OffloadPart, OptimizerName, Recipe, Setup, StageSetup
from models_zoo.model import Model
from models_zoo.user_code import NO_CODE, UserCode
from planner.one_job.explicit.request import ExplicitRequest, canonical
from planner.shared.inputs import load_place, trained_on
from planner.shared.plan import Plan, PlanStage, device_types
from planner.shared.plan_checks import cluster_of_file, load_plan_model, refuse_places
from planner.shared.plan_parts import PlanRecipe
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError
from profiles.store import ProfileStore

OPTIMIZERS: tuple[OptimizerName, ...] = ("adamw", "sgd", "adam8bit", "muon", "adafactor")
OFFLOADS: tuple[OffloadPart, ...] = ("optimizer", "activations")


def read_plan(
    plan: Plan,
    *,
    where: str,
    store: ProfileStore | None,
    cluster: str | None = None,
    code: UserCode = NO_CODE,
    margin: str | None = None,
) -> ExplicitRequest:
    """Return the setup of `plan`, which came from `where`, on its own cluster or on `cluster`. `code` is what of the
    user's own it may run, `margin` what of each device's memory is to stay free.

    Ranks keep their places where the cluster has them with the same devices; else they take its free devices in order,
    which an assumption says. Raise InputError where the model has changed, or the cluster has no room.
    """
    model = load_plan_model(plan, code, where=where)
    with cluster_of_file(where) if cluster is None else nullcontext():
        place = load_place(
            cluster or plan.cluster,
            model,
            store=store,
            dtype=plan.model.dtype,
            seq_len=plan.model.seq_len or 0,
            optimizer=plan.optimizer,
            margin=margin,
        )
    model, undropped = trained_on(model, place)
    slots, said = _places(plan, place, where)
    setup = setup_of_plan(plan, model, place, slots, where=where)
    # What was assumed when the plan was made still holds, but for what is said of another cluster.
    kept = plan.assumptions if place.text == plan.cluster else (*place.notes, *undropped, *plan.assumptions)
    return ExplicitRequest(
        reference=plan.model.reference, setups=(setup,), assumptions=tuple(dict.fromkeys((*said, *kept)))
    )


def _places(plan: Plan, place: Cluster, where: str) -> tuple[tuple[DeviceSlot, ...], tuple[str, ...]]:
    """The device of each rank: where the cluster names its nodes, on the node that the plan names."""
    slot_at = {(slot.site, slot.node, slot.index): slot for slot in place.slots}
    nodes = {site.name: {host: node for node, host in enumerate(site.network.hosts)} for site in place.sites}
    same_places = [
        slot_at.get((device.site, node, device.index))
        for device in plan.devices
        for named in (nodes.get(device.site),)
        for node in (named.get(device.host, -1) if named and device.host is not None else device.node,)
    ]
    slots = [
        slot for slot, device in zip(same_places, plan.devices, strict=True) if slot and slot.device == device.device
    ]
    if len(slots) == len(plan.devices) == len(set(slots)):
        return tuple(slots), ()
    if place.text == plan.cluster:
        refuse_places(plan, place, where=where)
    free = place.free_slots
    if len(free) < len(plan.devices):
        expected = f"at least {len(plan.devices)} free devices for the plan of {where}"
        raise InputError(where=place.text, found=f"{len(free)} free devices", expected=expected)
    sentence = f"ranks on the first {len(plan.devices)} devices of {place.text}: it has not those of the plan"
    return free[: len(plan.devices)], (sentence,)


def setup_of_plan(plan: Plan, model: Model, place: Cluster, slots: tuple[DeviceSlot, ...], *, where: str) -> Setup:
    """The setup that `plan` fixes, rank i on `slots[i]`. Raise InputError for what no setup can say: weights in host
    memory, stages with different attention kernels."""
    kernels = sorted({stage.attention for stage in plan.stages})
    if len(kernels) > 1:
        _refuse(where, "stages[].attention", " and ".join(kernels), "one kernel for all stages")
    refuse_optimizer(plan, where=where)
    if plan.rank_axis_order != ("tp", "cp", "dp", "pp"):
        _refuse(where, "rank_axis_order", ", ".join(plan.rank_axis_order), "tp, cp, dp, pp")
    for number, stage in enumerate(plan.stages):
        _refuse_unsaid(stage, f"stages[{number}]", where)
        types = device_types(slots[rank].device for rank in stage.ranks)
        if "+" in types and types != stage.device:
            _refuse(where, f"stages[{number}]", f"ranks on {types}", f"devices of one type, or {stage.device}")
    return canonical(
        Setup(
            model=model,
            cluster=place,
            recipe=_recipe(plan, kernels[0]),
            stages=tuple(_stage(stage, slots) for stage in plan.stages),
            micro_batch=plan.batch.micro_batch,
        )
    )


def refuse_optimizer(plan: Plan, *, where: str) -> None:
    """Raise InputError for an optimizer that nobody here knows."""
    if plan.optimizer not in OPTIMIZERS:
        _refuse(where, "optimizer", repr(plan.optimizer), f"one of {', '.join(OPTIMIZERS)}")


def _refuse_unsaid(stage: PlanStage, key: str, where: str) -> None:
    if "weights" in stage.offload:
        _refuse(where, f"{key}.offload", "weights", f"only {' and '.join(OFFLOADS)}")


def _refuse(where: str, key: str, found: str, expected: str) -> None:
    raise InputError(where=where, key=key, found=found, expected=expected)


def _recipe(plan: Plan, attention: str) -> Recipe:
    """The plan's recipe; where the file has none (a Cell's plan) the defaults of `Recipe`, with gradients as wide as
    the weights and summed after backward, as Cells have them."""
    stated: PlanRecipe | None = plan.recipe
    common = {
        "global_batch": plan.batch.global_batch,
        "seq_len": plan.model.seq_len or 0,
        "dtype": plan.model.dtype,
        "optimizer": plan.optimizer,
        "schedule": plan.schedule,
        "attention": attention,
    }
    if stated is None:
        grads = {"bf16": "bf16", "fp16": "fp16"}.get(plan.model.dtype, "fp32")
        return Recipe(**common, grad_dtype=grads)  # type: ignore[arg-type]
    stated_parts = {part.name: getattr(stated, part.name) for part in fields(stated)}
    return Recipe(
        **{**common, **stated_parts, "overlap": frozenset(stated.overlap), "software": stated.software.features()}
    )


def _stage(stage: PlanStage, slots: tuple[DeviceSlot, ...]) -> StageSetup:
    sharding, rule = stage.sharding, stage.recompute
    return StageSetup(
        chunks=stage.chunks,
        slots=tuple(slots[rank] for rank in stage.ranks),
        tp=stage.tp,
        cp=stage.cp,
        dp=stage.dp,
        ep=stage.ep,
        etp=stage.etp,
        sequence_parallel=stage.sequence_parallel,
        zero=sharding.zero,
        shard=sharding.shard if sharding.zero else None,
        recompute=rule.kind,
        recompute_layers=None if rule.kind == "none" else rule.layers,
        offload=frozenset(part for part in OFFLOADS if part in stage.offload),
        shares=stage.micro_batch_shares,
    )
