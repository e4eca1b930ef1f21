"""What a plan may be chosen for: time, money or energy of an iteration.

Money and energy are those of the devices alone (`estimator.pricing.upkeep`), all of them busy all the time.
"""

from __future__ import annotations

from collections.abc import Iterable

from estimator.pricing.upkeep import HOUR_S, power_w, price_per_hour
from planner.shared.options.search import Objective
from planner.shared.plan import Plan
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError
from profiles.vocabulary import Infeasible


def cost(cluster: Cluster, slots: Iterable[DeviceSlot], seconds: float) -> float | Infeasible:
    """What `slots` cost in `seconds`: devices x hours x price, in the cluster file's currency.

    >>> from dataclasses import replace
    >>> from profiles.cluster_file import load_cluster
    >>> here = load_cluster("h100:1x8")
    >>> cost(here, here.slots, 3600.0).reason
    'h100:1x8 has no price_per_device_hour for h100 (--price or a cluster file may)'
    """
    rate = price_per_hour(cluster, slots)
    return rate if isinstance(rate, Infeasible) else rate * seconds / HOUR_S


def energy_joules(cluster: Cluster, slots: Iterable[DeviceSlot], seconds: float) -> float | Infeasible:
    """What `slots` use in `seconds`, in joules.

    >>> from profiles.cluster_file import load_cluster
    >>> here = load_cluster("h100:1x8")
    >>> energy_joules(here, here.slots, 2.0)
    11200.0
    """
    rate = power_w(cluster, slots)
    return rate if isinstance(rate, Infeasible) else rate * seconds


def amount(objective: Objective, cluster: Cluster, slots: Iterable[DeviceSlot], seconds: float) -> float | Infeasible:
    """What `seconds` on `slots` take of what `objective` minds: seconds, the cluster file's currency, or joules.

    Of plans with the same global batch the one whose iteration takes least is the best.
    """
    if objective == "time":
        return seconds
    return (cost if objective == "cost" else energy_joules)(cluster, slots, seconds)


def plan_amount(objective: Objective, plan: Plan, cluster: Cluster) -> float | Infeasible:
    """What an iteration of `plan`, whose ranks sit on `cluster`, takes of what `objective` minds."""
    return amount(objective, cluster, slots_of_plan(plan, cluster), plan.estimate.iteration_time_s)


def slots_of_plan(plan: Plan, cluster: Cluster) -> tuple[DeviceSlot, ...]:
    """The places of the plan's ranks, by rank. InputError where `cluster` has none of that device there."""
    places = {(slot.site, slot.node, slot.index, slot.device): slot for slot in cluster.slots}
    slots = []
    for device in plan.devices:
        slot = places.get((device.site, device.node, device.index, device.device))
        if slot is None:
            place = f"{device.device} {device.index} of node {device.node} in {device.site}"
            raise InputError(
                where="plan",
                key=f"devices[{device.rank}]",
                found=f"{place}, which {cluster.text} has not",
                expected=f"a device of {plan.cluster}, which the plan was made for",
            )
        slots.append(slot)
    return tuple(slots)
