"""Best-fit, and between equal nodes the one whose other jobs end at about the same time: it comes free whole."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit
from planner.many_jobs.placers.records import FreeNodes, Request


class NearEnds:
    """The same number of nodes, and the same left over on each, as best-fit's; of nodes with equally many free devices
    the one whose last job should end nearest to when this one should. Ends are predicted ones (`--jct`); without a
    predictor they are those that the trace states, which nobody knows in advance."""

    name = "near-ends"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free = nodes.free
        chosen = best_fit(free, range(len(free)), request.devices) or ()
        end_s = request.predicted_end_s
        if end_s is None:
            return chosen
        nearest: dict[int, Iterator[int]] = {}
        for count in {free[node] for node, _ in chosen}:
            alike = (node for node, left in enumerate(free) if left == count)
            nearest[count] = iter(sorted(alike, key=lambda node: (_apart_s(nodes.last_end_s(node), end_s), node)))
        return tuple((next(nearest[free[node]]), count) for node, count in chosen)


def _apart_s(last_s: float | None, end_s: float) -> float:
    return inf if last_s is None else abs(last_s - end_s)
