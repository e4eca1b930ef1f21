"""Slots renumbered: of nodes that stand alike, who shares one with whom is all that tells placements apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import cast

from estimator.communication.uplinks import without_tree
from profiles.cluster import Cluster, DeviceSlot, NodeGroup, Site
from profiles.records import replace

MOST_KEPT = 4096


class SlotRun(tuple[DeviceSlot, ...]):
    """Slots that follow the cluster's own order from place `start` on, known to do so."""

    start: int

    def __new__(cls, slots: Sequence[DeviceSlot], start: int) -> SlotRun:
        made = super().__new__(cls, slots)
        made.start = start
        return made


def nodes_in_a_row(cluster: Cluster, slots: Sequence[DeviceSlot]) -> tuple[Cluster, tuple[DeviceSlot, ...]]:
    """Return slots that sit as `slots` do with nothing above the nodes, and the cluster that they are of: on the first
    nodes of their kind, in the order in which they come, equal for all placements that are told apart by what is above
    alone. Where there are several sites, nodes differ, or islands span them, they are `slots` themselves."""
    plain = without_tree(cluster)
    whole = _with_alike_joined(plain)
    renumbered = _renumbered(whole, tuple(slots))
    return (plain, tuple(slots)) if renumbered is None else (whole, renumbered)


@lru_cache(maxsize=MOST_KEPT)
def _renumbered(whole: Cluster, slots: tuple[DeviceSlot, ...]) -> tuple[DeviceSlot, ...] | None:
    if len(whole.sites) > 1 or len(whole.sites[0].nodes) > 1:
        return None
    (group,) = whole.sites[0].nodes
    if group.island_size > group.devices:
        return None
    numbers: dict[int, int] = {}
    places = [numbers.setdefault(slot.node, len(numbers)) * group.devices + slot.index for slot in slots]
    every = whole.slots
    first, last = places[0], places[-1]
    if places == list(range(first, last + 1)):
        return SlotRun(every[first : last + 1], first)
    return tuple(every[place] for place in places)


def _with_alike_joined(cluster: Cluster) -> Cluster:
    """The cluster with neighbouring groups of equal nodes as one, whatever of them is free; made once."""
    joined = cluster.known_groups.get("alike_joined")
    if joined is None:
        sites = tuple(replace(site, nodes=_joined(site)) for site in cluster.sites)
        joined = cluster.known_groups["alike_joined"] = replace(cluster, sites=sites)
    return cast("Cluster", joined)


def _joined(site: Site) -> tuple[NodeGroup, ...]:
    runs = groupby(site.nodes, lambda group: replace(group, count=1, free=None))
    return tuple(replace(kind, count=sum(group.count for group in run)) for kind, run in runs)
