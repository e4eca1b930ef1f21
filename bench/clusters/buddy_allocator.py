"""The buddy allocator: the product's rule (`planner.many_jobs.sites.buddy`) over many requests and returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.clusters.free_blocks import FreeBlocks
from planner.many_jobs.sites.block_tree import Tree
from planner.many_jobs.sites.buddy import choose_blocks, devices_of_blocks, free_within
from planner.many_jobs.sites.domains import Domain


class Allocation(NamedTuple):
    """Devices held by number, ascending, as `blocks` of the tree; `id` is the allocator's own. `level` is the lowest
    with a domain that holds them all."""

    id: int
    devices: tuple[int, ...]
    blocks: tuple[int, ...]
    level: str


class BuddyAllocator:
    """Devices of one site and type. Deterministic: the answer depends on which devices are free, and nothing else.

    A request gets exactly as many devices, as `planner.many_jobs.sites.buddy.near_devices` says. It fails only if fewer
    devices are free.

    >>> buddy = BuddyAllocator(Domain(level="node", devices=8))
    >>> one, two = buddy.allocate(3), buddy.allocate(4)
    >>> one.devices, two.devices, buddy.allocate(2)
    ((0, 1, 2), (4, 5, 6, 7), None)
    >>> buddy.free(one), buddy.free(two), buddy.free_blocks()
    (None, None, ((0, 1, 2, 3, 4, 5, 6, 7),))
    """

    def __init__(self, domain: Domain) -> None:
        self.tree = Tree(domain)
        self.blocks = FreeBlocks(self.tree)
        self.held: dict[int, tuple[int, ...]] = {}
        self._next = 0

    @property
    def free_devices(self) -> int:
        """Devices that nobody holds."""
        return self.blocks.count[0]

    def free_blocks(self) -> tuple[tuple[int, ...], ...]:
        """The devices of the free blocks, each as large as can be."""
        return tuple(self.devices((block,)) for block in free_within(self.blocks, 0))

    def allocate(self, wanted: int) -> Allocation | None:
        """Devices for a request; None if there is no place. ValueError for fewer than 1."""
        chosen = self.find(wanted)
        if not chosen:
            return None
        for block in chosen:
            self.blocks.take(block)
        number, self._next = self._next, self._next + 1
        blocks = self.held[number] = tuple(chosen)
        return Allocation(number, self.devices(blocks), blocks, self.tree.levels[self._level(blocks)])

    def free(self, allocation: Allocation) -> None:
        """Give the devices back. ValueError if they were given back before."""
        blocks = self.held.pop(allocation.id, None)
        if blocks is None:
            raise ValueError(f"buddy allocator: allocation {allocation.id} is not held, expected one that is")
        for block in blocks:
            self.blocks.give(block)

    def find(self, wanted: int) -> list[int]:
        """The blocks that a request would get; none if there is no place. Nothing is held yet."""
        return choose_blocks(self.blocks, wanted)

    def devices(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """The devices of these blocks, ascending."""
        return devices_of_blocks(self.tree, blocks)

    def _level(self, blocks: tuple[int, ...]) -> int:
        """The level of the lowest domain that holds these."""
        first, size, above = self.tree.first, self.tree.size, self.tree.above
        if len(blocks) == 1:
            return self.tree.level[blocks[0]]
        low = min(first[block] for block in blocks)
        high = max(first[block] + size[block] for block in blocks)
        block = blocks[0]
        while first[block] > low or first[block] + size[block] < high:
            block = above[block]
        return self.tree.level[block]
