"""What of a plan sits in one site, as a matrix on the free nodes there; and a placement of it as a plan again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain

from estimator.pricing.recipe import Setup
from planner.one_job.pods.matrix import JobMatrix, matrix_of
from planner.one_job.pods.seating import Seats
from planner.one_job.site_pods.free_nodes import Alike, FreeNodes, alike_nodes, free_nodes
from profiles.cluster import DeviceSlot, Site
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

Seating = tuple[tuple[tuple[int, ...], ...], ...]
"""The nodes of every cell, column by column; columns may differ in cells."""


@dataclass(frozen=True, kw_only=True)
class SiteJob:
    """The `stages` of a plan that sit in a site, by number, their matrix, and the free nodes of the site."""

    setup: Setup
    stages: tuple[int, ...]
    matrix: JobMatrix
    nodes: FreeNodes

    @cached_property
    def site(self) -> Site:
        """Where it is."""
        return self.setup.cluster.site(self.nodes.site)

    @cached_property
    def alike(self) -> tuple[Alike, ...]:
        """Of every node of the site what prices know it by."""
        return alike_nodes(self.site.network)

    @cached_property
    def pod_of_node(self) -> dict[int, int]:
        """The pod of every free node."""
        return {node: pod for pod, nodes in enumerate(self.nodes.nodes) for node in nodes}

    @cached_property
    def _slots(self) -> dict[int, tuple[DeviceSlot, ...]]:
        """The devices of every free node."""
        slots: dict[int, list[DeviceSlot]] = {}
        for slot in self.setup.cluster.slots:
            if slot.site == self.nodes.site and slot.node in self.pod_of_node:
                slots.setdefault(slot.node, []).append(slot)
        return {node: tuple(here) for node, here in slots.items()}

    def shortage(self) -> Infeasible | None:
        """Return what lacks where the free nodes do not hold the job, else None."""
        width = self.matrix.nodes_a_cell
        wanted, room = self.matrix.nodes // width, sum(count // width for count in self.nodes.counts)
        if room >= wanted:
            return None
        partly = f" ({self.nodes.partly_busy} more are partly busy)" if self.nodes.partly_busy else ""
        return Infeasible(
            reason=f"{self.matrix.nodes} nodes asked for, {sum(self.nodes.counts)} free nodes in"
            f" {len(self.nodes.pods)} parts of {self.nodes.site}{partly}: {(wanted - room) * width} too few",
            lacking="devices",
        )

    def seated(self, seating: Seating) -> Setup:
        """Return the plan with its ranks in the site on these nodes, the devices of a cell's nodes in order."""
        slots: dict[int, DeviceSlot] = {}
        for column, cells in zip(self.matrix.columns, seating, strict=True):
            for ranks, nodes in zip(column.ranks, cells, strict=True):
                places = chain.from_iterable(self._slots[node] for node in nodes)
                slots.update(zip(ranks, places, strict=True))
        stages, first = list(self.setup.stages), 0
        for number in self.stages:
            count = len(stages[number].slots)
            stages[number] = replace(stages[number], slots=tuple(slots[first + rank] for rank in range(count)))
            first += count
        return replace(self.setup, stages=tuple(stages))

    def pods_of(self, seating: Seating) -> tuple[tuple[int, ...], ...]:
        """Return the pod of every cell, column by column (that of its first node)."""
        return tuple(tuple(self.pod_of_node[cell[0]] for cell in column) for column in seating)


def site_job(setup: Setup, site: str) -> SiteJob | Infeasible | None:
    """Return what of `setup` sits in `site`; None where nothing does, or the site has no pods; Infeasible where a stage
    is in several sites, or where its stages are no matrix of nodes. Raise InputError where degrees divide nothing."""
    stages = [number for number, stage in enumerate(setup.stages) if any(slot.site == site for slot in stage.slots)]
    place = setup.cluster.site(site)
    if not stages or not place.network.levels:
        return None
    across = [number for number in stages if any(slot.site != site for slot in setup.stages[number].slots)]
    if across:
        return Infeasible(
            reason=f"stage {across[0]} is in several sites: it has no nodes of {site} by itself", lacking="support"
        )
    part = replace(setup, stages=tuple(setup.stages[number] for number in stages))
    group = setup.cluster.group_of(part.stages[0].slots[0])
    matrix = matrix_of(part)
    if isinstance(matrix, Infeasible):
        return matrix
    whole_racks = not (matrix.nodes_a_cell * group.devices) % group.island_size and group.island_size > group.devices
    nodes = free_nodes(setup.cluster, place, group, whole_racks=whole_racks)
    if nodes is None:
        return None
    return SiteJob(setup=setup, stages=tuple(stages), matrix=matrix, nodes=nodes)


def by_columns(seats: Seats[int]) -> Seating:
    """Return seats that are row by row as columns."""
    return tuple(zip(*seats, strict=True))


def rows_of(seating: Seating) -> Sequence[tuple[tuple[int, ...], ...]]:
    """Return the rows of a seating whose columns have equally many cells."""
    return list(zip(*seating, strict=True))
