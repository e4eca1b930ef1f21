"""The stages that send beside each other: all groups of an axis, of every stage, share the uplinks above the nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from estimator.communication.levels import Uplinks
from estimator.communication.uplinks import (
    Loads,
    Seats,
    add_loads,
    fabric_arrays,
    groups_of,
    no_loads,
    seats_of,
    uplinks_of,
)
from profiles.cluster import Cluster, DeviceSlot

Layout = tuple[int, int]
"""Distance between neighbours of a group, and its ranks."""


class Company:
    """The slots of all stages of one job. What they put on uplinks is counted once for each way to make groups of them.

    The groups of every stage are taken to be as busy as the one that is asked about: synchronous, and given as much.
    The only state is caches.
    """

    def __init__(self, stages: Sequence[Sequence[DeviceSlot]]) -> None:
        self.stages = tuple(stages)
        self._seats: dict[Hashable, tuple[Seats, ...]] = {}
        self._loads: dict[Hashable, Loads] = {}

    def uplinks(
        self, cluster: Cluster, slots: Sequence[DeviceSlot], layout: Layout, layouts: Sequence[Layout]
    ) -> list[Uplinks | None]:
        """Return what uplinks hold back of each group of `layout` on `slots`, while the groups of all stages of this
        company, made as `layouts` say, are busy; groups on `slots` are busy in any case."""
        fabric = fabric_arrays(cluster)
        seats = seats_of(cluster, slots)
        groups = groups_of(len(slots), *layout)
        alone = no_loads(fabric)
        add_loads(alone, fabric, seats, groups)
        return uplinks_of(fabric, self._all_loads(cluster, tuple(layouts)).at_least(alone), seats, groups)

    def _all_loads(self, cluster: Cluster, layouts: tuple[Layout, ...]) -> Loads:
        # Islands that span nodes are other boxes; rates play no part.
        shape = tuple(group.island_size for site in cluster.sites for group in site.nodes)
        key = (shape, layouts)
        if key not in self._loads:
            fabric = fabric_arrays(cluster)
            if shape not in self._seats:
                self._seats[shape] = tuple(seats_of(cluster, slots) for slots in self.stages)
            loads = no_loads(fabric)
            for seats, (stride, size) in zip(self._seats[shape], layouts, strict=True):
                if size > 1 and not len(seats.nodes) % (stride * size):
                    add_loads(loads, fabric, seats, groups_of(len(seats.nodes), stride, size))
            self._loads[key] = loads
        return self._loads[key]
