"""When a job could sit on as few nodes as whole ones would be, by the ends that are predicted."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from math import inf

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.records import FreeNodes, Request


def whole_nodes_from(nodes: FreeNodes, request: Request) -> tuple[float, NodeCounts] | None:
    """Return from when on (a time of day) a job would fit on whole nodes and, for the rest, one more, if nobody else
    came; and which nodes these are. None where that is never by what is known: of jobs whose end has passed, too,
    nobody knows when they end.

    With w whole nodes that is when the w-th is idle and one more has as much free as the rest.
    """
    whole, rest = divmod(request.devices, request.size)
    idle, roomy = list[tuple[float, int]](), list[tuple[float, int]]()
    for node, free in enumerate(nodes.free):
        ends = sorted(end for end in nodes.ends(node) if end[0] > request.now_s)
        if whole:
            idle.append((_has_free_s(request.size, free, ends, request.now_s), node))
        if rest:
            roomy.append((_has_free_s(rest, free, ends, request.now_s), node))
    chosen = nsmallest(whole, idle)
    taken = {node for _, node in chosen}
    if rest:
        others = (entry for entry in roomy if entry[1] not in taken)
        chosen += [min(others, default=(inf, 0))]
    if len(chosen) < whole + bool(rest) or (last_s := max(chosen)[0]) == inf:
        return None
    counts = [(node, request.size) for _, node in chosen[:whole]]
    return last_s, (*counts, *((node, rest) for _, node in chosen[whole:]))


def _has_free_s(wanted: int, free: int, ends: Sequence[tuple[float, int]], now_s: float) -> float:
    """When a node has so many devices free; infinity: never."""
    if free >= wanted:
        return now_s
    for end_s, devices in ends:
        free += devices
        if free >= wanted:
            return end_s
    return inf
