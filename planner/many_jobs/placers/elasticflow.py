"""ElasticFlow's placement as Titan's paper reads it (Titan, section V-A): best-fit, and idle nodes first or not."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit
from planner.many_jobs.placers.records import FreeNodes, Request


class ElasticFlow:
    """As few nodes as may be, of which the idle ones are opened first (`idle_first`), since with best-fit alone the 334
    nodes in use of Titan's figure 2 do not come out. The third reading, counts rounded up to powers of two, is
    `--counts powers`: it is the job that holds more devices then, wherever it sits."""

    name = "elasticflow"

    def __init__(self, idle_first: bool = True) -> None:
        self.idle_first = idle_first

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free = nodes.free
        if self.idle_first:
            idle = [node for node, count in enumerate(free) if count == request.size]
            chosen = best_fit(free, idle, request.devices)
            if chosen is not None:
                return chosen
        return best_fit(free, range(len(free)), request.devices) or ()
