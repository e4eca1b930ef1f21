"""What devices cost in an hour and draw, all busy all the time: hosts, network, storage and cooling come on top.

A price that no cluster file states is never made up: the answer is then `Infeasible` and says whose it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from profiles.cluster import Cluster, DeviceSlot, NodeGroup
from profiles.vocabulary import Infeasible

HOUR_S = 3_600.0

POWER_SHARE = 1.0
"""Share of a device's power that it draws throughout a training: all of it, as Luccioni et al. 2022 (BLOOM, section
4.2) and Touvron et al. 2023 (LLaMA, section 6) count. Hosts, network and cooling come on top."""


def price_per_hour(cluster: Cluster, slots: Iterable[DeviceSlot]) -> float | Infeasible:
    """Return what `slots` cost in an hour, in the cluster file's currency: the sum of their `price_per_device_hour`."""
    return _sum_over(
        cluster,
        slots,
        lambda group: group.price_per_device_hour,
        "{cluster} has no price_per_device_hour for {device} (--price or a cluster file may)",
    )


def power_w(cluster: Cluster, slots: Iterable[DeviceSlot]) -> float | Infeasible:
    """Return the watts that `slots` draw while training: each `POWER_SHARE` of the cluster file's `power_w`, else of
    the datasheet's."""
    most = _sum_over(
        cluster,
        slots,
        lambda group: group.device.power_w if group.power_w is None else group.power_w,
        "neither {cluster} nor a datasheet states the power of {device}",
    )
    return most if isinstance(most, Infeasible) else most * POWER_SHARE


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
