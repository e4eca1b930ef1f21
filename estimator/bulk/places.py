"""Where the equal stages of a pipeline sit: which of them sit alike, and the links between neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from estimator.communication.groups import Group
from estimator.communication.renumbered import SlotRun
from estimator.pricing.link_times import LinkTimes, cluster_in_training
from estimator.pricing.rank_groups import repeats_after
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass


class Places(tuple[DeviceSlot, ...]):
    """Device places as part of a key: told apart by all of them, hashed by a few."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash((len(self), self[:1], self[-1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Device places in the order in which ranks take them. `start` is where they begin in the cluster's own order, if
    they follow it without a gap; then stages that begin at the same place of a period sit alike."""

    cluster: Cluster
    slots: Places
    start: int | None
    key: int = field(init=False, repr=False, compare=False)
    """Its hash, which searches ask for by the thousand."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", hash((self.slots, self.start)))

    def __hash__(self) -> int:
        return self.key

    @property
    def period(self) -> int | None:
        """After so many slots everything repeats; None where it does not, or nobody knows."""
        return None if self.start is None else repeats_after(self.cluster)

    def classes(self, size: int, stages: int) -> tuple[int, ...]:
        """For each of `stages` stages of `size` slots, the first stage that sits as it does."""
        period = self.period
        if period is None:
            return tuple(range(stages))
        known: dict[int, int] = {}
        return tuple(known.setdefault(stage * size % period, stage) for stage in range(stages))

    def different(self, size: int, stages: int) -> Sequence[int]:
        """Return the stages of `stages` of `size` slots that sit as none before them."""
        period = self.period
        # Stages begin at the same place of the period again after so many of them.
        return range(stages if period is None else min(stages, period // math.gcd(size, period)))

    def stage(self, number: int, size: int) -> tuple[DeviceSlot, ...]:
        """The slots of stage `number`."""
        found = self.slots[number * size : (number + 1) * size]
        return found if self.start is None else SlotRun(found, self.start + number * size)

    def pairs(self, links: LinkTimes, one: int, other: int, size: int) -> tuple[list[Group], list[Group]]:
        """Return the different ways between partners of two stages of `size` slots, plainly and in training."""
        first, distance, period = one * size, (other - one) * size, self.period
        if period is not None:
            # All stages of a pair sit as the first such pair does.
            first -= min(first, first + distance) // period * period
        return links.pricing.remember(self._pairs, links, first, distance, size)

    def _pairs(self, links: LinkTimes, first: int, distance: int, size: int) -> tuple[list[Group], list[Group]]:
        here, there = self.slots[first : first + size], self.slots[first + distance : first + distance + size]
        period = self.period
        if period is not None and size > 2 * period:
            # Partners are equally far from each other: what one period shows, the next repeats.
            here, there = (*here[:period], here[-1]), (*there[:period], there[-1])
        reached = cluster_in_training(self.cluster, links.pricing.parameters)
        return links.pairs(here, there), links.pairs(here, there, reached)


def place_in_order(cluster: Cluster, slots: Sequence[DeviceSlot]) -> Placement:
    """Return the placement of ranks on `slots` in turn."""
    taken = Places(slots)
    runs = len(cluster.sites) == 1 and cluster.slots[: len(taken)] == taken
    return Placement(cluster=cluster, slots=taken, start=0 if runs else None)


def whole_groups(slots: Sequence[DeviceSlot], tp: int) -> tuple[DeviceSlot, ...]:
    """Of each node's free slots as many as make whole groups of `tp`, so that no group straddles nodes."""
    by_node: dict[tuple[str, int], list[DeviceSlot]] = {}
    for slot in slots:
        by_node.setdefault((slot.site, slot.node), []).append(slot)
    return tuple(slot for own in by_node.values() for slot in own[: len(own) // tp * tp])
