"""Graphs to cut, by seed: what Table 2 of SpiderFlow gives by numbers of nodes and edges alone, stated in full.

`layered`: the pieces of data-parallel pipelines. Node (stage, replica) of a grid sends activations to the next stage of
its replica, joins its stage's ring, and what edges are left go to nodes near by in stages. `random`: edges between
nodes at random, which has nothing to find and is the hardest. Loads are 1 to 4; traffic 8 to 32 along a pipeline, 4 to
16 in a ring, 1 to 8 otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Literal

import numpy as np

from planner.many_jobs.scheduling.sites.partition import PartitionGraph

Family = Literal["layered", "random"]
FAMILIES: tuple[Family, ...] = ("layered", "random")
SHARES = (2, 2, 2, 2, 2, 4, 1, 1)
"""Devices of SpiderFlow's eight clusters (section 5.1): the parts' sizes to each other."""
SLACK = 1.1
"""Capacity over a part's share of all loads."""


def draw_graph(family: Family, nodes: int, edges: int, seed: int) -> PartitionGraph:
    """A graph of exactly so many nodes and edges, in one piece. ValueError where that is impossible."""
    if nodes < 2 or not nodes - 1 <= edges <= nodes * (nodes - 1) // 2:
        raise ValueError(f"draw_graph: {nodes} nodes and {edges} edges; expected a simple graph in one piece")
    rng = Random(f"{family} {nodes} {edges} {seed}")
    found: dict[tuple[int, int], int] = {}
    for one, other, least, most in _layered(nodes, edges, rng) if family == "layered" else _spread(nodes, rng):
        pair = min(one, other), max(one, other)
        if one != other and pair not in found:
            found[pair] = rng.randint(least, most)
            if len(found) == edges:
                break
    return PartitionGraph(
        loads=np.array([rng.randint(1, 4) for _ in range(nodes)]),
        edges=np.array(list(found)),
        traffic=np.array(list(found.values())),
    )


def _spread(nodes: int, rng: Random) -> Iterator[tuple[int, int, int, int]]:
    for node in range(1, nodes):
        yield node, rng.randrange(node), 1, 8
    while True:
        yield rng.randrange(nodes), rng.randrange(nodes), 1, 8


def _layered(nodes: int, edges: int, rng: Random) -> Iterator[tuple[int, int, int, int]]:
    replicas = max(2, round((nodes / 2) ** 0.5))
    pipes = [(node, node - replicas, 8, 32) for node in range(replicas, nodes)]
    rings = [(node, node - 1, 4, 16) for node in range(1, nodes) if node % replicas]
    grid = sorted(pipes + rings, key=lambda edge: (edge[0], edge[1]))
    if len(grid) > edges:
        # The pipelines and the first ring join all nodes; more than these there may not be room for.
        grid = pipes + sorted(rings, key=lambda edge: edge[0] >= replicas)
    yield from grid
    for first in range(0, nodes, replicas):
        yield first, min(first + replicas, nodes) - 1, 4, 16
    while True:
        node = rng.randrange(nodes)
        yield node, min(nodes - 1, max(0, node + round(rng.gauss(0, 3 * replicas)))), 1, 8


def capacities_for(graph: PartitionGraph, shares: Sequence[int] = SHARES, slack: float = SLACK) -> tuple[int, ...]:
    """Of each part: its share of all loads, times the slack."""
    total = int(graph.loads.sum())
    return tuple(int(slack * total * share / sum(shares)) for share in shares)
