"""Which devices of a pool a job gets: whole nodes first, then the node with the least left over.

Devices of a node are the bits of an integer. Nodes with equally many free devices stand in one heap by number; an entry
is stale if its node has another count by now, and is dropped when it comes up. So a choice depends on nothing but which
devices are free, which a resumed run knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.scheduling.node_choice import FreeNodes, fewest_nodes

Pieces = tuple[tuple[int, int], ...]
"""Nodes' numbers, each with its devices as bits."""


class PoolNodes:
    """The devices of one pool. `idle` nodes work and have all of their devices free. A violation is a device given out
    or back twice; there must be none."""

    __slots__ = ("barred", "counts", "down", "heaps", "idle", "masks", "nodes", "size", "violations")

    def __init__(self, nodes: int, size: int) -> None:
        self.nodes, self.size = nodes, size
        self.masks = [(1 << size) - 1] * nodes
        self.counts = [size] * nodes
        self.heaps: list[list[int]] = [[] for _ in range(size + 1)]
        self.heaps[size] = list(range(nodes))
        self.barred: frozenset[int] = frozenset()
        self.down: set[int] = set()
        self.idle = nodes
        self.violations = 0

    def take(self, wanted: int) -> Pieces:
        """So many free devices on as few nodes as may be; of those, the node with the least left over. The caller knows
        that there are so many. Nodes that are `barred` give none."""
        if self.barred:
            outside = FreeNodes(self.counts, (node for node in range(self.nodes) if node not in self.barred))
            chosen = fewest_nodes((outside,), wanted)
            if chosen is None:
                raise RuntimeError(f"{wanted} devices were counted free outside of reservations, and are not")
            return self.take_on(chosen)
        pieces = []
        while wanted:
            count = self._fitting(wanted)
            node = heappop(self.heaps[count])
            mask = self.masks[node]
            if count > wanted:
                mask = _lowest(mask, wanted)
                count = wanted
            self._hold(node, mask, count)
            pieces.append((node, mask))
            wanted -= count
        return tuple(pieces)

    def take_on(self, nodes: NodeCounts) -> Pieces:
        """So many free devices of each of these nodes. The caller knows that they are free."""
        pieces = tuple((node, _lowest(self.masks[node], count)) for node, count in nodes)
        self.hold(pieces)
        return pieces

    def hold(self, pieces: Pieces) -> None:
        """Take exactly these."""
        for node, mask in pieces:
            self._hold(node, mask, mask.bit_count())

    def give(self, pieces: Pieces) -> None:
        """Take these back."""
        for node, mask in pieces:
            if self.masks[node] & mask:
                self.violations += 1
            self.masks[node] |= mask
            self._stand(node, self.masks[node].bit_count())

    def fail(self, node: int) -> None:
        """The node's devices, all free by now, are not there."""
        if self.counts[node] != self.size:
            self.violations += 1
        self.idle -= self.counts[node] == self.size
        self.masks[node] = self.counts[node] = 0
        self.down.add(node)

    def repair(self, node: int) -> None:
        """The node's devices are there again."""
        self.masks[node] = (1 << self.size) - 1
        self.down.discard(node)
        self._stand(node, self.size)

    def _hold(self, node: int, mask: int, count: int) -> None:
        if self.masks[node] & mask != mask:
            self.violations += 1
        self.masks[node] &= ~mask
        self._stand(node, self.counts[node] - count)

    def _stand(self, node: int, count: int) -> None:
        self.idle += (count == self.size) - (self.counts[node] == self.size)
        self.counts[node] = count
        heap = self.heaps[count]
        heappush(heap, node)
        if len(heap) > 2 * self.nodes + 64:
            self.heaps[count] = [node for node, free in enumerate(self.counts) if free == count]
            heapify(self.heaps[count])

    def _fitting(self, wanted: int) -> int:
        """The least free count that is enough and that some node has; else the most that any has. That node is on top
        of its heap."""
        for count in chain(range(wanted, self.size + 1), range(min(wanted - 1, self.size), 0, -1)):
            heap = self.heaps[count]
            while heap and self.counts[heap[0]] != count:
                heappop(heap)
            if heap:
                return count
        raise RuntimeError(f"{wanted} devices were counted free, and are not")


def shrink(pieces: Pieces, keep: int) -> tuple[Pieces, Pieces]:
    """Of a job's devices the `keep` that it keeps, on the nodes where it has most, and the rest."""
    kept, rest = [], []
    for node, mask in sorted(pieces, key=lambda piece: (-piece[1].bit_count(), piece[0])):
        kept_mask = mask if mask.bit_count() <= keep else _lowest(mask, keep)
        keep -= kept_mask.bit_count()
        if kept_mask:
            kept.append((node, kept_mask))
        if kept_mask != mask:
            rest.append((node, mask & ~kept_mask))
    return tuple(kept), tuple(rest)


def devices_of(placement: Mapping[str, Pieces]) -> Iterator[tuple[str, int, int]]:
    """Return the devices by name: (pool, node, index on the node)."""
    for pool, pieces in placement.items():
        for node, mask in pieces:
            for index in range(mask.bit_length()):
                if mask >> index & 1:
                    yield pool, node, index


def _lowest(mask: int, count: int) -> int:
    """The lowest `count` bits that are set in `mask`."""
    lowest = 0
    for _ in range(count):
        bit = mask & -mask
        lowest |= bit
        mask ^= bit
    return lowest
