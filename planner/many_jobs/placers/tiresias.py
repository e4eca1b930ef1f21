"""Tiresias' placement (Gu et al., NSDI 2019, section 3.3): consolidated where the model's tensors are skewed."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.best_fit import BestFit
from planner.many_jobs.placers.hived import HiveD
from planner.many_jobs.placers.model_skew import largest_share
from planner.many_jobs.placers.records import FreeNodes, Request


class Tiresias:
    """Models whose largest tensor holds at least `skew` of all parameters are hurt by the network, since whoever serves
    that tensor is the busiest (VGG-16: three quarters of 138 million in one). They sit on as few nodes as may be, and
    so do jobs that name no model. Others take what is left over first, as Titan reads it (section V-A). Tiresias
    profiles the messages of a run; the sizes of the zoo's tensors say the same before it."""

    name = "tiresias"

    def __init__(self, skew: float = 0.3) -> None:
        if not 0 <= skew <= 1:
            raise ValueError(f"skew={skew:g}; a share from 0 to 1")
        self.skew = skew
        self._together, self._apart = BestFit(), HiveD()

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        share = largest_share(request.job.workload.model)
        together = share is None or share >= self.skew
        return (self._together if together else self._apart).place(nodes, request)
