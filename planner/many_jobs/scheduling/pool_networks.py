"""The tree above the nodes of each pool, in the pool's own numbers: what policies see of the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from planner.many_jobs.jobs.records import Pool
from planner.many_jobs.scheduling.cell_book import pool_name
from planner.one_job.site_pods.free_nodes import level_of_pods
from profiles.cluster import Cluster
from profiles.network import Network


def pool_networks(cluster: Cluster, pools: Mapping[str, Pool]) -> dict[str, Network]:
    """Return by pool the site's tree above just the nodes of the pool, in their order."""
    nodes = pool_nodes(cluster, pools)
    return {name: network_above(cluster.site(pool.site).network, nodes[name]) for name, pool in pools.items()}


def pool_nodes(cluster: Cluster, pools: Mapping[str, Pool]) -> dict[str, tuple[int, ...]]:
    """Return by pool the numbers that its nodes have in its site, in their order."""
    free = Counter((slot.site, slot.node, slot.group) for slot in cluster.free_slots)
    nodes: dict[str, list[int]] = {name: [] for name in pools}
    for (site_name, node, group), count in sorted(free.items()):
        site = cluster.site(site_name)
        name = pool_name(cluster, site, group)
        if name in pools and count == site.nodes[group].devices:
            nodes[name].append(node)
    return {name: tuple(nodes[name][: pool.nodes]) for name, pool in pools.items()}


def nodes_by_pod(network: Network, usable: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """Return the usable nodes of each pod, near ones together; all in one where there are no pods."""
    level = level_of_pods(network)
    if level is None:
        return (tuple(sorted(usable)),)
    rows = network.part_of_node
    pods: list[list[int]] = [[] for _ in network.levels[level].parts]
    for node in sorted(usable, key=lambda node: (*(row[node] for row in reversed(rows[:level])), node)):
        pods[rows[level][node]].append(node)
    return tuple(map(tuple, pods))


def network_above(network: Network, nodes: Sequence[int]) -> Network:
    """Return the tree above some nodes of a site, in this order: parts keep their names and how thin their uplinks are
    beside the NICs of all nodes below, and those without any of these nodes are left out."""
    levels, below = [], tuple(nodes)
    for level, row in zip(network.levels, network.part_of_node, strict=True):
        members = [row[node] for node in below]
        parts = tuple(dict.fromkeys(members))
        number = {part: place for place, part in enumerate(parts)}
        levels.append(
            replace(
                level,
                parts=tuple(level.parts[part] for part in parts),
                part_of=tuple(number[part] for part in members),
            )
        )
        first = {row[node]: node for node in reversed(below)}
        below = tuple(first[part] for part in parts)
    return Network(
        levels=tuple(levels) if nodes else (),
        hosts=tuple(network.hosts[node] for node in nodes) if network.hosts else (),
    )
