"""Arnold's placement of what spans pods (section 5.2); best-fit for all else."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit
from planner.many_jobs.placers.records import FreeNodes, Request
from planner.many_jobs.scheduling.pool_networks import nodes_by_pod
from planner.many_jobs.scheduling.zone_choice import ZoneRequest, least_spread_zone


class Arnold:
    """A job of several whole nodes, where so many are idle and the network has pods: the idle nodes of least spread
    (eq. 2), with `alpha` as the weight of its DP groups. The job's nodes are a matrix of so many `columns`, its PP
    stages, where these take as many nodes each; else of one. All other jobs: best-fit, which knows of no pods."""

    name = "arnold"

    def __init__(self, alpha: float = 0.5, columns: int = 1) -> None:
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha={alpha}; a share from 0 to 1")
        if columns < 1:
            raise ValueError(f"columns={columns}; 1 or more")
        self.alpha, self.columns = alpha, columns

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        whole, rest = divmod(request.devices, request.size)
        idle = [node for node, count in enumerate(nodes.free) if count == request.size]
        pods = nodes_by_pod(request.network, idle)
        if rest or whole < 2 or len(idle) < whole or len(pods) == 1:
            return best_fit(nodes.free, range(len(nodes.free)), request.devices) or ()
        columns = 1 if whole % self.columns else self.columns
        zone = ZoneRequest(
            rows=whole // columns,
            columns=columns,
            pods=tuple(pod for pod in pods if pod),
            idle=dict.fromkeys(idle, 0.0),
            alpha=self.alpha,
        )
        return tuple((node, request.size) for node in least_spread_zone(zone, ()))
