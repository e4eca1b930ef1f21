"""A plan on several groups of devices in the words of a plan on one: what both have, and the rest in a line."""

from __future__ import annotations

from itertools import groupby

from estimator.bulk.places import place_in_order
from estimator.bulk.records import BatchedDegrees, StateRule
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup, StageSetup
from planner.one_job.search.spaces.found import Found
from planner.shared.plan import device_types
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedFound(Found):
    """A plan whose stages are not all shared alike: degrees, rule and state are those of the stage that sets the pace,
    `setup` says the rest."""

    setup: Setup


def mixed_found(setup: Setup, evaluation: Evaluation, value: float) -> MixedFound:
    """Return the plan with the degrees of its pace-setting stage."""
    pace = setup.stages[0 if evaluation.pipeline is None else evaluation.pipeline.bottleneck]
    slots = [slot for stage in setup.stages for slot in stage.slots]
    return MixedFound(
        value=value,
        iteration_time_s=evaluation.iteration_time_s,
        lacking_bytes=0.0,
        degrees=BatchedDegrees(
            tp=pace.tp,
            pp=len(setup.stages),
            dp=pace.dp,
            ep=pace.ep,
            etp=pace.etp,
            samples=setup.samples_per_rank(pace),
            sequence_parallel=pace.sequence_parallel,
        ),
        placement=place_in_order(setup.cluster, slots),
        schedule=setup.recipe.schedule,
        cut=tuple(stage.chunks for stage in setup.stages),
        rule=(pace.recompute, pace.recompute_layers),
        state=StateRule(zero=pace.zero),
        setup=setup,
    )


def describe_mixed(plan: MixedFound) -> str:
    """The plan in a line, its stages from first to last.

    2 x 4 a10 (tp 2, dp 2, ZeRO 1), then 1 x 2 h100 (tp 1, dp 2, ZeRO 1); 4 samples in a micro-batch, 1f1b
    """
    setup = plan.setup
    parts = [_described(list(stages)) for _, stages in groupby(setup.stages, key=_alike)]
    return f"{', then '.join(parts)}; {setup.micro_batch} samples in a micro-batch, {setup.recipe.schedule}"


def _alike(stage: StageSetup) -> tuple[object, ...]:
    names = ("tp", "dp", "ep", "etp", "zero", "recompute", "shares")
    return (_devices(stage), *(getattr(stage, name) for name in names))


def _devices(stage: StageSetup) -> str:
    sites = dict.fromkeys(slot.site for slot in stage.slots)
    return device_types(slot.device for slot in stage.slots) + (f" in {', '.join(sites)}" if len(sites) > 1 else "")


def _described(stages: list[StageSetup]) -> str:
    stage = stages[0]
    degrees = [("tp", stage.tp), ("dp", stage.dp), ("ep", stage.ep), ("etp", stage.etp)]
    parts = [f"{name} {value}" for name, value in degrees if value > 1 or name in ("tp", "dp")]
    if stage.shares is not None:
        shares = [f"{len(list(same))} x {share}" for share, same in groupby(stage.shares)]
        parts.append(f"shares {' and '.join(shares)}")
    parts.append(f"ZeRO {stage.zero}")
    if stage.recompute != "none":
        parts.append(f"{stage.recompute} recomputation")
    return f"{len(stages)} x {len(stage.slots)} {_devices(stage)} ({', '.join(parts)})"
