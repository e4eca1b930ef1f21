"""Spares and stand-ins by brute force: every set of free nodes, every node that may fail, priced one by one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from estimator.pricing.recipe import Setup
from profiles.records import replace

Node = tuple[str, int]


def swapped(setup: Setup, failed: Node, other: Node) -> Setup:
    """Return a plan with all ranks of a node on the same devices of another."""
    at = {(slot.site, slot.node, slot.index): slot for slot in setup.cluster.slots}
    return replace(
        setup,
        stages=tuple(
            replace(
                stage,
                slots=tuple(
                    at[*other, slot.index] if (slot.site, slot.node) == failed else slot for slot in stage.slots
                ),
            )
            for stage in setup.stages
        ),
    )


def nodes_of(setup: Setup) -> tuple[list[Node], list[Node]]:
    """Return the plan's nodes and the free ones beside them."""
    used = list(dict.fromkeys((slot.site, slot.node) for stage in setup.stages for slot in stage.slots))
    free = list(dict.fromkeys((slot.site, slot.node) for slot in setup.cluster.free_slots))
    return used, [node for node in free if node not in used]


def least_mean_cost_s(setup: Setup, count: int, time_s: Callable[[Setup], float]) -> float:
    """Return the least mean cost of a failure, over all sets of `count` free nodes."""
    used, free = nodes_of(setup)
    before = time_s(setup)
    cost = {(node, spare): time_s(swapped(setup, node, spare)) - before for node in used for spare in free}
    return min(
        sum(min(cost[node, spare] for spare in spares) for node in used) / len(used)
        for spares in combinations(free, count)
    )
