"""Gandiva's placement (OSDI 2018, section 4.1): near each other first, then wherever there is room."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit, fill, largest_first
from planner.many_jobs.placers.records import FreeNodes, Request


class Gandiva:
    """Of the nodes that already have jobs of the same size, one with room (Gandiva keeps 1-, 2- and 4-GPU jobs apart,
    so that what one leaves another of its size takes): here, nodes whose free devices are a multiple of the job's; else
    an idle node; else as few nodes as may be."""

    name = "gandiva"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free, wanted, size = nodes.free, request.devices, request.size
        if wanted < size:
            same = [node for node, count in enumerate(free) if 0 < count < size and count % wanted == 0]
            if same:
                return ((min(same, key=lambda node: (free[node], node)), wanted),)
        idle = [node for node, count in enumerate(free) if count == size]
        if len(idle) * size >= wanted:
            return tuple(fill(free, idle, wanted))
        chosen = best_fit(free, largest_first(free, range(len(free))), wanted)
        return chosen or ()
