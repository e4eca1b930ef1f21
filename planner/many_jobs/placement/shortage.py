"""Why no plan fits on the devices that sites gave a job, and the fewest devices on which one does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.many_jobs.placement.ground import Ground, devices_of, plan_on, sites_of
from planner.many_jobs.sites.choosing import place_on_sites
from planner.many_jobs.sites.records import NoSites
from planner.one_job.search.varied import with_constraints
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from profiles.cluster import DeviceSlot

FEW_PRICED = 8
"""Plans that are priced to learn whether one fits at all."""


def explain_no_plan(ground: Ground, slots: Sequence[DeviceSlot], wanted: PlaceOptions) -> str:
    """A sentence: what was tried, what the devices have, and what would help. Nothing fits on `slots`."""
    sites = sites_of(slots)
    count = f"{len(slots)} device{'s' * (len(slots) > 1)}"
    where = f"{ground.request.reference} on {count} of {' and '.join(sites)}"
    asked = ground.request.spaces[0].space.constraints.fix
    if asked:
        where += " with " + ", ".join(f"{name}={value}" for name, value in asked.items())
    memory = sum(ground.cluster.group_of(slot).device.memory_bytes for slot in slots)
    said = [f"{where}: no plan fits; their memory is {memory / 2**30:.0f} GiB in all"]
    if wanted.all_sites and len(sites) > 1:
        across = plan_on(ground, slots, most=FEW_PRICED)
        if across is not None:
            used = " and ".join(dict.fromkeys(device.site for device in across.plan.devices))
            said.append(f"without --all-sites one fits on {used}")
            return "; ".join(said)
    said.append(_what_helps(ground, len(slots), wanted))
    return "; ".join(said)


def _what_helps(ground: Ground, devices: int, wanted: PlaceOptions) -> str:
    """The fewest devices that fit, by doubling and halving, or that all there are do not."""
    table, demand = ground.table, ground.demand
    most = sum(table.free_for(demand.types))
    low, high = devices, min(2 * devices, most)
    least_plan: Plan | None = None
    while low < high:
        least_plan = _plan_of(ground, high, wanted)
        if least_plan is not None or high == most:
            break
        low, high = high, min(2 * high, most)
    if least_plan is None:
        return f"nor does one on more of the {most} devices that are free"
    while high - low > 1:
        middle = (low + high) // 2
        better = _plan_of(ground, middle, wanted)
        if better is None:
            low = middle
        else:
            high, least_plan = middle, better
    sites = " and ".join(dict.fromkeys(device.site for device in least_plan.devices))
    return f"--devices {high} would do, on {sites} ({high - devices} more)"


def _plan_of(ground: Ground, devices: int, wanted: PlaceOptions) -> Plan | None:
    """A plan on so many devices of the best sites; None where there is none."""
    demand = replace(ground.demand, devices=devices)
    placed = place_on_sites(ground.table, demand)
    if isinstance(placed, NoSites):
        return None
    request = with_constraints(ground.request, lambda limits: replace(limits, most={**limits.most, "devices": devices}))
    more = replace(ground, request=request, demand=demand)
    across = plan_on(more, devices_of(ground, placed.sites), all_sites=wanted.all_sites, most=FEW_PRICED)
    return None if across is None else across.plan
