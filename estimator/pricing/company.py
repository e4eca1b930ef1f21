"""The stages that send beside each other: all groups of an axis, of every stage, share the uplinks above the nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from estimator.communication.renumbered import nodes_in_a_row
from estimator.communication.uplinks import (
    Above,
    Integers,
    Loads,
    Meeting,
    Seats,
    add_loads,
    fabric_arrays,
    groups_of,
    inside_parts,
    meet,
    no_loads,
    seats_of,
    worst_of,
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
        self._places = {(slots[0], len(slots)): number for number, slots in enumerate(self.stages)}
        self._rows: dict[Hashable, tuple[Cluster, tuple[DeviceSlot, ...]]] = {}
        self._seats: dict[Hashable, tuple[Seats, ...]] = {}
        self._loads: dict[Hashable, Loads] = {}
        self._meetings: dict[Hashable, tuple[Meeting, Loads | None]] = {}

    def above(self, cluster: Cluster, slots: Sequence[DeviceSlot], layout: Layout, layouts: Sequence[Layout]) -> Above:
        """Return what is above the groups of `layout` on `slots`, of each figure that of the group which it is worst
        for, while the groups of all stages of this company, made as `layouts` say, are busy; groups on `slots` are busy
        in any case."""
        number = self._places.get((slots[0], len(slots)))
        counted = number is not None and layouts[number] == layout
        meeting, alone = self._meeting(cluster, slots, number, layout, counted=counted)
        if max(meeting.parts_met) == 1:
            return inside_parts(cluster)
        loads = self._all_loads(cluster, tuple(layouts))
        return worst_of(cluster, loads if alone is None else loads.at_least(alone), meeting)

    def in_a_row(self, cluster: Cluster, slots: tuple[DeviceSlot, ...]) -> tuple[Cluster, tuple[DeviceSlot, ...]]:
        """Return the slots of a stage as `nodes_in_a_row` does."""
        number = self._places.get((slots[0], len(slots)))
        if number is None:
            return nodes_in_a_row(cluster, slots)
        key = cluster, number
        if key not in self._rows:
            self._rows[key] = nodes_in_a_row(cluster, slots)
        return self._rows[key]

    def chains(self, cluster: Cluster) -> Integers | None:
        """Return the nodes of every pipeline, (stages, ranks of a stage); None where stages have not equally many."""
        if len({len(slots) for slots in self.stages}) > 1:
            return None
        return np.stack([seats.nodes for seats in self._all_seats(cluster)])

    def _meeting(
        self, cluster: Cluster, slots: Sequence[DeviceSlot], number: int | None, layout: Layout, *, counted: bool
    ) -> tuple[Meeting, Loads | None]:
        """What the groups meet, and what they put on uplinks where that is not in the company's loads."""
        key = (_shape(cluster), number, layout, counted)
        if number is not None and key in self._meetings:
            return self._meetings[key]
        fabric = fabric_arrays(cluster)
        seats = seats_of(cluster, slots) if number is None else self._all_seats(cluster)[number]
        groups = groups_of(len(slots), *layout)
        alone = None
        if not counted:
            alone = no_loads(fabric)
            add_loads(alone, fabric, seats, groups)
        found = meet(fabric, seats, groups), alone
        if number is not None:
            self._meetings[key] = found
        return found

    def _whole(self, cluster: Cluster) -> Seats:
        """All stages' seats, one stage after another."""
        every = self._all_seats(cluster)
        return Seats(
            nodes=np.concatenate([seats.nodes for seats in every]),
            boxes=np.concatenate([seats.boxes for seats in every]),
        )

    def _all_seats(self, cluster: Cluster) -> tuple[Seats, ...]:
        shape = _shape(cluster)
        if shape not in self._seats:
            self._seats[shape] = tuple(seats_of(cluster, slots) for slots in self.stages)
        return self._seats[shape]

    def _all_loads(self, cluster: Cluster, layouts: tuple[Layout, ...]) -> Loads:
        key = (_shape(cluster), layouts)
        if key not in self._loads:
            fabric = fabric_arrays(cluster)
            loads = no_loads(fabric)
            alike = len(set(layouts)) == len({len(slots) for slots in self.stages}) == 1
            every = [self._whole(cluster)] if alike else self._all_seats(cluster)
            for seats, (stride, size) in zip(every, layouts[:1] if alike else layouts, strict=True):
                if size > 1 and not len(self.stages[0] if alike else seats.nodes) % (stride * size):
                    add_loads(loads, fabric, seats, groups_of(len(seats.nodes), stride, size))
            self._loads[key] = loads
        return self._loads[key]


def _shape(cluster: Cluster) -> Hashable:
    """What of a job's cluster, of which others with other rates are made, decides who sits where: islands that span
    nodes are boxes."""
    return tuple(group.island_size for site in cluster.sites for group in site.nodes)
