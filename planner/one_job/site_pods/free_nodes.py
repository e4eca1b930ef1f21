"""The free nodes of a site by the parts of its tree: what a job's matrix is placed on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from profiles.cluster import Cluster, NodeGroup, Site
from profiles.network import FabricLevel, Network
from profiles.records import dataclass

POD = "pod"
"""What the level is called by whose parts a job is placed, where a tree has one of that name."""

Alike = tuple[int, ...]
"""The parts that a node is in, of the levels that hold something back: nodes of the same are one to every price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeNodes:
    """The wholly free nodes of one kind in a site, by part of the level `level`: `nodes[pod]` leaf by leaf, the fullest
    leaf first; `leaves[pod]` how many each of these has. `partly_busy` counts nodes that are left out."""

    site: str
    level: str
    pods: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    leaves: tuple[tuple[int, ...], ...]
    partly_busy: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Free nodes of every pod."""
        return tuple(map(len, self.nodes))


def holds_back(level: FabricLevel) -> bool:
    """Return whether any price depends on the parts of a level: thin uplinks, a spread table, or a latency a hop."""
    thin = any(part.oversubscription > 1 for part in level.parts)
    return thin or level.spread is not None or level.hop_latency_s > 0


def level_of_pods(network: Network) -> int | None:
    """Return the number of the level by whose parts a job is placed: the one called `pod`; else the highest of several
    parts that holds something back, else the highest of several parts. None where there is none, or where all nodes
    stand alike."""
    if network.period == 1:
        return None
    several = [number for number, level in enumerate(network.levels) if len(level.parts) > 1]
    named = [number for number in several if network.levels[number].name == POD]
    holding = [number for number in several if holds_back(network.levels[number])]
    ranked = named or holding or several
    return ranked[-1] if ranked else None


def alike_nodes(network: Network) -> tuple[Alike, ...]:
    """Return of every node the parts that it is in of levels that hold something back."""
    rows = [row for level, row in zip(network.levels, network.part_of_node, strict=True) if holds_back(level)]
    nodes = len(network.part_of_node[0]) if network.levels else 0
    return tuple(tuple(row[node] for row in rows) for node in range(nodes))


def free_nodes(cluster: Cluster, site: Site, like: NodeGroup, *, whole_racks: bool = False) -> FreeNodes | None:
    """Return the free nodes of `site` that are as those of `like`; None where the site has no pods. `whole_racks`: of
    racks that one island joins those alone of which every node is free."""
    level = level_of_pods(site.network)
    if level is None:
        return None
    free = Counter(slot.node for slot in cluster.free_slots if slot.site == site.name)
    usable: list[int] = []
    partly, number = 0, 0
    for group in site.nodes:
        numbers = range(number, number + group.count)
        number += group.count
        if not _is_alike(group, like):
            continue
        partly += sum(0 < free[node] < group.devices for node in numbers)
        rack = max(1, group.island_size // group.devices) if whole_racks else 1
        for first in range(numbers.start, numbers.stop - rack + 1, rack):
            if all(free[node] == group.devices for node in range(first, first + rack)):
                usable += range(first, first + rack)
    parts = site.network.levels[level].parts
    by_leaf = [_leaf_by_leaf(site.network, level, usable, pod) for pod in range(len(parts))]
    return FreeNodes(
        site=site.name,
        level=site.network.levels[level].name,
        pods=tuple(part.name for part in parts),
        nodes=tuple(tuple(node for leaf in leaves for node in leaf) for leaves in by_leaf),
        leaves=tuple(tuple(map(len, leaves)) for leaves in by_leaf),
        partly_busy=partly,
    )


def _is_alike(group: NodeGroup, like: NodeGroup) -> bool:
    def kind(one: NodeGroup) -> tuple[object, ...]:
        return one.device.name, one.devices, one.island_size, one.nics, one.nic_link, one.island_link

    return kind(group) == kind(like)


def _leaf_by_leaf(network: Network, level: int, usable: Sequence[int], pod: int) -> list[list[int]]:
    """The usable nodes of a pod by the lowest part, the part with most of them first."""
    rows = network.part_of_node
    here = [node for node in usable if rows[level][node] == pod]
    here.sort(key=lambda node: [row[node] for row in reversed(rows[: level + 1])])
    leaves = [list(leaf) for _, leaf in groupby(here, key=lambda node: rows[0][node])]
    # Nodes of one part between leaf and pod stay together: the sort is stable, and leaves of equal size keep order.
    return sorted(leaves, key=len, reverse=True) if level == 1 else leaves
