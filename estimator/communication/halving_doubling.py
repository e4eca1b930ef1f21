"""What recursive halving and doubling costs on a group: its phases walked over the group's nodes, one by one."""

from __future__ import annotations

from typing import cast

from estimator.communication.groups import Group
from estimator.communication.phases import PhasedOp, collective_phases
from estimator.communication.rank_order import partners_together
from estimator.communication.tables import bus_factor
from estimator.communication.timed_order import fastest_orders
from estimator.communication.walking import Ground, Line, Node, Seats, Step, walk
from profiles.vocabulary import CollectiveOp


def halving_doubling(
    op: CollectiveOp, group: Group, concurrent_groups: int, above_s_per_byte: float
) -> tuple[Line, ...]:
    """Return what it takes in the orders of the ranks of which, for every number of bytes, one takes least
    (`fastest_orders`); over several sites in the order that has those that exchange most next to each other. Raise
    ValueError for an op that it has no form of.

    Uplinks above the nodes carry what a ring's would (`above_s_per_byte` for each byte of a step): with partners
    together as many bytes leave a part of the tree, in fewer steps.
    """
    held_s_per_byte = bus_factor(op, group.ranks) * above_s_per_byte
    if any(level.kind == "site" for level in group.levels):
        lines: tuple[Line, ...] = (_over_sites(op, group, concurrent_groups),)
    else:
        ways = fastest_orders("halving-doubling", cast("PhasedOp", op), ground_of(group, concurrent_groups))
        lines = tuple(way.line for way in ways)
    return tuple((latency_s, max(seconds, held_s_per_byte)) for latency_s, seconds in lines)


def ground_of(group: Group, concurrent_groups: int = 1) -> Ground:
    """Return where the ranks of a group on one site can sit, while so many groups like it are busy: nodes with most
    ranks first. Islands of a node are as full as the fullest one."""
    steps = [
        Step(ranks_inside=level.ranks_inside, latency_s=level.latency_s, bytes_per_s=level.available(concurrent_groups))
        for level in group.levels
    ]
    if group.levels[-1].kind != "fabric":
        return Ground(nodes=(Node(ranks=group.ranks, bytes_per_s=1.0),), inside=tuple(steps))
    *inside, top = steps
    level = group.levels[-1]
    nodes = [
        Node(ranks=boxes.ranks, bytes_per_s=boxes.of(level).available(concurrent_groups))
        for boxes in group.boxes
        for _ in range(boxes.count)
    ]
    even = Node(ranks=top.ranks_inside, bytes_per_s=top.bytes_per_s)
    return Ground(nodes=tuple(nodes) or (even,) * level.members, latency_s=top.latency_s, inside=tuple(inside))


def _over_sites(op: CollectiveOp, group: Group, concurrent_groups: int) -> Line:
    """Ranks fill the parts of each level one behind the other."""
    steps = [
        Step(ranks_inside=level.ranks_inside, latency_s=level.latency_s, bytes_per_s=level.available(concurrent_groups))
        for level in group.levels
    ]
    one = Ground(nodes=(Node(ranks=group.ranks, bytes_per_s=1.0),), inside=tuple(steps))
    phases = collective_phases("halving-doubling", cast("PhasedOp", op), group.ranks)
    seats: Seats = (0,) * group.ranks
    return walk(phases, seats, one, partners_together(group.ranks))
