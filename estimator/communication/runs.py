"""Groups of equally spaced slots of one kind of node, without a slot at hand for each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from estimator.communication.groups import (
    Box,
    Group,
    boxes_of,
    check_nics,
    fabric_level,
    locate,
    uneven_boxes,
    ways_above,
)
from estimator.communication.levels import Level, slowest_level
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Slots `start`, `start + stride`, ... of a cluster of equal nodes, `size` of them: by node that has any, how many,
    and by kind of node (the slots of it that are taken, as a bit mask) how many nodes are of it."""

    nodes: NDArray[np.int64]
    ranks_on_node: NDArray[np.int64]
    kinds: tuple[tuple[int, int], ...]


def lay_out(cluster: Cluster, start: int, stride: int, size: int) -> Run:
    """Return where such slots sit, on a cluster whose nodes are all of one kind (of at most 62 devices)."""
    return _lay_out(cluster.sites[0].nodes[0].devices, start, stride, size)


@lru_cache(maxsize=8192)
def _lay_out(devices: int, start: int, stride: int, size: int) -> Run:
    places = start + stride * np.arange(size, dtype=np.int64)
    nodes, first = np.unique(places // devices, return_index=True)
    masks = np.add.reduceat(np.left_shift(np.int64(1), places % devices), first)
    kinds, counts = np.unique(masks, return_counts=True)
    return Run(
        nodes=nodes,
        ranks_on_node=np.diff(np.append(first, size)),
        kinds=tuple(zip(kinds.tolist(), counts.tolist(), strict=True)),
    )


def run_key(cluster: Cluster, run: Run) -> Hashable:
    """Return what decides what `describe_run` says of a run: equal keys, equal groups."""
    site = cluster.sites[0]
    group = site.nodes[0]
    alike = Counter[tuple[tuple[int, ...], int]]()
    for mask, count in run.kinds:
        alike[_ranks_of_islands(mask, group.island_size), group.nics_under(_taken(mask))] += count
    return frozenset(alike.items()), ways_above(site, int(run.nodes[0]), int(run.nodes[-1]))


@lru_cache(maxsize=4096)
def _ranks_of_islands(mask: int, island_size: int) -> tuple[int, ...]:
    """How many slots of each island of a node are taken, of those that have any, fewest first."""
    taken = Counter(index // island_size for index in _taken(mask))
    return tuple(sorted(taken.values()))


def _taken(mask: int) -> list[int]:
    """The slots of a node that a bit mask has."""
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


def seat_key(cluster: Cluster, start: int, ranks: int, first: int, stride: int, size: int) -> Hashable:
    """Return what decides the group of slots `first`, `first + stride`, ... (`size` of them) of the `ranks` slots from
    `start` on, and how busy its nodes are: equal keys, equal groups, on a cluster whose nodes are all of one kind."""
    site = cluster.sites[0]
    group = site.nodes[0]
    places = start + first + stride * np.arange(size, dtype=np.int64)
    on_nodes = places // group.devices
    nodes, ranks_on_node = np.unique(on_nodes, return_counts=True)
    taken = np.minimum((nodes + 1) * group.devices, start + ranks) - np.maximum(nodes * group.devices, start)
    busy = int((-(-taken // ranks_on_node)).max())
    above = ways_above(site, int(nodes[0]), int(nodes[-1]))
    if group.island_size > group.devices:
        outer, inner = places // group.island_size, on_nodes
    else:
        outer, inner = on_nodes, places % group.devices // group.island_size
    most = int(inner.max()) + 1
    parts, ranks_in_part = np.unique(outer * most + inner, return_counts=True)
    _, firsts, parts_of_box = np.unique(parts // most, return_index=True, return_counts=True)
    ranks_of_box = np.add.reduceat(ranks_in_part, firsts)
    boxes = Counter(zip(parts_of_box.tolist(), ranks_of_box.tolist(), strict=True))
    # Where it is known what hangs under which PCIe switch, other slots of a node may send by other NICs.
    slots = tuple(places.tolist()) if group.pcie else ()
    return busy, above, frozenset(Counter(ranks_in_part.tolist()).items()), frozenset(boxes.items()), slots


def describe_run(cluster: Cluster, run: Run) -> Group:
    """Return what `describe_group` says of the slots of `run`, by counting nodes taken alike; islands lie within
    nodes."""
    site = cluster.sites[0]
    group = site.nodes[0]
    islands: Counter[int] = Counter()  # Ranks of an island, and how many islands have as many.
    on_box: Counter[tuple[int, int]] = Counter()  # Islands and ranks of a node.
    alike: dict[tuple[int, int], list[int]] = {}  # Slots of a node with so many ranks that send by so many NICs.
    counts: Counter[tuple[int, int]] = Counter()  # How many nodes have as many of both.
    for mask, count in run.kinds:
        taken = _taken(mask)
        inside = Counter(index // group.island_size for index in taken)
        kind = len(taken), group.nics_under(taken)
        alike.setdefault(kind, taken)
        counts[kind] += count
        for ranks in inside.values():
            islands[ranks] += count
        on_box[len(inside), len(taken)] += count
    first = DeviceSlot(site=site.name, node=0, index=0, group=0, device=group.device.name)
    place, ends = locate(cluster, first), (int(run.nodes[0]), int(run.nodes[-1]))
    counted: list[tuple[Box, int]] = []
    for kind, taken in sorted(alike.items()):
        (box,) = boxes_of([replace(place, slot=replace(first, index=index)) for index in taken])
        counted.append((replace(box, nodes=ends), counts[kind]))
    boxes = [box for box, _ in counted]
    if on_box.total() > 1:
        # One box alone reaches nobody; several kinds of them are one box each here.
        check_nics(cluster, [*boxes, *boxes])
    levels: list[Level] = []

    def add(level: Level, members: Counter[int], ranks_inside: int) -> None:
        parts = members.total()
        total = sum(count * many for count, many in members.items())
        levels.append(
            replace(
                level,
                members=max(members),
                ranks_inside=ranks_inside,
                crossings=level.crossings * parts or total - parts,
            )
        )

    islands_of_box = Counter[int]()
    ranks_of_box = Counter[int]()
    for (inner, ranks), count in on_box.items():
        islands_of_box[inner] += count
        ranks_of_box[ranks] += count
    if max(islands) > 1:
        add(slowest_level("island", [group.island_link], max(islands)), islands, 1)
    if max(islands_of_box) > 1:
        add(slowest_level("host", [group.host_link], max(islands_of_box)), islands_of_box, max(islands))
    if on_box.total() > 1:
        add(fabric_level(boxes), Counter({on_box.total(): 1}), max(ranks_of_box))
    return Group(
        ranks=int(run.ranks_on_node.sum()),
        nodes=len(run.nodes),
        even=len(islands) == len(islands_of_box) == len(ranks_of_box) == 1,
        levels=tuple(levels),
        boxes=uneven_boxes(counted),
    )
