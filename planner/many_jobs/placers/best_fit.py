"""Best-fit: as few nodes as may be, and of those the ones with the least left over. The simulator's own rule."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit
from planner.many_jobs.placers.records import FreeNodes, Request


class BestFit:
    """One node if the job fits on one, that with the fewest free devices that are enough; else the emptiest nodes, and
    a best-fit rest."""

    name = "best-fit"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        return best_fit(nodes.free, range(len(nodes.free)), request.devices) or ()


class Packed(BestFit):
    """The same, by the name that stands beside `random`, `same-switch` and `trace`."""

    name = "packed"
