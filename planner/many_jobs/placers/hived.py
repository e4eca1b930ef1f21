"""HiveD as Titan's paper reads it (section V-A): what is left over first, however small, whatever it costs."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit, fill
from planner.many_jobs.placers.records import FreeNodes, Request


class HiveD:
    """Nodes that are not idle first, those with the fewest free devices before the others, then idle ones. HiveD itself
    (OSDI 2020) places by cells: `hived-cells`. Where the fragments hold the job, Titan's example (Fig. 1) takes two
    rather than the three smallest: `fragments=best-fit`."""

    name = "hived"

    def __init__(self, fragments: str = "smallest") -> None:
        if fragments not in ("smallest", "best-fit"):
            raise ValueError(f"fragments={fragments}; smallest or best-fit")
        self.fits = fragments == "best-fit"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free, size = nodes.free, request.size
        parts = [node for node, count in enumerate(free) if 0 < count < size]
        chosen = best_fit(free, parts, request.devices) if self.fits else None
        if chosen is not None:
            return chosen
        parts.sort(key=lambda node: (free[node], node))
        idle = (node for node, count in enumerate(free) if count == size)
        return tuple(fill(free, (*parts, *idle), request.devices))
