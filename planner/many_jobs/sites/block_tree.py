"""The binary tree of a site's devices: what a block is, where its halves lie, and how near its devices are.

Blocks are numbered from the root, a block before its left half before its right half, so that all blocks inside one
stand in a row. A count that is no power of two is halved into the greatest power of two below it and the rest.
"""

from __future__ import annotations

from planner.many_jobs.sites.domains import Domain


class Tree:
    """By block: its `size` in devices, its `first` device, the block `above` it (-1: none), its `right` half (the left
    one is the next block; 0: it is one device), its `level` (that of the nearest domain that holds it, a number in
    `levels`), its `shape` (equal for blocks that are alike all the way down).

    `domains` are the blocks that are whole domains, by level. `parts` are a domain's own parts, () where those are
    devices. `leaf` is the block of each device. Built whole from the domain of a site, and read-only from then on. A
    domain with one part is that part, and one of a single device is the device.
    """

    def __init__(self, domain: Domain) -> None:
        self.size: list[int] = []
        self.first: list[int] = []
        self.above: list[int] = []
        self.right: list[int] = []
        self.level: list[int] = []
        self.shape: list[int] = []
        self.levels = domain.levels
        self.domains: list[list[int]] = [[] for _ in self.levels]
        self.parts: dict[int, tuple[int, ...]] = {}
        self.leaf: list[int] = []
        self._shapes: dict[tuple[int, ...], int] = {}
        self._domain(domain, -1)

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.size[0]

    @property
    def shapes(self) -> int:
        """How many different shapes there are."""
        return len(self._shapes)

    def _domain(self, domain: Domain, above: int) -> int:
        """The block of a domain."""
        while len(domain.parts) == 1:
            domain = domain.parts[0]
        if domain.devices == 1:
            return self._device(above)
        level = self.levels.index(domain.level)
        parts: list[int] = []
        block = self._halves(domain, 0, len(domain.parts) or domain.devices, level, above, parts)
        self.domains[level].append(block)
        self.parts[block] = tuple(parts)
        return block

    def _halves(self, domain: Domain, start: int, end: int, level: int, above: int, parts: list[int]) -> int:
        """The block of a domain's parts (or devices) from `start` to before `end`."""
        if end - start == 1:
            if domain.devices:
                return self._device(above)
            parts.append(self._domain(domain.parts[start], above))
            return parts[-1]
        block = self._add(above, level)
        middle = start + (1 << ((end - start - 1).bit_length() - 1))
        left = self._halves(domain, start, middle, level, block, parts)
        right = self.right[block] = self._halves(domain, middle, end, level, block, parts)
        self.size[block] = self.size[left] + self.size[right]
        key = (level, self.size[block], self.shape[left], self.shape[right])
        self.shape[block] = self._shapes.setdefault(key, len(self._shapes))
        return block

    def _device(self, above: int) -> int:
        block = self._add(above, 0)
        self.shape[block] = self._shapes.setdefault((0, 1), len(self._shapes))
        self.leaf.append(block)
        return block

    def _add(self, above: int, level: int) -> int:
        self.size.append(1)
        self.first.append(len(self.leaf))
        self.above.append(above)
        self.right.append(0)
        self.level.append(level)
        self.shape.append(0)
        return len(self.size) - 1
