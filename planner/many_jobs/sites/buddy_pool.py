"""The buddy allocator in the place of `planner.many_jobs.simulation.placing.PoolNodes`: the same calls, the same
pieces."""

from __future__ import annotations

from collections.abc import Iterable

from planner.many_jobs.sites.buddy import BuddyAllocator
from planner.many_jobs.sites.domains import Domain, uniform_domain

Pieces = tuple[tuple[int, int], ...]
"""Nodes' numbers, each with its devices as bits."""


class BuddyPool:
    """The devices of one pool of equal nodes, placed by the buddy allocator. A violation is a device given out or back
    twice; there must be none. `domain` says what is near what (None: nodes alone); its devices are numbered node by
    node."""

    def __init__(self, nodes: int, size: int, domain: Domain | None = None) -> None:
        self.nodes, self.size = nodes, size
        self.domain = domain or uniform_domain(nodes, size)
        if self.domain.size != nodes * size:
            raise ValueError(f"buddy pool: domains of {self.domain.size} devices for {nodes} nodes of {size}")
        self.buddy = BuddyAllocator(self.domain)
        self.masks = [(1 << size) - 1] * nodes
        self.violations = 0

    @property
    def counts(self) -> list[int]:
        """Free devices of each node."""
        return [mask.bit_count() for mask in self.masks]

    def take(self, wanted: int) -> Pieces:
        """So many free devices, near each other. RuntimeError if there are too few: the caller knows."""
        blocks = self.buddy.find(wanted)
        if not blocks:
            raise RuntimeError(f"{wanted} devices were counted free, and are not")
        found: dict[int, int] = {}
        for block in blocks:
            self.buddy.blocks.take(block)
            for device in self.buddy.devices((block,)):
                node, index = divmod(device, self.size)
                found[node] = found.get(node, 0) | 1 << index
        pieces = tuple(sorted(found.items()))
        for node, mask in pieces:
            self.masks[node] &= ~mask
        return pieces

    def hold(self, pieces: Pieces) -> None:
        """Take exactly these."""
        for node, mask in pieces:
            if self.masks[node] & mask != mask:
                self.violations += 1
            for block in self._blocks(node, self.masks[node] & mask):
                self.buddy.blocks.take(block)
            self.masks[node] &= ~mask

    def give(self, pieces: Pieces) -> None:
        """Take these back."""
        for node, mask in pieces:
            if self.masks[node] & mask:
                self.violations += 1
            for block in self._blocks(node, mask & ~self.masks[node]):
                self.buddy.blocks.give(block)
            self.masks[node] |= mask

    def fail(self, node: int) -> None:
        """The node's devices, all free by now, are not there."""
        self.hold(((node, (1 << self.size) - 1),))

    def repair(self, node: int) -> None:
        """The node's devices are there again."""
        self.give(((node, ((1 << self.size) - 1) & ~self.masks[node]),))

    def _blocks(self, node: int, mask: int) -> Iterable[int]:
        """The largest blocks that make up these devices of a node."""
        tree, base = self.buddy.tree, node * self.size
        while mask:
            index = (mask & -mask).bit_length() - 1
            block, above = tree.leaf[base + index], tree.above[tree.leaf[base + index]]
            while above >= 0 and tree.first[above] == base + index and tree.size[above] <= self.size - index:
                span = ((1 << tree.size[above]) - 1) << index
                if mask & span != span:
                    break
                block, above = above, tree.above[above]
            mask &= ~(((1 << tree.size[block]) - 1) << index)
            yield block
