"""Nodes of the search for the best plan: a schedule of a way, from when it is opened until its plans are priced."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from estimator.bulk.bounds import Coarse, least_under_s
from estimator.bulk.open_ways import OpenSchedule, OpenWay
from estimator.bulk.pipeline import Pipeline
from estimator.bulk.places import Placement
from estimator.bulk.records import StateRule
from estimator.pricing.amounts import Floats
from planner.one_job.search.parts import Asking, Part
from planner.one_job.search.spaces.cuts import Cut
from profiles.records import dataclass


class Leaf(NamedTuple):
    """A rule of state of a node: no plan under it has a value below `bound`. `number` tells equal bounds apart."""

    bound: float
    number: int
    state: StateRule


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A way with a placement and one of its schedules; then `summed`, bounded with sums of gradients; then also a
    pipeline with its cuts; then also some rules of state (`states`), bounded as if plans left `spare_bytes` free. No
    plan of it has a value below `bound`; `number` tells equal bounds apart. `leaves`: the rules that are left, as a
    heap. `asking`: the parts that it touches."""

    bound: float
    number: int
    way: int
    placement: Placement
    open: OpenWay
    schedule: OpenSchedule
    leaves: list[Leaf]
    asking: tuple[Asking, ...]
    summed: bool = False
    pipeline: Pipeline | None = None
    cuts: tuple[Cut, ...] = ()
    least_s: Floats | None = None
    states: tuple[StateRule, ...] = ()
    coarse: Coarse | None = None
    by_state_s: Floats | None = None
    spare_bytes: int = 0

    def __lt__(self, other: Node) -> bool:
        return (self.bound, self.number) < (other.bound, other.number)

    @property
    def open_states(self) -> tuple[StateRule, ...]:
        """Its rules of state: those chosen, or those left."""
        return self.states or tuple(leaf.state for leaf in self.leaves)

    def touches(self, part: Part) -> bool:
        """Whether any of them is a rule of state of that part."""
        asked = next((asking.states for asking in self.asking if asking.part is part), ())
        return any(state in asked for state in self.open_states)


def most_promising(nodes: Sequence[Node], part: Part) -> Node | None:
    """Return the node of the least bound that touches a part; None where there is none."""
    best: Node | None = None
    for node in nodes:
        if (best is None or node < best) and node.touches(part):
            best = node
    return best


def bound_anew(node: Node, spare_bytes: int, factor: float) -> None:
    """Bound a node's cuts under its rules of state anew, with so many bytes of each device left free; a plan's value is
    `factor` times its seconds."""
    assert node.coarse is not None
    node.spare_bytes = spare_bytes
    node.by_state_s = least_under_s(node.coarse, node.states, spare_bytes=spare_bytes)
    node.bound = max(node.bound, float(node.by_state_s.min()) * factor)


def open_leaves(states: tuple[StateRule, ...], bounds: Sequence[float], asking: Sequence[Asking]) -> list[Leaf]:
    """Return as a heap the rules of state under which a plan of no less than its bound can be better in one of the
    parts."""
    leaves = [
        Leaf(bound, number, state)
        for number, (state, bound, wanted) in enumerate(zip(states, bounds, _wanted_below(states, asking), strict=True))
        if bound < wanted or wanted == math.inf
    ]
    heapq.heapify(leaves)
    return leaves


def still_open(node: Node) -> list[Leaf]:
    """Return the rules of state that are left of a node and can still be better."""
    wanted = _wanted_below(tuple(leaf.state for leaf in node.leaves), node.asking)
    return [leaf for leaf, least in zip(node.leaves, wanted, strict=True) if leaf.bound < least or least == math.inf]


def _wanted_below(states: tuple[StateRule, ...], asking: Sequence[Asking]) -> list[float]:
    """Below what a plan has to be under each rule of state to be better in one of the parts; infinite where a part has
    none yet."""
    if len(asking) == 1 and asking[0].part.limits is None:
        return [asking[0].part.wanted_below] * len(states)
    return [
        max((each.part.wanted_below for each in asking if state in each.states), default=-math.inf) for state in states
    ]
