"""Stages on several types of device: the setup as the ranks of each type see it."""

from __future__ import annotations

from functools import lru_cache

from estimator.pricing.recipe import Setup, StageSetup
from profiles.cluster import Cluster
from profiles.records import replace
from profiles.vocabulary import Device


def rank_kinds(setup: Setup, number: int) -> tuple[Setup, ...]:
    """`setup` once for each type of device in stage `number`, in the order of the stage's slots: as if all of its ranks
    were of that type and had as many samples as the type's fullest replica, on the links that they have. `setup` itself
    where there is one type."""
    stage = setup.stages[number]
    samples = _samples_by_device(setup, stage)
    if len(samples) == 1:
        return (setup,)
    return tuple(
        on_one_device(setup, stage, device, samples=most, stages=len(setup.stages)) for device, most in samples.items()
    )


def on_one_device(setup: Setup, stage: StageSetup, device: Device, *, samples: int, stages: int) -> Setup:
    """A pipeline of as many `stages`, all like `stage`, whose ranks are all of `device` and have `samples` samples of a
    micro-batch; there are as many micro-batches as in `setup`."""
    micro_batch = samples * stage.dp
    return replace(
        setup,
        cluster=_all_of(setup.cluster, device),
        recipe=replace(setup.recipe, global_batch=micro_batch * setup.micro_batches),
        stages=(replace(stage, shares=None),) * stages,
        micro_batch=micro_batch,
    )


def _samples_by_device(setup: Setup, stage: StageSetup) -> dict[Device, int]:
    """The most samples of a micro-batch that a rank of each type of device has."""
    shares = stage.shares or (setup.micro_batch // stage.dp,) * stage.dp
    groups = {(slot.site, slot.group): slot for slot in stage.slots}
    devices = {key: setup.cluster.group_of(slot).device for key, slot in groups.items()}
    if len(set(devices.values())) == 1:
        return {next(iter(devices.values())): max(shares)}
    found: dict[Device, int] = {}
    ranks = stage.tp * stage.cp
    for number, slot in enumerate(stage.slots):
        device = devices[slot.site, slot.group]
        found[device] = max(found.get(device, 0), shares[number // ranks])
    return found


@lru_cache(maxsize=64)
def _all_of(cluster: Cluster, device: Device) -> Cluster:
    """`cluster` with `device` in every place."""
    return replace(
        cluster,
        sites=tuple(
            replace(site, nodes=tuple(replace(group, device=device) for group in site.nodes)) for site in cluster.sites
        ),
    )
