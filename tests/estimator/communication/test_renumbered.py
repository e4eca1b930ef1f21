"""Slots renumbered are to every price without a tree what they were."""

from __future__ import annotations

import random

import pytest

from estimator.communication.groups import describe_group
from estimator.communication.renumbered import nodes_in_a_row
from estimator.communication.uplinks import without_tree
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.network import equal_pods
from profiles.records import replace


def _in_groups(text: str, sizes: tuple[int, ...]) -> Cluster:
    """The cluster with its nodes, some of them free alone, as groups of these sizes, in two pods."""
    cluster = load_cluster(text)
    (site,) = cluster.sites
    (nodes,) = site.nodes
    groups = tuple(
        replace(nodes, count=size, free=(number % 2) * size * nodes.devices) for number, size in enumerate(sizes)
    )
    tree = equal_pods(sum(sizes), pods=2, oversubscription=2.0)
    return replace(cluster, sites=(replace(site, nodes=groups, network=tree),))


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_renumbered_slots_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    cluster = _in_groups("h100:8x4", (3, 1, 4))
    slots = tuple(rng.sample(cluster.slots, 12))
    alone, renumbered = nodes_in_a_row(cluster, slots)
    assert len(set(renumbered)) == len(slots)
    assert {slot.node for slot in renumbered} == set(range(len({slot.node for slot in slots})))
    plain = without_tree(cluster)
    for first in range(0, 12, 3):
        members = slice(first, first + 3)
        assert describe_group(alone, renumbered[members]) == describe_group(plain, slots[members])
    swapped = {node: rng.random() for node in range(8)}
    order = sorted(range(8), key=lambda node: swapped[node])
    moved = tuple(cluster.slots[order[slot.node] * 4 + slot.index] for slot in slots)
    assert nodes_in_a_row(cluster, moved) == (alone, renumbered)


def test_unlike_nodes_and_racks_stay_as_they_are() -> None:
    mixed = load_cluster("h100:2x4+a100-80gb:2x4")
    slots = (mixed.slots[5], mixed.slots[9])
    assert nodes_in_a_row(mixed, slots) == (without_tree(mixed), slots)
    racks = load_cluster("gb200:36x4")
    assert nodes_in_a_row(racks, racks.slots[8:12]) == (without_tree(racks), racks.slots[8:12])
