"""The buddy allocator with the rounding of SpiderFlow's appendix A.1: a request gets one whole free block."""

from __future__ import annotations

from bench.clusters.buddy_allocator import BuddyAllocator
from planner.many_jobs.sites.domains import Domain, node_domain


class WholeBlocks(BuddyAllocator):
    """A request gets one free block, the smallest that is large enough (3 get 4; where counts are no powers of two,
    perhaps 3): the nearest first, then the one that splits the smallest block. Fails where the free devices are
    scattered."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(domain)
        self._nearest = _NearestBlocks(self.tree.level, self.tree.size, self.tree.right, self.tree.shape)

    def find(self, wanted: int) -> list[int]:
        """One free block for a request, by the free lists."""
        heads = ((target, self.blocks.head(shape)) for target, shape in self._nearest.order(wanted))
        target, block = next(((target, head) for target, head in heads if head is not None), ((0, 0), -1))
        if block < 0:
            return []
        size, level, right = self.tree.size, self.tree.level, self.tree.right
        while (level[block], size[block]) != target:
            left = block + 1
            block = left if self._nearest.best(left, wanted) == target else right[block]
        return [block]


class _NearestBlocks:
    """For a request and a shape: (level, size) of the nearest block inside that is large enough, each found once."""

    def __init__(self, level: list[int], size: list[int], right: list[int], shape: list[int]) -> None:
        self.level, self.size, self.right, self.shape = level, size, right, shape
        self.example = {shape: block for block, shape in enumerate(shape)}
        self.known: dict[int, list[tuple[int, int] | None]] = {}
        self.orders: dict[int, list[tuple[tuple[int, int], int]]] = {}

    def order(self, wanted: int) -> list[tuple[tuple[int, int], int]]:
        """Shapes to look for, with the nearest block in each: the nearest first, then the smallest shape."""
        if wanted not in self.orders:
            able = [(best, shape) for shape, best in enumerate(self.of(wanted)) if best is not None]
            able.sort(key=lambda one: (one[0], self.size[self.example[one[1]]], one[1]))
            self.orders[wanted] = able
        return self.orders[wanted]

    def of(self, wanted: int) -> list[tuple[int, int] | None]:
        """By shape; None where even the whole is too small."""
        if wanted not in self.known:
            found: list[tuple[int, int] | None] = [None] * len(self.example)
            self.known[wanted] = found
            # A shape's number is that of its first block's turn, and halves have theirs before the whole.
            for shape in range(len(found)):
                block = self.example[shape]
                if self.size[block] < wanted:
                    continue
                halves = (block + 1, self.right[block]) if self.right[block] else ()
                inside = [best for half in halves if (best := found[self.shape[half]]) is not None]
                found[shape] = min(inside, default=(self.level[block], self.size[block]))
        return self.known[wanted]

    def best(self, block: int, wanted: int) -> tuple[int, int] | None:
        """Of one block."""
        return self.of(wanted)[self.shape[block]]


def uniform_domain(nodes: int, devices: int, *, island: int | None = None, nodes_per_rack: int = 0) -> Domain:
    """A site of equal nodes, with islands of so many devices (None: the node is one), and racks of so many nodes."""
    node = node_domain(devices, island or devices)
    if not nodes_per_rack or nodes_per_rack >= nodes:
        return Domain(level="site", parts=(node,) * nodes)
    counts = [nodes_per_rack] * (nodes // nodes_per_rack) + [nodes % nodes_per_rack] * bool(nodes % nodes_per_rack)
    return Domain(level="site", parts=tuple(Domain(level="rack", parts=(node,) * count) for count in counts))
