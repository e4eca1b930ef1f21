"""The cheapest zone by looking at every set of nodes. It shares the cost, and no line of search."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations


def cheapest_of_all(nodes: tuple[int, ...], wanted: int, cost: Callable[[frozenset[int]], float]) -> float:
    """Return the least cost of any `wanted` of the nodes."""
    return min(cost(frozenset(chosen)) for chosen in combinations(nodes, wanted))
