"""First-fit: the first nodes with anything free, in their order."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import fill
from planner.many_jobs.placers.records import FreeNodes, Request


class FirstFit:
    """The first node where the job fits; where there is none, nodes in their order."""

    name = "first-fit"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free = nodes.free
        first = next((node for node, count in enumerate(free) if count >= request.devices), None)
        order = range(len(free)) if first is None else (first,)
        return tuple(fill(free, order, request.devices))
