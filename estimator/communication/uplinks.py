"""What groups that are busy at once put on the uplinks above the nodes, and how long the busiest uplink takes for it.

A ring visits the boxes of its ranks (nodes, or racks that one island joins) in the order of the first rank of each,
and leaves a part of the fabric by its uplink once for every step to a box outside it. All groups of an axis send at the
same time and equally much, so an uplink takes as long as all that passes it; a group is as fast as the slowest uplink
on its ways lets it be. Trees are NCCL's double binary tree over the same boxes in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from estimator.communication.levels import Uplinks, effective
from profiles.cluster import Cluster, DeviceSlot
from profiles.network import PLAIN, SpreadTable
from profiles.records import dataclass, replace

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
WAYS = ("ring", "tree", "exchange", "once")
"""How a collective may go: what each way puts on an uplink is counted apart."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FabricArrays:
    """The trees of a cluster's sites as arrays: by level, from the nodes up, the part of each node, what a byte takes
    through the uplinks of each part, one direction (0 where they hold nothing back), and of all sites the spread tables
    and the longest hop. Nodes are numbered through all sites, those of one site from `first` on; `nic_bytes_per_s` is
    what all NICs of each send."""

    first: Mapping[str, int]
    nic_bytes_per_s: Floats
    part_of: tuple[Integers, ...]
    seconds_per_byte: tuple[Floats, ...]
    spreads: tuple[tuple[SpreadTable, ...], ...]
    hops_s: tuple[float, ...]


def shares_uplinks(cluster: Cluster) -> bool:
    """Return whether what passes the uplinks of the cluster's parts has to be counted: some of them are thinner than
    the NICs below, and are shared by several nodes. Of nodes that all stand alone each NIC's way up is its own."""
    return any(site.network.is_shared for site in cluster.sites)


def fabric_arrays(cluster: Cluster) -> FabricArrays:
    """Return the arrays of `cluster`, made once."""
    arrays = cluster.known_groups.get(FabricArrays)
    if arrays is None:
        arrays = cluster.known_groups[FabricArrays] = _arrays(cluster)
    return cast("FabricArrays", arrays)


