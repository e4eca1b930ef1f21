"""Which nodes of a pool give a job its devices: as few as may be, of those the ones with the least left over."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from planner.many_jobs.jobs.records import NodeCounts


class FreeNodes:
    """Some nodes of a pool by how many of their devices are free, and how many that are in all."""

    __slots__ = ("_by_count", "free")

    def __init__(self, counts: Sequence[int], nodes: Iterable[int]) -> None:
        self._by_count: dict[int, list[int]] = {}
        self.free = 0
        for node in nodes:
            count = counts[node]
            if count:
                self._by_count.setdefault(count, []).append(-node)
                self.free += count
        for places in self._by_count.values():
            places.sort()

    def fitting(self, wanted: int) -> int | None:
        """Return the least free count that is enough and that some node has; None where there is none."""
        return min((count for count in self._by_count if count >= wanted), default=None)

    def most(self) -> int:
        """Return the greatest free count that some node has; 0 where nothing is free."""
        return max(self._by_count, default=0)

    def take(self, count: int, wanted: int) -> tuple[int, int]:
        """Return the first node with so many free devices, and how many of the `wanted` ones it gives."""
        places = self._by_count[count]
        node, taken = -places.pop(), min(count, wanted)
        if not places:
            del self._by_count[count]
        if count > taken:
            insort(self._by_count.setdefault(count - taken, []), -node)
        self.free -= taken
        return node, taken


def fewest_nodes(areas: Sequence[FreeNodes], wanted: int) -> NodeCounts | None:
    """Take so many devices from the nodes of `areas`, and return which give how many; None, and nothing is taken, where
    there are too few.

    The rule of `planner.many_jobs.simulation.placing`: the node whose free devices are enough and the fewest, else one
    with the most; of equal ones that of the first area, and there the first.

    >>> fewest_nodes((FreeNodes((2, 8, 8, 3), range(4)),), 11)
    ((1, 8), (3, 3))
    """
    if sum(area.free for area in areas) < wanted:
        return None
    chosen = list[tuple[int, int]]()
    while wanted:
        fitting = [(count, place) for place, area in enumerate(areas) if (count := area.fitting(wanted)) is not None]
        if fitting:
            count, place = min(fitting)
        else:
            count, negative = max((area.most(), -place) for place, area in enumerate(areas))
            place = -negative
        chosen.append(areas[place].take(count, wanted))
        wanted -= chosen[-1][1]
    return tuple(chosen)
