"""A profile run: a model's layer shards into the store, and on request a whole stage as one piece beside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from estimator.profiling.frameworks import load_profiler
from estimator.profiling.lookup import to_layer_time
from estimator.profiling.plan import ProfileTask
from estimator.profiling.run import Progress, profile_layers
from estimator.profiling.setting import DeviceIdentity, Setting, layer_key
from estimator.profiling.stage import profile_stage
from models_zoo.layers import Layer
from models_zoo.model import Model
from profiles.errors import InputError
from profiles.measurements import Profile
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible, Shard

BUDGET_SPENT = "the budget was spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """Layers to measure as one piece, eager or compiled."""

    layers: tuple[Layer, ...]
    compiled: bool


def cut_out(model: Model, stage: tuple[int, int]) -> Model:
    """The model's layers [first, end) alone; InputError where it has fewer."""
    first, end = stage
    if not 0 <= first < end <= len(model.layers):
        raise InputError(
            where=f"model {model.name}",
            key="--stage",
            found=f"{first}:{end}",
            expected=f"FIRST:END within its layers 0:{len(model.layers)}",
        )
    return replace(model, layers=model.layers[first:end], layer_names=model.layer_names[first:end])


def run_profile(
    store: ProfileStore,
    tasks: Sequence[ProfileTask],
    setting: Setting,
    *,
    stage: StageRequest | None,
    budget_s: float | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Measure what the store lacks of `tasks`, then `stage` at each of their shards while the budget lasts.

    The result says of each shard what it takes, or why it is not measured, and of each stage how it compares with the
    sum of its layers.
    """
    start_s = time.monotonic()
    report = profile_layers(store, tasks, setting, budget_s=budget_s, progress=progress)
    identity = load_profiler(setting.framework).identify_device(setting)
    refused = {(task.layer, task.shard): why.reason for task, why in report.infeasible}
    stages = []
    if stage is not None:
        for shard in dict.fromkeys(task.shard for task in tasks):
            left_s = float("inf") if budget_s is None else budget_s - (time.monotonic() - start_s)
            stages.append(_compare_stage(store, stage, shard, setting, left_s))
    return {
        "device": asdict(identity),
        "measured": report.measured,
        "reused": report.reused,
        "layers": [_describe_task(store, task, setting, identity, refused) for task in tasks],
        "stages": stages,
        "timing": {"elapsed_s": time.monotonic() - start_s},
    }


def _describe_task(
    store: ProfileStore,
    task: ProfileTask,
    setting: Setting,
    identity: DeviceIdentity,
    refused: dict[tuple[Layer, Shard], str],
) -> dict[str, Any]:
    """What is now known of one task."""
    key = layer_key(task.layer, task.shard, identity, optimizer=setting.optimizer)
    measurement = store.get(key)
    about = {"name": task.name, "times": task.multiplicity, **_describe_shard(task.shard)}
    if measurement is None:
        reason = refused.get((task.layer, task.shard), f"{BUDGET_SPENT}; estimates model it")
        return about | {"measured": False, "reason": reason}
    figures = to_layer_time(Profile(key=key, measurement=measurement))
    return about | {
        "measured": True,
        "profile_id": key.id,
        "forward_s": figures.forward_s,
        "backward_s": figures.backward_s,
        "optimizer_s": figures.optimizer_s,
        "relative_low": figures.relative_low,
        "relative_high": figures.relative_high,
        "samples": len(measurement.forward_s),
        "saved_bytes": figures.saved_bytes,
        "peak_memory_bytes": figures.peak_memory_bytes,
    }


def _compare_stage(
    store: ProfileStore, stage: StageRequest, shard: Shard, setting: Setting, left_s: float
) -> dict[str, Any]:
    """The stage as one piece against the sum of its layers."""
    about = {"layers": len(stage.layers), "compiled": stage.compiled, **_describe_shard(shard)}
    if left_s <= 0:
        return about | {"measured": False, "reason": BUDGET_SPENT}
    repeats = replace(setting.repeats, limit_s=min(setting.repeats.limit_s, left_s))
    stage_profile = profile_stage(
        store, stage.layers, shard, replace(setting, repeats=repeats), compiled=stage.compiled
    )
    if isinstance(stage_profile, Infeasible):
        return about | {"measured": False, "reason": stage_profile.reason}
    return about | {"measured": True, **asdict(stage_profile), "ratio": stage_profile.ratio}


def _describe_shard(shard: Shard) -> dict[str, Any]:
    return {"tp": shard.tp, "micro_batch_per_rank": shard.micro_batch_per_rank}