def _arrays(cluster: Cluster) -> FabricArrays:
    depth = max(len(site.network.levels) for site in cluster.sites)
    first: dict[str, int] = {}
    every_rate: list[float] = []
    parts: list[list[int]] = [[] for _ in range(depth)]
    seconds: list[list[float]] = [[] for _ in range(depth)]
    for site in cluster.sites:
        first[site.name] = sum(other.count for before in cluster.sites[: len(first)] for other in before.nodes)
        rates = [
            group.nics * min(effective(group.nic_link), effective(site.fabric_link))
            for group in site.nodes
            for _ in range(group.count)
        ]
        every_rate += rates
        for level in range(depth):
            offset = len(seconds[level])
            if level >= len(site.network.levels):
                parts[level] += [offset] * len(rates)
                seconds[level].append(0.0)
                continue
            row, tree = site.network.part_of_node[level], site.network.levels[level]
            sums = [0.0] * len(tree.parts)
            for part, rate in zip(row, rates, strict=True):
                sums[part] += rate
            parts[level] += [offset + part for part in row]
            seconds[level] += [
                part.oversubscription / rate if part.oversubscription > 1 and rate else 0.0
                for part, rate in zip(tree.parts, sums, strict=True)
            ]
    by_level = [
        [tree for site in cluster.sites for tree in site.network.levels[level : level + 1]] for level in range(depth)
    ]
    return FabricArrays(
        first=first,
        nic_bytes_per_s=np.array(every_rate),
        part_of=tuple(np.array(row, dtype=np.int64) for row in parts),
        seconds_per_byte=tuple(np.array(row) for row in seconds),
        spreads=tuple(tuple(tree.spread for tree in trees if tree.spread is not None) for trees in by_level),
        hops_s=tuple(max(tree.hop_latency_s for tree in trees) for trees in by_level),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seats:
    """Where ranks sit, in their order: the node of each, and its box, both numbered through the cluster."""

    nodes: Integers
    boxes: Integers


def seats_of(cluster: Cluster, slots: Sequence[DeviceSlot]) -> Seats:
    """Return the seats of `slots`, which may know where they `start` in the cluster's order. A box is a node, or all of
    an island that spans nodes."""
    first = fabric_arrays(cluster).first
    start = getattr(slots, "start", None)
    if start is not None and len(cluster.sites) == len(cluster.sites[0].nodes) == 1:
        nodes = np.arange(start, start + len(slots), dtype=np.int64) // cluster.sites[0].nodes[0].devices
    else:
        nodes = np.array([first[slot.site] + slot.node for slot in slots], dtype=np.int64)
    boxes = nodes
    if any(group.island_size > group.devices for site in cluster.sites for group in site.nodes):
        number = np.array([_island_number(cluster, slot) for slot in slots], dtype=np.int64)
        boxes = np.where(number < 0, nodes, len(fabric_arrays(cluster).part_of[0]) + number)
    return Seats(nodes=nodes, boxes=boxes)


def _island_number(cluster: Cluster, slot: DeviceSlot) -> int:
    """The first node of the island that spans the slot's node, numbered through the cluster; -1 where none does."""
    site = cluster.site(slot.site)
    group = site.nodes[slot.group]
    if group.island_size <= group.devices:
        return -1
    before = sum(other.count for other in site.nodes[: slot.group])
    rack = group.island_size // group.devices
    return fabric_arrays(cluster).first[slot.site] + before + (slot.node - before) // rack * rack


def groups_of(ranks: int, stride: int, size: int) -> Integers:
    """Return the ranks of each group, (groups, size), in the order of the first rank of each."""
    blocks = np.arange(ranks, dtype=np.int64).reshape(-1, size, stride)
    return blocks.transpose(0, 2, 1).reshape(-1, size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loads:
    """By level and way, how many times what one of its groups is given passes the uplinks of each part, one direction:
    rings and trees in units of what a step carries, exchanges and reductions inside switches of the whole."""

    by_way: Mapping[str, tuple[Floats, ...]]

    def at_least(self, other: Loads) -> Loads:
        """Return the greater of both, part by part."""
        return Loads(
            by_way={
                way: tuple(np.maximum(mine, its) for mine, its in zip(rows, other.by_way[way], strict=True))
                for way, rows in self.by_way.items()
            }
        )


def no_loads(fabric: FabricArrays) -> Loads:
    """Return the loads of nobody."""
    return Loads(by_way={way: tuple(np.zeros(len(row)) for row in fabric.seconds_per_byte) for way in WAYS})


def add_loads(loads: Loads, fabric: FabricArrays, seats: Seats, groups: Integers) -> None:
    """Count what `groups` of ranks put on the uplinks into `loads`."""
    nodes, boxes = seats.nodes[groups], seats.boxes[groups]
    if (nodes == nodes[:, :1]).all():
        return
    leaving, entering, branches = _steps(nodes, boxes)
    for level, part_of in enumerate(fabric.part_of):
        parts = len(fabric.seconds_per_byte[level])
        out, into = part_of[leaving], part_of[entering]
        loads.by_way["ring"][level][:] += np.bincount(out[out != into], minlength=parts)
        for child, parent in branches:
            ends = part_of[child], part_of[parent]
            apart = ends[0] != ends[1]
            # An edge of either tree carries half of the bytes up to its parent, and half of the sum down again.
            loads.by_way["tree"][level][:] += 0.5 * sum(np.bincount(end[apart], minlength=parts) for end in ends)
        _, part, inside = _met(part_of[nodes], parts)
        size = groups.shape[1]
        loads.by_way["exchange"][level][:] += np.bincount(part, inside * (size - inside) / size, minlength=parts)
        loads.by_way["once"][level][:] += np.bincount(part[inside < size], minlength=parts)


def _met(parts_of_ranks: Integers, parts: int) -> tuple[Integers, Integers, Integers]:
    """Of every group and every part that it meets: the group, the part, and how many of its ranks are in it."""
    rows = np.repeat(np.arange(len(parts_of_ranks)), parts_of_ranks.shape[1])
    keys, inside = np.unique(rows * parts + parts_of_ranks.ravel(), return_counts=True)
    return keys // parts, keys % parts, inside


def _steps(nodes: Integers, boxes: Integers) -> tuple[Integers, Integers, list[tuple[Integers, Integers]]]:
    """Of all groups of several boxes the nodes that the steps of their rings leave, and those that they enter; and of
    both trees the nodes of each child and its parent."""
    order = np.argsort(boxes, axis=1, kind="stable")
    in_order = np.take_along_axis(boxes, order, axis=1)
    new = np.ones(boxes.shape, dtype=bool)
    new[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    is_first = np.zeros_like(new)
    np.put_along_axis(is_first, order, new, axis=1)
    counts = is_first.sum(axis=1)
    is_first[counts == 1] = False
    counts = counts[counts > 1]
    ring = nodes[is_first]
    size = np.repeat(counts, counts)
    start = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.arange(len(ring)) - start
    branches = []
    for mirrored in (False, True):
        number = _other_tree(place, size, back=False) if mirrored else place
        child = number > 0
        parent = _parent(number[child], size[child])
        if mirrored:
            parent = _other_tree(parent, size[child], back=True)
        branches.append((ring[child], ring[start[child] + parent]))
    return ring, ring[start + (place + 1) % np.maximum(size, 1)], branches


def _parent(number: Integers, size: Integers) -> Integers:
    """The parent of each number but 0 in NCCL's binary tree of so many: the number without its lowest bit, and with the
    one above it where there is such a number."""
    low = number & -number
    up = (number ^ low) | (low << 1)
    return np.where(up >= size, number ^ low, up)


def _other_tree(place: Integers, size: Integers, *, back: bool) -> Integers:
    """The numbers of the second tree, whose leaves are inner in the first: from the end of an even number of boxes,
    shifted by one of an odd number. `back`: the places of such numbers."""
    return np.where(size % 2 == 0, size - 1 - place, (place + (1 if back else size - 1)) % np.maximum(size, 1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Meeting:
    """What groups meet: by level, whether any of them leaves each part, and in how many parts one is at most."""

    leaves: tuple[NDArray[np.bool_], ...]
    parts_met: tuple[int, ...]


def meet(fabric: FabricArrays, seats: Seats, groups: Integers) -> Meeting:
    """Return what `groups` of ranks meet."""
    nodes, size = seats.nodes[groups], groups.shape[1]
    if (nodes == nodes[:, :1]).all():
        inside_all = tuple(np.zeros(len(row), dtype=bool) for row in fabric.seconds_per_byte)
        return Meeting(leaves=inside_all, parts_met=(1,) * len(inside_all))
    leaves, parts_met = [], []
    for part_of, seconds in zip(fabric.part_of, fabric.seconds_per_byte, strict=True):
        group, part, inside = _met(part_of[nodes], len(seconds))
        leaves.append(np.bincount(part[inside < size], minlength=len(seconds)) > 0)
        parts_met.append(int(np.bincount(group).max()))
    return Meeting(leaves=tuple(leaves), parts_met=tuple(parts_met))


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """What is above the nodes of a group: what uplinks hold back of it (None: nothing), the seconds that hops add, and
    the share of its rate that it reaches."""

    uplinks: Uplinks | None
    hops_s: float
    collective_reach: float
    message_reach: float


def worst_of(cluster: Cluster, loads: Loads, meeting: Meeting) -> Above:
    """Return what is above groups that meet so much, while uplinks have these loads: of each figure the worst."""
    fabric = fabric_arrays(cluster)
    rows = list(zip(fabric.seconds_per_byte, meeting.leaves, strict=True))
    slowest = dict.fromkeys(WAYS, 0.0)
    for way in WAYS:
        for held, (seconds, leaves) in zip(loads.by_way[way], rows, strict=True):
            slowest[way] = max(slowest[way], float((held[leaves] * seconds[leaves]).max(initial=0.0)))
    met = list(zip(meeting.parts_met, fabric.spreads, fabric.hops_s, strict=True))
    return Above(
        uplinks=Uplinks(**slowest) if any(slowest.values()) else None,
        hops_s=sum((2 * hop_s for parts, _, hop_s in met if parts > 1), 0.0),
        collective_reach=_reach(met, message=False),
        message_reach=_reach(met, message=True),
    )


def inside_parts(cluster: Cluster) -> Above:
    """Return what is above groups each of which stays in one part of every level, made once."""
    above = cluster.known_groups.get(inside_parts)
    if above is None:
        fabric = fabric_arrays(cluster)
        meeting = Meeting(
            leaves=tuple(np.zeros(len(row), dtype=bool) for row in fabric.seconds_per_byte),
            parts_met=(1,) * len(fabric.part_of),
        )
        above = cluster.known_groups[inside_parts] = worst_of(cluster, no_loads(fabric), meeting)
    return cast("Above", above)


def _reach(met: Sequence[tuple[int, tuple[SpreadTable, ...], float]], *, message: bool) -> float:
    return min((table.share(parts, message=message) for parts, tables, _ in met for table in tables), default=1.0)


def alone(cluster: Cluster, slots: Sequence[DeviceSlot]) -> Above:
    """Return what is above a group on `slots` while nobody else sends."""
    fabric, seats = fabric_arrays(cluster), seats_of(cluster, slots)
    groups, loads = groups_of(len(slots), 1, len(slots)), no_loads(fabric)
    add_loads(loads, fabric, seats, groups)
    above = worst_of(cluster, loads, meet(fabric, seats, groups))
    if above.uplinks is None or len(slots) != 2:
        return above
    return replace(above, uplinks=replace(above.uplinks, message=above.uplinks.once))


def above_pairs(
    cluster: Cluster, first: Sequence[DeviceSlot], second: Sequence[DeviceSlot], chains: Integers | None
) -> Above:
    """Return what is above the messages from each of `first` to its partner in `second`, where it has one, and above
    sums of both, while all pairs are busy: of each figure the worst. A message reaches what the spread tables of the
    levels that it passes say of as many parts as its whole pipeline is in, whose nodes are a column of `chains` (None:
    those of the pair)."""
    fabric = fabric_arrays(cluster)
    pairs = min(len(first), len(second))
    ends = np.stack([seats_of(cluster, slots[:pairs]).nodes for slots in (first, second)])
    chains = chains if chains is not None and chains.shape[1] == pairs else ends
    message = both = hops_s = 0.0
    reaches = {False: 1.0, True: 1.0}
    for part_of, seconds, tables, hop_s in zip(
        fabric.part_of, fabric.seconds_per_byte, fabric.spreads, fabric.hops_s, strict=True
    ):
        out, into = part_of[ends[0]], part_of[ends[1]]
        apart = out != into
        if not apart.any():
            continue
        hops_s += 2 * hop_s
        up, down = (np.bincount(end[apart], minlength=len(seconds)) * seconds for end in (out, into))
        message = max(message, float(up.max()), float(down.max()))
        both = max(both, float((up + down).max()))
        in_order = np.sort(part_of[chains[:, apart]], axis=0)
        met = 1 + int((in_order[1:] != in_order[:-1]).sum(axis=0).max())
        for is_message, parts in ((False, 2), (True, met)):
            shares = [table.share(parts, message=is_message) for table in tables]
            reaches[is_message] = min(reaches[is_message], *shares) if shares else reaches[is_message]
    uplinks = Uplinks(ring=both, tree=both, exchange=both / 2, once=both, message=message) if both else None
    return Above(uplinks=uplinks, hops_s=hops_s, collective_reach=reaches[False], message_reach=reaches[True])


def without_tree(cluster: Cluster) -> Cluster:
    """Return `cluster` with nothing above its nodes, made once."""
    plain = cluster.known_groups.get("without_tree")
    if plain is None:
        sites = tuple(replace(site, network=PLAIN) for site in cluster.sites)
        plain = cluster.known_groups["without_tree"] = replace(cluster, sites=sites)
    return cast("Cluster", plain)


def doors_above(cluster: Cluster, sender: DeviceSlot, receiver: DeviceSlot) -> list[tuple[tuple[str, ...], float]]:
    """Return the uplinks that a message passes, out of a part and into one, each with its bytes/s."""
    fabric = fabric_arrays(cluster)
    ends = [fabric.first[slot.site] + slot.node for slot in (sender, receiver)]
    doors: list[tuple[tuple[str, ...], float]] = []
    for level, (part_of, seconds) in enumerate(zip(fabric.part_of, fabric.seconds_per_byte, strict=True)):
        out, into = (int(part_of[end]) for end in ends)
        if out != into:
            for way, part in (("up", out), ("down", into)):
                rate = 1 / seconds[part] if seconds[part] else math.inf
                doors.append(((way, str(level), str(part)), float(rate)))
    return doors
