"""Which blocks of a site are free: counts, free lists by level, splitting and coalescing.

A free block that lies in no larger free block stands in the free list of its shape. The domains of a level stand in
lists by how many of their devices are free. All lists are heaps by number; an entry is stale if the block is not so any
more, and is dropped when it comes up. So what is found depends on nothing but which devices are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from planner.many_jobs.sites.block_tree import Tree


class FreeBlocks:
    """`count` is how many devices of each block are free."""

    __slots__ = ("_above", "_by_count", "_by_shape", "_nonempty", "_of", "_shapes", "_zeros", "count", "tree")

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.count = list(tree.size)
        self._zeros = [0] * len(tree.size)
        self._by_shape: list[list[int]] = [[] for _ in range(tree.shapes)]
        self._by_shape[tree.shape[0]].append(0)
        self._shapes: dict[tuple[int, int], list[int]] = {}
        for shape, level, size in sorted(set(zip(tree.shape, tree.level, tree.size, strict=True))):
            self._shapes.setdefault((level, size), []).append(shape)
        # A level's only domain needs no list.
        listed = [blocks if len(blocks) > 1 else [] for blocks in tree.domains]
        self._by_count: list[list[list[int]]] = [
            [[] for _ in range(max((tree.size[block] for block in blocks), default=0) + 1)] for blocks in listed
        ]
        self._nonempty = [0] * len(listed)
        self._above = _blocks_above(tree)
        self._of = _domains_of_blocks(tree, listed)
        for blocks in listed:
            self._stand(blocks)

    def take(self, block: int) -> None:
        """Hold a block, all of which is free; the halves that splitting leaves go into the free lists."""
        tree, count = self.tree, self.count
        size, above, right, shape = tree.size, tree.above, tree.right, tree.shape
        devices = size[block]
        if count[block] != devices:
            raise ValueError(f"block {block}: {count[block]} of {devices} devices free, expected all")
        inner, over = block, above[block]
        while over >= 0 and count[over] == size[over]:
            other = right[over]
            if other == inner:
                other = over + 1
            heappush(self._by_shape[shape[other]], other)
            inner, over = over, above[over]
        end = block + 2 * devices - 1
        count[block:end] = self._zeros[block:end]
        for over in self._above[block]:
            count[over] -= devices
        self._stand(self._of[block])

    def give(self, block: int) -> None:
        """Free a block, all of which is held, and coalesce: while its buddy is free too, both are the block above."""
        tree, count = self.tree, self.count
        size, above = tree.size, tree.above
        devices = size[block]
        if count[block]:
            raise ValueError(f"block {block}: {count[block]} of {devices} devices free already, expected none")
        end = block + 2 * devices - 1
        count[block:end] = size[block:end]
        for over in self._above[block]:
            count[over] += devices
        self._stand(self._of[block])
        while above[block] >= 0 and count[above[block]] == size[above[block]]:
            block = above[block]
        heap = self._by_shape[tree.shape[block]]
        heappush(heap, block)
        if len(heap) > 2 * len(size) + 64:
            self._by_shape[tree.shape[block]] = sorted({entry for entry in heap if self._is_list_head(entry)})

    def nearest_level(self, wanted: int) -> int | None:
        """The lowest level with a domain that has so many free devices; None if the site has too few."""
        if self.count[0] < wanted:
            return None
        levels = (level for level, blocks in enumerate(self.tree.domains) if blocks)
        return next((level for level in levels if self._fewest(level, wanted) is not None), None)

    def domain(self, level: int, wanted: int) -> int:
        """Of the domains of a level with so many free devices one with the fewest, the first of those."""
        fullest = self._fewest(level, wanted)
        if fullest is None:
            raise ValueError(f"level {level}: no domain has {wanted} free devices")
        return fullest

    def first_free(self, level: int, size: int) -> int | None:
        """The first block of exactly this level and size in the free lists."""
        heads = [head for shape in self._shapes.get((level, size), ()) if (head := self.head(shape)) is not None]
        return min(heads, default=None)

    def head(self, shape: int) -> int | None:
        """The first block in the free list of a shape."""
        heap = self._by_shape[shape]
        while heap:
            if self._is_list_head(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def _is_list_head(self, block: int) -> bool:
        count, size, over = self.count, self.tree.size, self.tree.above[block]
        return count[block] == size[block] and (over < 0 or count[over] != size[over])

    def _stand(self, domains: Iterable[int]) -> None:
        """Put domains into the lists by their counts."""
        level_of, count = self.tree.level, self.count
        for domain in domains:
            free = count[domain]
            if free:
                level = level_of[domain]
                heap = self._by_count[level][free]
                if not heap:
                    self._nonempty[level] |= 1 << free
                heappush(heap, domain)
                if len(heap) > 64 and len(heap) > 2 * len(self.tree.domains[level]):
                    heap[:] = [other for other in self.tree.domains[level] if count[other] == free]

    def _fewest(self, level: int, wanted: int) -> int | None:
        count, by_count = self.count, self._by_count[level]
        if len(self.tree.domains[level]) == 1:
            only = self.tree.domains[level][0]
            return only if count[only] >= wanted else None
        while left := self._nonempty[level] >> wanted:
            free: int = wanted + (left & -left).bit_length() - 1
            heap = by_count[free]
            while heap:
                if count[heap[0]] == free:
                    return int(heap[0])
                heappop(heap)
            self._nonempty[level] &= ~(1 << free)
        return None


def _blocks_above(tree: Tree) -> list[tuple[int, ...]]:
    """The blocks that each lies in."""
    above: list[tuple[int, ...]] = []
    for over in tree.above:
        above.append(() if over < 0 else (*above[over], over))
    return above


def _domains_of_blocks(tree: Tree, domains: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The domains that each block lies in, is, or holds."""
    domains_of: list[list[int]] = [[] for _ in tree.size]
    above = _blocks_above(tree)
    for domain in (block for blocks in domains for block in blocks):
        for block in range(domain, domain + 2 * tree.size[domain] - 1):
            domains_of[block].append(domain)
        for block in above[domain]:
            domains_of[block].append(domain)
    return [tuple(blocks) for blocks in domains_of]
