"""The buddy rule: which free devices of a site a job gets, near each other (SpiderFlow, appendix A.1).

The appendix' prose is followed, not its listing, which splits below what was asked for (a request of 3 ends with 2
devices) and looks for blocks of exactly the rounded size only (a free site of 8 has none for a request of 2). One whole
block for every request, as there, finds no place more often: `bench.clusters.whole_blocks`. Nothing is given back here,
so what is free is counted once; `bench.clusters.buddy_allocator` keeps count over a million requests and returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from planner.many_jobs.sites.block_tree import Tree
from planner.many_jobs.sites.domains import Domain


class Blocks(Protocol):
    """What is free of a tree: `count` is how many devices of each block."""

    tree: Tree
    count: list[int]

    def nearest_level(self, wanted: int) -> int | None:
        """The lowest level with a domain that has so many free devices; None if the site has too few."""

    def domain(self, level: int, wanted: int) -> int:
        """Of the domains of a level with so many free devices one with the fewest, the first of those."""

    def first_free(self, level: int, size: int) -> int | None:
        """The first free block of exactly this level and size that lies in no larger free block."""


class FreeDevices:
    """What is free of a tree, where nothing changes."""

    def __init__(self, tree: Tree, free: Iterable[int]) -> None:
        self.tree = tree
        self.count = [0] * len(tree.size)
        for device in free:
            self.count[tree.leaf[device]] = 1
        # A block stands before its halves.
        for block in range(len(tree.size) - 1, 0, -1):
            self.count[tree.above[block]] += self.count[block]

    def nearest_level(self, wanted: int) -> int | None:
        """As `Blocks` says."""
        levels = enumerate(self.tree.domains)
        return next((level for level, blocks in levels if any(self.count[block] >= wanted for block in blocks)), None)

    def domain(self, level: int, wanted: int) -> int:
        """As `Blocks` says."""
        enough = (block for block in self.tree.domains[level] if self.count[block] >= wanted)
        return min(enough, key=lambda block: (self.count[block], block))

    def first_free(self, level: int, size: int) -> int | None:
        """As `Blocks` says."""
        tree, count = self.tree, self.count
        for block, held in enumerate(tree.size):
            above = tree.above[block]
            is_part = above >= 0 and count[above] == tree.size[above]
            if count[block] == held == size and tree.level[block] == level and not is_part:
                return block
        return None


def near_devices(domain: Domain, free: Iterable[int], wanted: int) -> tuple[int, ...] | None:
    """Return the devices that a request of `wanted` gets of the `free` ones of a site, by number; None if fewer are
    free. Raise ValueError for fewer than 1.

    Locality first: the lowest level at which some domain has so many free; there a free block of that size and as few
    parts of its domain as may be; else devices of the domain with the fewest that are enough, in as few of its parts as
    may be (a request of 3 is 2 + 1).

    >>> near_devices(Domain(level="node", devices=8), range(1, 8), 4)
    (4, 5, 6, 7)
    """
    tree = Tree(domain)
    chosen = choose_blocks(FreeDevices(tree, free), wanted)
    return devices_of_blocks(tree, chosen) if chosen else None


def devices_of_blocks(tree: Tree, blocks: Sequence[int]) -> tuple[int, ...]:
    """Return the devices of these blocks, ascending."""
    ranges = [range(tree.first[block], tree.first[block] + tree.size[block]) for block in blocks]
    return tuple(ranges[0]) if len(ranges) == 1 else tuple(sorted(device for held in ranges for device in held))


def choose_blocks(blocks: Blocks, wanted: int) -> list[int]:
    """Return the free blocks that a request gets, by the rule of `near_devices`; none if there is no place. Raise
    ValueError for fewer than 1 device."""
    if wanted < 1:
        raise ValueError(f"buddy allocator: {wanted} devices wanted, expected at least 1")
    if wanted == 1:
        lone = blocks.first_free(0, 1)
        if lone is not None:
            return [lone]
    level = blocks.nearest_level(wanted)
    if level is None:
        return [0] if wanted == blocks.tree.devices == 1 and blocks.count[0] else []
    exact = blocks.first_free(level, wanted)
    if exact is not None and _is_tight(blocks.tree, exact):
        return [exact]
    gathered: list[int] = []
    _gather(blocks, blocks.domain(level, wanted), wanted, gathered)
    return gathered


def free_within(blocks: Blocks, block: int) -> Iterator[int]:
    """Return the free blocks of a block, each as large as can be, in order."""
    count, size, right = blocks.count, blocks.tree.size, blocks.tree.right
    stack = [block]
    while stack:
        inner = stack.pop()
        if count[inner] == size[inner]:
            yield inner
        elif count[inner]:
            stack += (right[inner], inner + 1)


def _is_tight(tree: Tree, block: int) -> bool:
    """Whether no fewer parts of its domain could have as many devices."""
    domain = block
    while domain not in tree.parts:
        domain = tree.above[domain]
    parts = tree.parts[domain]
    if not parts:
        return True
    end = tree.first[block] + tree.size[block]
    spans = sum(tree.first[block] <= tree.first[part] < end for part in parts)
    return spans <= -(-tree.size[block] // max(tree.size[part] for part in parts))


def _gather(blocks: Blocks, domain: int, wanted: int, gathered: list[int]) -> None:
    """Free blocks of a domain with `wanted` devices in all: the parts with most free devices whole, and for what
    then lacks the part with the fewest that are enough."""
    count = blocks.count
    parts = blocks.tree.parts.get(domain, ())
    if not parts:
        _split(blocks, domain, wanted, gathered)
        return
    ordered, taken = sorted(parts, key=lambda part: -count[part]), 0
    while count[ordered[taken]] < wanted:
        gathered += free_within(blocks, ordered[taken])
        wanted -= count[ordered[taken]]
        taken += 1
    enough = (part for part in ordered[taken:] if count[part] >= wanted)
    _gather(blocks, min(enough, key=lambda part: count[part]), wanted, gathered)


def _split(blocks: Blocks, block: int, wanted: int, gathered: list[int]) -> None:
    """Free blocks of a block with `wanted` devices in all: split it down to the half that has just enough."""
    count, right = blocks.count, blocks.tree.right
    while count[block] != wanted:
        most, least = block + 1, right[block]
        if count[most] < count[least]:
            most, least = least, most
        if count[most] < wanted:
            gathered += free_within(blocks, most)
            wanted -= count[most]
            block = least
        else:
            block = least if wanted <= count[least] < count[most] else most
    gathered += free_within(blocks, block)
