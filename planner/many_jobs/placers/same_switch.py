"""Same host or same switch: what the lingjun cluster does (Cao et al., "Crux: GPU-Efficient Communication Scheduling
for Deep Learning Training", SIGCOMM 2024, section 2.2: it "tries to allocate GPUs in the same host or under the same
switch to a job"); which of several hosts or switches the paper does not say."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit, fill, largest_first
from planner.many_jobs.placers.records import FreeNodes, Request


class SameSwitch:
    """One node if the job fits on one, as best-fit; else below one switch, of the lowest tier that has one with room,
    the one with the fewest free devices that are enough; else over as few as may be, the emptiest first. Nodes of one
    switch follow each other."""

    name = "same-switch"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free, wanted = nodes.free, request.devices
        rows = request.network.part_of_node
        everywhere = range(len(free))
        if max(free) >= wanted:
            return best_fit(free, everywhere, wanted) or ()
        for depth, row in enumerate(rows):
            enough = [part for part in _parts(row, everywhere) if _sum(free, part) >= wanted]
            if enough:
                return tuple(_below(free, rows[:depth], min(enough, key=lambda part: _sum(free, part)), wanted))
        return tuple(_below(free, rows, everywhere, wanted))


def _below(
    free: Sequence[int], rows: Sequence[Sequence[int]], nodes: Sequence[int], wanted: int
) -> list[tuple[int, int]]:
    """Take devices of nodes that have enough together, over as few parts of the highest of `rows` as may be."""
    if not rows:
        return list(best_fit(free, nodes, wanted) or ())
    chosen: list[tuple[int, int]] = []
    parts = sorted(_parts(rows[-1], nodes), key=lambda part: -_sum(free, part))
    while wanted:
        enough = [part for part in parts if _sum(free, part) >= wanted]
        if enough:
            return chosen + _below(free, rows[:-1], enough[-1], wanted)
        whole = parts.pop(0)
        order = [node for leaf in _in_turn(rows[:-1], whole) for node in largest_first(free, leaf)]
        chosen += fill(free, order, wanted)
        wanted -= _sum(free, whole)
    return chosen


def _in_turn(rows: Sequence[Sequence[int]], nodes: Sequence[int]) -> list[list[int]]:
    """The nodes of each part of the lowest level, those of one part of a higher level together."""
    if not rows:
        return [list(nodes)]
    return [leaf for part in _parts(rows[-1], nodes) for leaf in _in_turn(rows[:-1], part)]


def _parts(row: Sequence[int], nodes: Sequence[int]) -> list[list[int]]:
    """The nodes of each part of a level, by the parts' numbers."""
    parts: dict[int, list[int]] = {}
    for node in nodes:
        parts.setdefault(row[node], []).append(node)
    return [parts[number] for number in sorted(parts)]


def _sum(free: Sequence[int], nodes: Sequence[int]) -> int:
    return sum(free[node] for node in nodes)
