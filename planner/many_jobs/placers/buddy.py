"""The sites' buddy allocator (SpiderFlow, appendix A.1) as a rule of placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.records import FreeNodes, Request
from planner.many_jobs.sites.block_tree import Tree
from planner.many_jobs.sites.buddy import choose_blocks
from planner.many_jobs.sites.domains import domain_of_nodes
from profiles.network import Network


class Buddy:
    """Locality first: the lowest level of the network with a part that has room, there a free block of just the job's
    size, else the part with the fewest devices that are enough, and as few of its parts as may be. The devices of a
    node are equal here, so that those that are free count as its last ones, in blocks of powers of two."""

    name = "buddy"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        held = _Blocks(_forest(request.network, len(nodes.free), request.size), nodes.free, request.size)
        tree = held.tree
        places: Counter[int] = Counter()
        for block in choose_blocks(held, request.devices):
            first = tree.first[block]
            for device in range(first, first + tree.size[block]):
                places[device // request.size] += 1
        return tuple((held.order[place], count) for place, count in sorted(places.items()))


class _Forest:
    """The tree of a pool's devices with what is asked of it as arrays, and the nodes in the order of its devices."""

    def __init__(self, network: Network, nodes: int, size: int) -> None:
        domain, self.order = domain_of_nodes(network, nodes, size)
        self.tree = Tree(domain)
        self.size, self.level = np.array(self.tree.size), np.array(self.tree.level)
        self.first, self.above = np.array(self.tree.first), np.array(self.tree.above)
        self.domains = [np.array(blocks, dtype=int) for blocks in self.tree.domains]


@lru_cache(maxsize=16)
def _forest(network: Network, nodes: int, size: int) -> _Forest:
    return _Forest(network, nodes, size)


class _Blocks:
    """What is free of a tree, a `planner.many_jobs.sites.buddy.Blocks`: all of it counted at once."""

    def __init__(self, forest: _Forest, free: Sequence[int], size: int) -> None:
        self._forest, self.tree, self.order = forest, forest.tree, forest.order
        ordered = np.array(free)[np.array(forest.order, dtype=int)]
        is_free = np.arange(size)[None, :] >= size - ordered[:, None]
        before = np.concatenate([[0], np.cumsum(is_free.ravel())])
        self._count = before[forest.first + forest.size] - before[forest.first]
        self.count: list[int] = self._count.tolist()

    def nearest_level(self, wanted: int) -> int | None:
        """As `Blocks` says."""
        levels = enumerate(self._forest.domains)
        return next((level for level, blocks in levels if (self._count[blocks] >= wanted).any()), None)

    def domain(self, level: int, wanted: int) -> int:
        """As `Blocks` says."""
        blocks = self._forest.domains[level]
        counts = self._count[blocks]
        enough = np.where(counts >= wanted, counts, np.iinfo(counts.dtype).max)
        return int(blocks[int(enough.argmin())])

    def first_free(self, level: int, size: int) -> int | None:
        """As `Blocks` says."""
        forest, count = self._forest, self._count
        whole = count == forest.size
        in_larger = whole[forest.above] & (forest.above >= 0)
        chosen = whole & (forest.size == size) & (forest.level == level) & ~in_larger
        return int(chosen.argmax()) if chosen.any() else None
