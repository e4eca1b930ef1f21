"""A plan on devices that are free: any of the right type in the right site, whole nodes first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from estimator.pricing.recipe import Setup
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError, NothingFits
from profiles.records import replace


def free_places(wanted: Sequence[tuple[str, str]], cluster: Cluster, where: str) -> tuple[DeviceSlot, ...]:
    """Return a free device for every (site, device type) that is wanted, whole nodes first. Raise InputError for a site
    that the cluster lacks, NothingFits for too few free devices of a type."""
    free: defaultdict[tuple[str, str], list[DeviceSlot]] = defaultdict(list)
    for slot in _whole_nodes_first(cluster):
        free[slot.site, slot.device].append(slot)
    names = [site.name for site in cluster.sites]
    for (site, device), count in Counter(wanted).items():
        if site not in names:
            expected = f"a site of {cluster.text}: {', '.join(names)}"
            raise InputError(where=where, key="devices[].site", found=repr(site), expected=expected)
        here = len(free[site, device])
        if here < count:
            types = Counter(slot.device for slot in cluster.free_slots if slot.site == site and slot.device != device)
            others = ", ".join(f"{number} {name}" for name, number in types.items())
            said = f"{count} {device} wanted, {here} free in {site}: {count - here} too few"
            raise NothingFits(
                f"{where} on {cluster.text}: {said}{f'; free of other types: {others}' if others else ''}"
            )
    lines = {key: iter(slots) for key, slots in free.items()}
    return tuple(next(lines[key]) for key in wanted)


def on_free_devices(setup: Setup, cluster: Cluster) -> Setup:
    """Return a plan on free devices of `cluster`, each rank's in its own site and of its own type. Raise NothingFits
    where too few are free."""
    wanted = [(slot.site, slot.device) for stage in setup.stages for slot in stage.slots]
    slots = iter(free_places(wanted, cluster, "the plan"))
    stages = tuple(replace(stage, slots=tuple(next(slots) for _ in stage.slots)) for stage in setup.stages)
    return replace(setup, cluster=cluster, stages=stages)


def _whole_nodes_first(cluster: Cluster) -> Sequence[DeviceSlot]:
    free = Counter((slot.site, slot.node) for slot in cluster.free_slots)
    return sorted(cluster.free_slots, key=lambda slot: free[slot.site, slot.node] < cluster.group_of(slot).devices)
