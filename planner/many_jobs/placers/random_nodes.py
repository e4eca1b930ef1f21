"""Random: free devices drawn one by one, the yardstick of what no rule at all does."""

from __future__ import annotations

from collections import Counter
from random import Random

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.records import FreeNodes, Request


class RandomNodes:
    """Each free device is as likely as any other. Drawn from the seed, the job and the time, so that a run that goes on
    from a checkpoint draws the same."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        draw = Random(f"{self.seed} {request.job.id} {request.now_s!r}")
        devices = [node for node, count in enumerate(nodes.free) for _ in range(count)]
        return tuple(sorted(Counter(draw.sample(devices, request.devices)).items()))
