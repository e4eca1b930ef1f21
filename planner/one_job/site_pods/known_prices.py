"""Prices of one plan's placements that are told apart by nothing that a price depends on, asked for once.

What a placement is known by: which ranks share a node, and of the nodes that are used, in their order, the kind, the
site, and at each level of the tree who shares a part and how thin that part's uplink is. Which of the other nodes are
free, what a node or a part is called, and in which of two equal parts nodes are changes no price.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from estimator.communication.uplinks import fabric_arrays
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.one_job.site_pods.least_time import Evaluate
from profiles.cluster import Cluster, NodeGroup
from profiles.records import replace
from profiles.vocabulary import Infeasible


def remember(evaluate: Evaluate) -> Evaluate:
    """Return what prices as `evaluate` does setups of one plan, which differ in where their ranks sit and in what is
    free of their cluster alone, each way of sitting once."""
    prices: dict[Hashable, Evaluation | Infeasible] = {}
    kinds: dict[NodeGroup, int] = {}

    def price(setup: Setup) -> Evaluation | Infeasible:
        key = _seats_key(setup, kinds)
        if key is None:
            return evaluate(setup)
        if key not in prices:
            prices[key] = evaluate(setup)
        return prices[key]

    return price


def _seats_key(setup: Setup, kinds: dict[NodeGroup, int]) -> Hashable | None:
    """What a placement is known by; None where islands span nodes, whose numbers then count. `kinds` numbers the kinds
    of nodes that were met."""
    cluster = setup.cluster
    if any(group.island_size > group.devices for site in cluster.sites for group in site.nodes):
        return None
    fabric = fabric_arrays(cluster)
    slots = list(chain.from_iterable(stage.slots for stage in setup.stages))
    numbers = np.array([fabric.first[slot.site] + slot.node for slot in slots], dtype=np.int64)
    nodes, seats = np.unique(numbers, return_inverse=True)
    held_back = [
        (_by_first(part_of[nodes]), seconds[part_of[nodes]].tobytes())
        for part_of, seconds in zip(fabric.part_of, fabric.seconds_per_byte, strict=True)
    ]
    ends = [fabric.first[site.name] for site in cluster.sites]
    sites = np.searchsorted(ends, nodes, side="right")
    of_node = _kinds_of_nodes(cluster, kinds)[nodes]
    indices = bytes(np.array([slot.index for slot in slots], dtype=np.int32))
    return seats.tobytes(), indices, sites.tobytes(), of_node.tobytes(), tuple(held_back)


def _by_first(parts: NDArray[np.int64]) -> bytes:
    """Who shares a part: parts by the first node in each."""
    _, first, numbers = np.unique(parts, return_index=True, return_inverse=True)
    return first[numbers].tobytes()


def _kinds_of_nodes(cluster: Cluster, kinds: dict[NodeGroup, int]) -> NDArray[np.int64]:
    groups: Sequence[NodeGroup] = [group for site in cluster.sites for group in site.nodes]
    numbers = [kinds.setdefault(replace(group, count=1, free=None), len(kinds)) for group in groups]
    return np.repeat(np.array(numbers, dtype=np.int64), [group.count for group in groups])
