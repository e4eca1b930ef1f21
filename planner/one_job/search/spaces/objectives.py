"""What a plan may be chosen for: time, money or energy, of an iteration and of a training.

Money and energy are those of the devices alone, all of them busy all the time: hosts, network, storage and cooling come
on top. A price that no cluster file states is never made up: the answer is then `Infeasible` and says whose it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from estimator.pricing.training import HOUR_S, POWER_SHARE
from planner.shared.options.search import Objective
from planner.shared.plan import Plan
from profiles.cluster import Cluster, DeviceSlot, NodeGroup
from profiles.errors import InputError
from profiles.vocabulary import Infeasible


def price_per_hour(cluster: Cluster, slots: Iterable[DeviceSlot]) -> float | Infeasible:
    """What `slots` cost in an hour, in the cluster file's currency: the sum of their `price_per_device_hour`."""
    return _sum_over(
        cluster,
        slots,
        lambda group: group.price_per_device_hour,
        "{cluster} has no price_per_device_hour for {device} (a cluster file may)",
    )


def power_w(cluster: Cluster, slots: Iterable[DeviceSlot]) -> float | Infeasible:
    """What `slots` draw while training: each `POWER_SHARE` of the cluster file's `power_w`, else of the datasheet's."""
    most = _sum_over(
        cluster,
        slots,
        lambda group: group.device.power_w if group.power_w is None else group.power_w,
        "neither {cluster} nor a datasheet states the power of {device}",
    )
    return most if isinstance(most, Infeasible) else most * POWER_SHARE


def cost(cluster: Cluster, slots: Iterable[DeviceSlot], seconds: float) -> float | Infeasible:
    """What `slots` cost in `seconds`: devices x hours x price, in the cluster file's currency.

    >>> from dataclasses import replace
    >>> from profiles.cluster_file import load_cluster
    >>> here = load_cluster("h100:1x8")
    >>> cost(here, here.slots, 3600.0).reason
    'h100:1x8 has no price_per_device_hour for h100 (a cluster file may)'
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


def training_iterations(train_tokens: float, *, global_batch: int, seq_len: int) -> int:
    """Whole iterations that `train_tokens` take. ValueError for a model without tokens.

    >>> training_iterations(1e6, global_batch=16, seq_len=128)
    489
    """
    if train_tokens <= 0 or global_batch < 1 or seq_len < 1:
        raise ValueError(
            f"training: train_tokens={train_tokens}, global_batch={global_batch}, seq_len={seq_len};"
            " expected all above 0"
        )
    return math.ceil(train_tokens / (global_batch * seq_len))


def plan_amount(objective: Objective, plan: Plan, cluster: Cluster) -> float | Infeasible:
    """What an iteration of `plan`, whose ranks sit on `cluster`, takes of what `objective` minds."""
    return amount(objective, cluster, slots_of_plan(plan, cluster), plan.estimate.iteration_time_s)


def training_amount(objective: Objective, plan: Plan, cluster: Cluster, *, train_tokens: float) -> float | Infeasible:
    """What training `plan` on `train_tokens` takes of what `objective` minds, where nothing fails and nothing is saved
    (`estimator.pricing.training` counts failures and checkpoints)."""
    if plan.model.seq_len is None:
        return Infeasible(reason=f"{plan.model.name} has no tokens", lacking="support")
    iterations = training_iterations(train_tokens, global_batch=plan.batch.global_batch, seq_len=plan.model.seq_len)
    return amount(objective, cluster, slots_of_plan(plan, cluster), iterations * plan.estimate.iteration_time_s)


def slots_of_plan(plan: Plan, cluster: Cluster) -> tuple[DeviceSlot, ...]:
    """The places of the plan's ranks, by rank. InputError where `cluster` has none of that device there."""
    known = {(slot.site, slot.node, slot.index, slot.device): slot for slot in cluster.slots}
    found = []
    for device in plan.devices:
        slot = known.get((device.site, device.node, device.index, device.device))
        if slot is None:
            place = f"{device.device} {device.index} of node {device.node} in {device.site}"
            raise InputError(
                where="plan",
                key=f"devices[{device.rank}]",
                found=f"{place}, which {cluster.text} has not",
                expected=f"a device of {plan.cluster}, which the plan was made for",
            )
        found.append(slot)
    return tuple(found)


def _sum_over(
    cluster: Cluster, slots: Iterable[DeviceSlot], figure: Callable[[NodeGroup], float | None], lacking: str
) -> float | Infeasible:
    """The sum of each slot's `figure`; Infeasible with the sentence `lacking` about the first that has none."""
    terms = []
    for (site, number), count in Counter((slot.site, slot.group) for slot in slots).items():
        group = cluster.site(site).nodes[number]
        value = figure(group)
        if value is None:
            reason = lacking.format(cluster=cluster.text, device=group.device.name)
            return Infeasible(reason=reason, lacking="support")
        terms.append(count * value)
    return math.fsum(terms)
