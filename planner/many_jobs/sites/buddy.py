"""The buddy allocator: which devices of a site a job gets, near each other (SpiderFlow, appendix A.1).

The appendix' prose is followed, not its listing, which splits below what was asked for (a request of 3 ends with 2
devices) and looks for blocks of exactly the rounded size only (a free site of 8 has none for a request of 2). One whole
block for every request, as there, finds no place more often: `bench.clusters.whole_blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from planner.many_jobs.sites.block_tree import Tree
from planner.many_jobs.sites.domains import LEVELS, Domain
from planner.many_jobs.sites.free_blocks import FreeBlocks


class Allocation(NamedTuple):
    """Devices held by number, ascending, as `blocks` of the tree; `id` is the allocator's own. `level` is the lowest
    with a domain that holds them all."""

    id: int
    devices: tuple[int, ...]
    blocks: tuple[int, ...]
    level: str


class BuddyAllocator:
    """Devices of one site and type. Deterministic: the answer depends on which devices are free, and nothing else.

    A request gets exactly as many devices. Locality first: the lowest level at which some domain has so
    many free; there a free block of that size and as few parts of its domain as may be; else devices of the domain with
    the fewest that are enough, in as few of its parts as may be (a request of 3 is 2 + 1). It fails only if fewer
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
        return tuple(self.devices((block,)) for block in self.blocks.free_within(0))

    def allocate(self, wanted: int) -> Allocation | None:
        """Devices for a request; None if there is no place. ValueError for fewer than 1."""
        chosen = self.find(wanted)
        if not chosen:
            return None
        for block in chosen:
            self.blocks.take(block)
        number, self._next = self._next, self._next + 1
        blocks = self.held[number] = tuple(chosen)
        return Allocation(number, self.devices(blocks), blocks, LEVELS[self._level(blocks)])

    def free(self, allocation: Allocation) -> None:
        """Give the devices back. ValueError if they were given back before."""
        blocks = self.held.pop(allocation.id, None)
        if blocks is None:
            raise ValueError(f"buddy allocator: allocation {allocation.id} is not held, expected one that is")
        for block in blocks:
            self.blocks.give(block)

    def find(self, wanted: int) -> list[int]:
        """The blocks that a request would get; none if there is no place. Nothing is held yet."""
        if wanted < 1:
            raise ValueError(f"buddy allocator: {wanted} devices wanted, expected at least 1")
        return self.choose_blocks(wanted)

    def devices(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """The devices of these blocks, ascending."""
        first, size = self.tree.first, self.tree.size
        if len(blocks) == 1:
            return tuple(range(first[blocks[0]], first[blocks[0]] + size[blocks[0]]))
        devices: list[int] = []
        for block in blocks:
            devices += range(first[block], first[block] + size[block])
        devices.sort()
        return tuple(devices)

    def choose_blocks(self, wanted: int) -> list[int]:
        """As `find`, of a number that is right."""
        blocks, tree = self.blocks, self.tree
        if wanted == 1:
            lone = blocks.first_free(0, 1)
            if lone is not None:
                return [lone]
        level = blocks.nearest_level(wanted)
        if level is None:
            return [0] if wanted == tree.devices == 1 and blocks.count[0] else []
        exact = blocks.first_free(level, wanted)
        if exact is not None and self._is_tight(exact):
            return [exact]
        gathered: list[int] = []
        self._gather(blocks.domain(level, wanted), wanted, gathered)
        return gathered

    def _is_tight(self, block: int) -> bool:
        """Whether no fewer parts of its domain could have as many devices."""
        tree = self.tree
        domain = block
        while domain not in tree.parts:
            domain = tree.above[domain]
        parts = tree.parts[domain]
        if not parts:
            return True
        end = tree.first[block] + tree.size[block]
        spans = sum(tree.first[block] <= tree.first[part] < end for part in parts)
        return spans <= -(-tree.size[block] // max(tree.size[part] for part in parts))

    def _gather(self, domain: int, wanted: int, gathered: list[int]) -> None:
        """Free blocks of a domain with `wanted` devices in all: the parts with most free devices whole, and for what
        then lacks the part with the fewest that are enough."""
        count = self.blocks.count
        parts = self.tree.parts.get(domain, ())
        if not parts:
            self._split(domain, wanted, gathered)
            return
        ordered, taken = sorted(parts, key=lambda part: -count[part]), 0
        while count[ordered[taken]] < wanted:
            gathered += self.blocks.free_within(ordered[taken])
            wanted -= count[ordered[taken]]
            taken += 1
        enough = (part for part in ordered[taken:] if count[part] >= wanted)
        self._gather(min(enough, key=lambda part: count[part]), wanted, gathered)

    def _split(self, block: int, wanted: int, gathered: list[int]) -> None:
        """Free blocks of a block with `wanted` devices in all: split it down to the half that has just enough."""
        count, right = self.blocks.count, self.tree.right
        while count[block] != wanted:
            most, least = block + 1, right[block]
            if count[most] < count[least]:
                most, least = least, most
            if count[most] < wanted:
                gathered += self.blocks.free_within(most)
                wanted -= count[most]
                block = least
            else:
                block = least if wanted <= count[least] < count[most] else most
        gathered += self.blocks.free_within(block)

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
