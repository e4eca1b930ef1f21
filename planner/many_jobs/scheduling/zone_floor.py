"""A pool's nodes while a policy with reservations decides: what is free where, who sits where, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from planner.many_jobs.jobs.records import Grant, JobState, NodeCounts, Reservation, View, grant, grant_on
from planner.many_jobs.scheduling.node_choice import FreeNodes, fewest_nodes

Seated = tuple[JobState, NodeCounts]
"""A job that runs, and its nodes of the pool with how many devices of each."""


class Floor:
    """The figures of one pool, as they become in the course of a decision. `zones` are its reservations by job, `free`
    its free devices."""

    def __init__(self, view: View, pool: str) -> None:
        self.view, self.pool = view, pool
        self.size = view.pools[pool].devices_per_node
        self.counts = list(view.nodes[pool].counts)
        self.down = frozenset(view.nodes[pool].down)
        self.free = view.free[pool]
        self.zones = {id_: zone for id_, zone in view.reservations.items() if zone.pool == pool}
        self._unnamed = 0
        self._seated: list[Seated] | None = None
        self._outside: list[int] | None = None
        self._areas: dict[str, FreeNodes] = {}

    @property
    def seated(self) -> list[Seated]:
        """Who runs here and is not stopped."""
        if self._seated is None:
            self._seated = [
                (state, tuple((node, mask.bit_count()) for node, mask in state.placement[self.pool]))
                for state in self.view.running.values()
                if self.pool in state.placement
            ]
        return self._seated

    @property
    def outside(self) -> list[int]:
        """Nodes that are in no zone."""
        if self._outside is None:
            barred = {node for zone in self.zones.values() for node in zone.nodes}
            self._outside = [node for node in range(len(self.counts)) if node not in barred]
        return self._outside

    def whole(self, nodes: Iterable[int]) -> list[int]:
        """Return those of the nodes that are wholly free."""
        return [node for node in nodes if self.counts[node] == self.size]

    def keep(self, zone: Reservation) -> None:
        """A zone begins, or another takes the place of the job's."""
        self.zones[zone.job] = zone
        self._outside = None
        self._areas.clear()

    def free_zone(self, job: str) -> None:
        """A zone ends."""
        del self.zones[job]
        self._outside = None
        self._areas.clear()

    def stop_on(self, nodes: Collection[int], stopped: Callable[[JobState], None]) -> None:
        """Stop who sits on any of these nodes, and tell of each."""
        staying = list[Seated]()
        for state, seats in self.seated:
            if any(node in nodes for node, _ in seats):
                for node, count in seats:
                    self.counts[node] += count
                    self.free += count
                stopped(state)
            else:
                staying.append((state, seats))
        self._seated = staying
        self._areas.clear()

    def start(self, devices: int, lenders: Sequence[str] = (), *, named: bool = False) -> Grant | None:
        """Return a grant of so many devices on as few nodes as may be of those outside of all zones, and of the zones
        of `lenders` after them; None where they have too few. They are free no longer. It names the nodes where there
        are zones, and where it must (`named`), as for a job that is stopped elsewhere."""
        if self.free < devices:
            return None
        if not self.zones and not named:
            self._unnamed += devices
            self.free -= devices
            return grant(self.pool, devices)
        areas = [self._area("", self.outside), *(self._area(job, self.zones[job].nodes) for job in lenders)]
        if not lenders and areas[0].free - self._unnamed < devices:
            return None
        nodes = fewest_nodes(areas, devices)
        return None if nodes is None else self._taken(nodes)

    def start_on(self, nodes: Sequence[int], devices: int) -> Grant | None:
        """Return a grant of so many devices on these nodes, in their order, the last one perhaps in part; None where
        they are not free."""
        counts, left = list[tuple[int, int]](), devices
        for node in nodes:
            if left:
                counts.append((node, min(self.size, left)))
                left -= counts[-1][1]
        if left or any(self.counts[node] < count for node, count in counts):
            return None
        self._areas.clear()
        return self._taken(tuple(counts))

    def _area(self, zone: str, nodes: Sequence[int]) -> FreeNodes:
        """The nodes of the zone of a job; those outside of all under no name."""
        if zone not in self._areas:
            self._areas[zone] = FreeNodes(self.counts, nodes)
        return self._areas[zone]

    def _taken(self, nodes: NodeCounts) -> Grant:
        for node, count in nodes:
            self.counts[node] -= count
            self.free -= count
        return grant_on(self.pool, nodes)
