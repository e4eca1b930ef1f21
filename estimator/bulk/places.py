"""Where the equal stages of a pipeline sit: which of them sit alike, and the links between neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from estimator.communication.groups import Group
from estimator.pricing.link_times import LinkTimes, cluster_in_training
from estimator.pricing.rank_groups import SlotRun, repeats_after
from profiles.cluster import Cluster, DeviceSlot


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Device places in the order in which ranks take them. `start` is where they begin in the cluster's own order, if
    they follow it without a gap; then stages that begin at the same place of a period sit alike."""

    cluster: Cluster
    slots: tuple[DeviceSlot, ...]
    start: int | None
    links: LinkTimes
    _pairs: dict[tuple[int, int, int], tuple[list[Group], list[Group]]] = field(default_factory=dict, repr=False)

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

    def stage(self, number: int, size: int) -> tuple[DeviceSlot, ...]:
        """The slots of stage `number`."""
        found = self.slots[number * size : (number + 1) * size]
        return found if self.start is None else SlotRun(found, self.start + number * size)

    def pairs(self, one: int, other: int, size: int) -> tuple[list[Group], list[Group]]:
        """The different ways between partners of two stages, plainly and in training."""
        period, first = self.period, one * size
        key = (first if period is None else first % period, (other - one) * size, size)
        if key not in self._pairs:
            a, b = self.stage(one, size), self.stage(other, size)
            if period is not None and size > 2 * period:
                # Partners are equally far from each other: what one period shows, the next repeats.
                a, b = (*a[:period], a[-1]), (*b[:period], b[-1])
            reached = cluster_in_training(self.cluster, self.links.parameters)
            self._pairs[key] = self.links.pairs(a, b), self.links.pairs(a, b, reached)
        return self._pairs[key]


def place_in_order(cluster: Cluster, slots: Sequence[DeviceSlot], links: LinkTimes) -> Placement:
    """Ranks on `slots` in turn."""
    taken = tuple(slots)
    runs = len(cluster.sites) == 1 and cluster.slots[: len(taken)] == taken
    return Placement(cluster=cluster, slots=taken, start=0 if runs else None, links=links)


def whole_groups(slots: Sequence[DeviceSlot], tp: int) -> tuple[DeviceSlot, ...]:
    """Of each node's free slots as many as make whole groups of `tp`, so that no group straddles nodes."""
    by_node: dict[tuple[str, int], list[DeviceSlot]] = {}
    for slot in slots:
        by_node.setdefault((slot.site, slot.node), []).append(slot)
    return tuple(slot for own in by_node.values() for slot in own[: len(own) // tp * tp])
