"""What jobs send that are told as a plan, or as a model with its degrees: from the parts of their estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator.network.traffic import Traffic
from estimator.pricing.parts import price_setup
from estimator.pricing.recipe import Setup
from estimator.traffic.of_plan import traffic_of
from models_zoo.user_code import names_code
from planner.one_job.explicit.figures import count_setup_flops
from planner.one_job.explicit.reading import setup_of_plan
from planner.one_job.explicit.request import read_explicit
from planner.shared.inputs import trained_on
from planner.shared.options.choices import ChoiceOptions
from planner.shared.options.estimate import DEGREES, DegreeOptions, EstimateOptions
from planner.shared.options.record import entries
from planner.shared.plan import Plan
from planner.shared.plan_checks import load_plan_model
from planner.shared.plan_file import load_plan
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError, NothingFits
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

NOT_OF_A_JOB = {"user_code_limit", "profiles", "store", "memory_margin"}
"""Options of an estimate that say nothing of how a job trains."""


@dataclass(frozen=True, kw_only=True)
class SentByPlan:
    """What an iteration sends, rank r of it on `slots[r]`."""

    traffic: Traffic
    slots: tuple[DeviceSlot, ...]


def read_own_places(path: Path, hosts: Mapping[str, Sequence[DeviceSlot]]) -> tuple[DeviceSlot, ...]:
    """Return where the plan at `path` says that its ranks sit: on the devices of these hosts, by their names. Raise
    InputError for a plan that names no hosts, or others."""
    plan = load_plan(path)
    slots = []
    for number, device in enumerate(plan.devices):
        here = hosts.get(device.host or "")
        if here is None or device.index >= len(here):
            found = f"device {device.index} of {device.host or 'a node without a name'}"
            expected = "a device of a host of the cluster, or the job's hosts"
            raise InputError(where=str(path), key=f"devices[{number}]", found=found, expected=expected)
        slots.append(here[device.index])
    return tuple(slots)


def sent_by_file(path: Path, slots: Sequence[DeviceSlot], cluster: Cluster, *, job: str) -> SentByPlan:
    """Return what the plan at `path` sends with its ranks on `slots` of `cluster`. Raise InputError for a plan of
    another number of devices, or of other ones; NothingFits where it cannot run there."""
    plan, where = load_plan(path), str(path)
    if len(plan.devices) != len(slots):
        expected = f"a plan for the {len(slots)} devices of job {job}"
        raise InputError(where=where, key="devices", found=f"{len(plan.devices)} devices", expected=expected)
    _same_types(plan, slots, where)
    model, _ = trained_on(load_plan_model(plan, where=where), cluster)
    return _sent(setup_of_plan(plan, model, cluster, tuple(slots), where=where), job)


def _same_types(plan: Plan, slots: Sequence[DeviceSlot], where: str) -> None:
    for rank, (device, slot) in enumerate(zip(plan.devices, slots, strict=True)):
        if device.device != slot.device:
            raise InputError(where=where, key=f"devices[{rank}]", found=device.device, expected=f"{slot.device}")


def sent_by_model(
    reference: str, options: Mapping[str, Any], slots: Sequence[DeviceSlot], cluster: Cluster, *, job: str, where: str
) -> SentByPlan:
    """Return what a model sends that is trained as `options` of `cellplan estimate` say, with its ranks on `slots`.
    Raise InputError for options that there are not or that contradict each other, and as `sent_by_file`."""
    if names_code(reference):
        expected = "a model's name or its config.json: code is not run from a file"
        raise InputError(where=where, key="model", found=reference, expected=expected)
    known = ["schedule", *entries(DegreeOptions), *entries(ChoiceOptions)]
    unknown = next((name for name in options if name not in known or name in NOT_OF_A_JOB), None)
    if unknown is not None:
        expected = f"some of {', '.join(name for name in dict.fromkeys(known) if name not in NOT_OF_A_JOB)}"
        raise InputError(where=where, key="degrees", found=unknown, expected=expected)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    try:
        asked = EstimateOptions(model=reference, cluster=cluster.text, devices=len(slots), **values)
        setup = read_explicit(asked, store=None, as_planned=True).setups[0] if asked.explicit else None
    except InputError as error:
        key = "model" if error.key == "model" else f"degrees: {error.key or error.where}"
        raise InputError(where=where, key=key, found=error.found, expected=error.expected) from None
    if setup is None:
        raise InputError(where=where, key="degrees", found="none", expected=f"some of {', '.join(DEGREES)}")
    taken = [slot for stage in setup.stages for slot in stage.slots]
    if len(taken) != len(slots):
        expected = f"the {len(slots)} devices of job {job}"
        raise InputError(where=where, key="degrees", found=f"{len(taken)} devices", expected=expected)
    here = dict(zip(taken, slots, strict=True))
    stages = tuple(replace(stage, slots=tuple(here[slot] for slot in stage.slots)) for stage in setup.stages)
    return _sent(replace(setup, stages=stages), job)


def _sent(setup: Setup, job: str) -> SentByPlan:
    priced = price_setup(setup)
    if isinstance(priced, Infeasible):
        raise NothingFits(f"job {job}: {priced.reason}")
    traffic = traffic_of(priced, float(count_setup_flops(setup).model))
    return SentByPlan(traffic=traffic, slots=tuple(slot for stage in setup.stages for slot in stage.slots))
