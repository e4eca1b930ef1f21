"""Cutting a weighted graph into parts of given capacities: the graph, what a partition is, and what it cuts.

This is the capacitated graph partitioning that SpiderFlow's level between sites stands for (section 4.2, equation 9):
nodes are pieces of a job with a load, edges their traffic, parts the sites, capacities what these can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from profiles.records import dataclass

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionGraph:
    """An undirected graph: `loads` of its nodes, `edges` as rows of two different nodes, each pair once, and the
    `traffic` of each edge. All are whole numbers, so that no sum depends on its order. ValueError where they do not go
    together."""

    loads: Ints
    edges: Ints
    traffic: Ints

    def __post_init__(self) -> None:
        nodes = len(self.loads)
        rows = self.edges.reshape(-1, 2)
        if len(rows) != len(self.traffic) or (len(rows) and (rows.min() < 0 or rows.max() >= nodes)):
            raise ValueError(
                f"partition graph: {len(rows)} edges, {len(self.traffic)} weights, {nodes} nodes; expected a weight for"
                " each edge, and edges between nodes"
            )
        if bool((rows[:, 0] == rows[:, 1]).any()) or (nodes and self.loads.min() < 0):
            raise ValueError("partition graph: an edge from a node to itself, or a load below 0")

    @property
    def nodes(self) -> int:
        """How many."""
        return len(self.loads)

    @cached_property
    def neighbours(self) -> tuple[list[int], list[int], list[int]]:
        """(first, other, weight): the edges of node v are those from first[v] to first[v + 1]."""
        ends = np.concatenate([self.edges[:, 0], self.edges[:, 1]])
        order = np.argsort(ends, kind="stable")
        others = np.concatenate([self.edges[:, 1], self.edges[:, 0]])[order]
        weights = np.concatenate([self.traffic, self.traffic])[order]
        first = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=self.nodes))])
        return first.tolist(), others.tolist(), weights.tolist()


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The part of each node, the traffic between different parts, and by how much loads exceed the capacities in all
    (0: it fits)."""

    parts: tuple[int, ...]
    cut: int
    excess: int

    @property
    def key(self) -> tuple[int, int]:
        """What makes one better than another: it fits, then it cuts less."""
        return self.excess, self.cut


def measure(graph: PartitionGraph, parts: Sequence[int] | Ints, capacities: Sequence[int]) -> Partition:
    """Return the partition that `parts` is, measured anew."""
    where = np.asarray(parts, dtype=np.int64)
    across = where[graph.edges[:, 0]] != where[graph.edges[:, 1]]
    loads = np.bincount(where, weights=graph.loads, minlength=len(capacities)).astype(np.int64)
    excess = np.maximum(loads - np.asarray(capacities, dtype=np.int64), 0)
    return Partition(
        parts=tuple(int(part) for part in where), cut=int(graph.traffic[across].sum()), excess=int(excess.sum())
    )
