"""What the price of a job's seats depends on: which of equal nodes, in equal parts of the network, it got does not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from estimator.communication.groups import nic_bytes_per_s
from planner.many_jobs.jobs.records import Pool
from planner.many_jobs.scheduling.cell_book import pool_name
from planner.many_jobs.scheduling.pool_networks import pool_nodes
from planner.many_jobs.simulation.placing import Pieces
from profiles.cluster import Cluster, DeviceSlot, NodeGroup, Site
from profiles.records import dataclass

Shape = tuple[Any, ...]
"""Members, the greatest first: nodes (devices of each island, the most first), or parts of the network (what its price
knows of their uplinks, then their members in turn)."""

_Member = tuple[Shape, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLevel:
    """A level above a pool's nodes: the part of each node, what tells parts apart beside their members, and the bytes/s
    of each part's uplinks."""

    name: str
    part_of: tuple[int, ...]
    kinds: tuple[tuple[float, float], ...]
    uplink_bytes_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSeats:
    """The nodes of a pool as prices tell them apart; `nodes` are their numbers in the site. All NICs of one send
    `nics_bytes_per_s`."""

    name: str
    site: Site
    group_number: int
    nodes: tuple[int, ...]
    levels: tuple[PartLevel, ...]
    nics_bytes_per_s: float

    @property
    def group(self) -> NodeGroup:
        """The pool's nodes in the cluster file."""
        return self.site.nodes[self.group_number]

    def shape(self, pieces: Pieces) -> tuple[Shape, tuple[int, ...]]:
        """Return the shape of a job's seats, and the pool's nodes in its order."""
        on_nodes = ((self._take(mask), (node,)) for node, mask in pieces)
        members: list[_Member] = sorted(on_nodes, key=_shape_of, reverse=True)
        for level in self.levels:
            inside: defaultdict[int, list[_Member]] = defaultdict(list)
            for member in members:
                inside[level.part_of[member[1][0]]].append(member)
            if len(inside) == 1:
                break
            joined = (
                ((*level.kinds[part], *map(_shape_of, own)), tuple(node for _, nodes in own for node in nodes))
                for part, own in inside.items()
            )
            members = sorted(joined, key=_shape_of, reverse=True)
        return tuple(map(_shape_of, members)), tuple(node for _, nodes in members for node in nodes)

    def devices_in_order(self, mask: int) -> tuple[int, ...]:
        """Return the devices of a node that are bits of `mask`, in the order of those that stand for them: islands with
        the most first (`slots` of `shape`'s takes)."""
        size, devices = min(self.group.island_size, self.group.devices), self.group.devices
        islands = [
            [index for index in range(first, first + size) if mask >> index & 1] for first in range(0, devices, size)
        ]
        return tuple(index for island in sorted(islands, key=len, reverse=True) for index in island)

    def _take(self, mask: int) -> tuple[int, ...]:
        """How many of a node's devices that are bits of `mask` each island has, the most first."""
        size, devices = self.group.island_size, self.group.devices
        if size >= devices:
            return (mask.bit_count(),)
        whole = (1 << size) - 1
        counts = ((mask >> first & whole).bit_count() for first in range(0, devices, size))
        return tuple(sorted((count for count in counts if count), reverse=True))

    def slots(self, place: int, take: Sequence[int]) -> tuple[DeviceSlot, ...]:
        """Return devices of one node that stand for those of a `take`; the node is called `place`."""
        size = self.group.island_size
        return tuple(
            DeviceSlot(
                site=self.site.name,
                node=place,
                index=index,
                group=self.group_number,
                device=self.group.device.name,
            )
            for island, count in enumerate(take)
            for index in range(island * size, island * size + count)
        )


def takes_of(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each island of every node of a shape, in the order of `PoolSeats.shape`."""
    takes: list[tuple[int, ...]] = []
    for member in shape:
        if any(isinstance(value, tuple) for value in member):
            takes += takes_of(member[2:])
        else:
            takes.append(member)
    return tuple(takes)


def seats_of_pools(cluster: Cluster, pools: Mapping[str, Pool]) -> dict[str, PoolSeats]:
    """Return what prices tell apart of each pool's nodes."""
    groups = {
        pool_name(cluster, site, number): (site, number) for site in cluster.sites for number in range(len(site.nodes))
    }
    seats = {}
    for name, nodes in pool_nodes(cluster, pools).items():
        site, number = groups[name]
        slot = DeviceSlot(site=site.name, node=nodes[0], index=0, group=number, device=site.nodes[number].device.name)
        seats[name] = PoolSeats(
            name=name,
            site=site,
            group_number=number,
            nodes=nodes,
            levels=(*_racks(site, number, nodes), *(_levels(cluster, site, nodes) if _tells_apart(site) else ())),
            nics_bytes_per_s=nic_bytes_per_s(cluster, slot),
        )
    return seats


def uplinks_of_pools(cluster: Cluster, pools: Mapping[str, Pool]) -> dict[str, tuple[PartLevel, ...]]:
    """Return the levels of the network above each pool's nodes; pools of one site have the same parts."""
    return {
        name: _levels(cluster, cluster.site(pools[name].site), nodes)
        for name, nodes in pool_nodes(cluster, pools).items()
    }


def _tells_apart(site: Site) -> bool:
    """Whether any price depends on the levels of the site's network."""
    return not site.network.is_flat or site.network.most_oversubscribed > 1


def _racks(site: Site, number: int, nodes: Sequence[int]) -> tuple[PartLevel, ...]:
    """Of an island that spans nodes which of these it joins, as a level without uplinks."""
    group = site.nodes[number]
    across = group.island_size // group.devices
    if across <= 1:
        return ()
    first = sum(before.count for before in site.nodes[:number])
    part_of = tuple((node - first) // across for node in nodes)
    parts = max(part_of) + 1
    return (
        PartLevel(name="island", part_of=part_of, kinds=((1.0, 0.0),) * parts, uplink_bytes_per_s=(math.inf,) * parts),
    )


def _levels(cluster: Cluster, site: Site, nodes: Sequence[int]) -> tuple[PartLevel, ...]:
    """The levels of the site's network above some of its nodes."""
    network = site.network
    rate = {(slot.site, slot.node): nic_bytes_per_s(cluster, slot) for slot in cluster.slots if slot.index == 0}
    levels = []
    for level, row in zip(network.levels, network.part_of_node, strict=True):
        below = [0.0] * len(level.parts)
        for node, part in enumerate(row):
            below[part] += rate[site.name, node]
        levels.append(
            PartLevel(
                name=level.name,
                part_of=tuple(row[node] for node in nodes),
                kinds=tuple((part.oversubscription, sent) for part, sent in zip(level.parts, below, strict=True)),
                uplink_bytes_per_s=tuple(
                    sent / part.oversubscription for part, sent in zip(level.parts, below, strict=True)
                ),
            )
        )
    return tuple(levels)


def _shape_of(member: _Member) -> Shape:
    return member[0]
