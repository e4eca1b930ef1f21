"""What Kubernetes' scheduler does with a job of one pod for each device (NodeResourcesFit, `scoringStrategy`)."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import fill
from planner.many_jobs.placers.records import FreeNodes, Request


class KubeSpread:
    """LeastAllocated, the default: each pod goes to the node with the most free devices, of equal ones the first
    (Kubernetes draws one of them)."""

    name = "kube-spread"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        heap = [(-count, node) for node, count in enumerate(nodes.free) if count]
        heapify(heap)
        taken: dict[int, int] = {}
        for _ in range(request.devices):
            count, node = heappop(heap)
            taken[node] = taken.get(node, 0) + 1
            if count < -1:
                heappush(heap, (count + 1, node))
        return tuple(sorted(taken.items()))


class KubePack:
    """MostAllocated: each pod goes to the node with the fewest free devices, which after it has fewer still: node by
    node, the fullest first."""

    name = "kube-pack"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free = nodes.free
        order = sorted((node for node, count in enumerate(free) if count), key=lambda node: (free[node], node))
        return tuple(fill(free, order, request.devices))
