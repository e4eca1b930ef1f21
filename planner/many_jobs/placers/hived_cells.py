"""HiveD's own placement: buddy cells of a node (Zhao et al., OSDI 2020, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.records import FreeNodes, Request


class HiveDCells:
    """A job is as many cells as the bits of its devices: whole nodes, then halves, quarters and so on, the largest
    first. Each goes where the smallest cell is split that holds it, so that larger ones stay whole; what no node has as
    one cell is halved. Which devices of a node are which cell is left to the count that is free: nodes' devices are
    equal here."""

    name = "hived-cells"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        return place_cells(nodes.free, request.devices, request.size)


def place_cells(free: Sequence[int], devices: int, size: int) -> NodeCounts:
    """Return nodes of `size` with how many of their `free` devices, `devices` in all; so many are free."""
    left = list(free)
    taken: dict[int, int] = {}
    cells = _cells(devices, size)
    while cells:
        cell = cells.pop(0)
        enough = [node for node, count in enumerate(left) if count >= cell]
        if not enough:
            cells = sorted([*cells, cell // 2, cell - cell // 2], reverse=True)
            continue
        node = min(enough, key=lambda node: (_largest_cell(left[node]), node not in taken, left[node], node))
        left[node] -= cell
        taken[node] = taken.get(node, 0) + cell
    return tuple(taken.items())


def _cells(devices: int, size: int) -> list[int]:
    """Whole nodes, then the powers of two of the rest, the largest first.

    >>> _cells(21, 8)
    [8, 8, 4, 1]
    """
    whole, rest = divmod(devices, size)
    return [size] * whole + [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]


def _largest_cell(free: int) -> int:
    return 1 << (free.bit_length() - 1)
