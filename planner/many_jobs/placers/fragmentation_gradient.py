"""Fragmentation gradient descent (Weng et al., "Beware of fragmentation", USENIX ATC 2023), of whole devices."""

from __future__ import annotations

from math import inf

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit
from planner.many_jobs.placers.records import FreeNodes, Request
from profiles.numerals import read_number, read_whole


class FragmentationGradient:
    """A task of up to a node goes where fragments grow least. What a node has free is a fragment to the share of tasks
    that it cannot hold (F_n of a target workload, section 3): `sizes` has the shares of tasks by their devices, as
    1:0.7,8:0.3. A larger job is tasks of whole idle nodes and a rest. Where the nodes do not have a task in one piece,
    as few as may be. Titan takes its notion of fragments from there."""

    name = "fragmentation-gradient"

    def __init__(self, sizes: str = "1:0.7,2:0.1,4:0.1,8:0.1") -> None:
        self.shares: dict[int, float] = {}
        for part in sizes.split(","):
            size, _, share = part.partition(":")
            try:
                devices, tasks = read_whole(size), read_number(share)
            except ValueError:
                devices = tasks = 0
            if devices < 1 or devices in self.shares or not 0 < tasks < inf:
                raise ValueError(f"sizes={sizes}; such as 1:0.7,8:0.3, each size once, shares above 0")
            self.shares[devices] = tasks

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free = nodes.free
        whole, rest = divmod(request.devices, request.size)
        idle = [node for node, count in enumerate(free) if count == request.size][:whole]
        used = set(idle)
        enough = [node for node, count in enumerate(free) if count >= rest and node not in used]
        if len(idle) < whole or (rest and not enough):
            return best_fit(free, range(len(free)), request.devices) or ()
        taken = [(node, request.size) for node in idle]
        if rest:
            node = min(enough, key=lambda node: (self._grows(free[node], rest), free[node], node))
            taken.append((node, rest))
        return tuple(taken)

    def _grows(self, free: int, taken: int) -> float:
        return self._fragment(free - taken) - self._fragment(free)

    def _fragment(self, free: int) -> float:
        """Of `free` devices those that tasks drawn by the shares cannot use, in the mean."""
        return sum(share * free for size, share in self.shares.items() if size > free)
