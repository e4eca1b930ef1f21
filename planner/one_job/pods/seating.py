"""From a pod for every cell to nodes for every rank: consecutive nodes of a pod to consecutive ranks in it.

Arnold assigns consecutive ranks inside a pod after solving its program. Under Megatron's default order, in which dp
runs faster than pp, consecutive ranks are a DP group's, so the paper changed Megatron to follow PP groups. Here the
order of the hosts alone does it: ranks stay as the framework numbers them, and the list of hosts is what is permuted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from planner.one_job.pods.records import Placement

Node = TypeVar("Node")

Seats = tuple[tuple[tuple[Node, ...], ...], ...]
"""The nodes of every cell, row by row."""


def seat(placement: Placement, free: Sequence[Sequence[Node]]) -> Seats[Node]:
    """Return the nodes of every cell; `free[pod]` are the pod's free nodes in the order in which they are near each
    other (leaf by leaf), as many as the request has.

    Within a pod the cells of the longer run there, rows or columns, take consecutive nodes. Raise ValueError where a
    pod has other nodes than the request says.
    """
    request = placement.request
    if tuple(map(len, free)) != request.free:
        raise ValueError(f"seat: free nodes of {[len(nodes) for nodes in free]}, the request has {list(request.free)}")
    width = request.nodes_a_cell
    seats: dict[tuple[int, int], tuple[Node, ...]] = {}
    for pod, nodes in enumerate(free):
        cells = [
            (row, column)
            for row, line in enumerate(placement.cells)
            for column, place in enumerate(line)
            if place == pod
        ]
        if len({column for _, column in cells}) < len({row for row, _ in cells}):
            cells.sort(key=lambda cell: (cell[1], cell[0]))
        for number, cell in enumerate(cells):
            seats[cell] = tuple(nodes[number * width : (number + 1) * width])
    return tuple(tuple(seats[row, column] for column in range(request.columns)) for row in range(request.rows))


def in_megatrons_order(seats: Seats[Node]) -> tuple[Node, ...]:
    """Return the nodes in the order of Megatron's ranks: stage after stage (column by column), the DP group's nodes one
    after another; what a host file lists."""
    return tuple(node for column in zip(*seats, strict=True) for cell in column for node in cell)
