"""Topo-aware placement (Amaral et al. 2017): dual recursive bipartition of job and network, refined by FM.

The paper names the method, not its details; ours: the network is a tree of pods. Pods are cut into two halves of room
as equal as taking them largest first, each to the emptier half, makes them. If one half holds the tasks, they all go to
the smaller such half; else the cells, in their order, are cut in proportion to the halves' room. The cut of the job's
graph is then refined by passes of Fiduccia and Mattheyses (1982): of all cells that were not moved yet and that the
other half has room for, the one of most gain moves, and the best state of the pass is kept. So on, half by half, until
a half is one pod. In the job's graph two cells of a column are joined with weight alpha, two of a row with beta.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.one_job.pods.baselines import NodeOrder
from planner.one_job.pods.records import Placement, PodRequest
from profiles.vocabulary import Infeasible

METHOD = "topo-aware"
MOST_PASSES = 8

Ints = NDArray[np.int64]


def place_by_bisection(request: PodRequest, order: NodeOrder = "rows") -> Placement | Infeasible:
    """Return the placement of the dual recursive bipartition; cells are first cut in `order`. Infeasible where the free
    nodes do not hold the job."""
    shortage = request.shortage()
    if shortage is not None:
        return shortage
    cells = np.arange(request.cells)
    if order == "megatron":
        cells = cells.reshape(request.rows, request.columns).T.ravel()
    pod_of = np.zeros(request.cells, np.int64)
    _bisect(request, list(request.largest_first), cells, pod_of)
    table = pod_of.reshape(request.rows, request.columns)
    return Placement(method=METHOD, request=request, cells=tuple(map(tuple, table.tolist())))


def _bisect(request: PodRequest, pods: list[int], cells: Ints, pod_of: Ints) -> None:
    """Put `cells` into `pods`, which hold them."""
    if len(pods) == 1 or not len(cells):
        pod_of[cells] = pods[0]
        return
    halves = _halves(request, pods)
    room = [sum(request.room[pod] for pod in half) for half in halves]
    holding = [number for number in (0, 1) if room[number] >= len(cells)]
    if holding:
        _bisect(request, halves[min(holding, key=lambda number: room[number])], cells, pod_of)
        return
    first = min(room[0], max(len(cells) - room[1], round(len(cells) * room[0] / sum(room))))
    side = np.zeros(len(cells), np.int64)
    side[first:] = 1
    side = _refined(request, cells, side, room)
    for number in (0, 1):
        _bisect(request, halves[number], cells[side == number], pod_of)


def _halves(request: PodRequest, pods: list[int]) -> tuple[list[int], list[int]]:
    """The pods, largest first, each to the half with less room so far."""
    halves: tuple[list[int], list[int]] = ([], [])
    room = [0, 0]
    for pod in pods:
        lighter = int(room[1] < room[0])
        halves[lighter].append(pod)
        room[lighter] += request.room[pod]
    return halves


def _refined(request: PodRequest, cells: Ints, side: Ints, room: list[int]) -> Ints:
    """The side of every cell after passes of FM, until one gains nothing."""
    for _ in range(MOST_PASSES):
        gained, better = _pass(request, cells, side, room)
        if gained <= 1e-9:
            break
        side = better
    return side


def _pass(request: PodRequest, cells: Ints, side: Ints, room: list[int]) -> tuple[float, Ints]:
    """The most that a pass gains in cut weight, and the sides then."""
    row, column = cells // request.columns, cells % request.columns
    rows, columns = np.zeros((request.rows, 2)), np.zeros((request.columns, 2))
    np.add.at(rows, (row, side), 1)
    np.add.at(columns, (column, side), 1)
    side, free = side.copy(), np.ones(len(cells), bool)
    left = [room[number] - int((side == number).sum()) for number in (0, 1)]
    total, best, moved, kept = 0.0, 0.0, list[int](), 0
    for _ in range(len(cells)):
        # A cell joined to n on its own side and m on the other gains m - n when it moves.
        gains = request.beta * (rows[row, 1 - side] - rows[row, side] + 1)
        gains = gains + request.alpha * (columns[column, 1 - side] - columns[column, side] + 1)
        gains[~free] = -np.inf
        for number in (0, 1):
            if not left[1 - number]:
                gains[side == number] = -np.inf
        cell = int(gains.argmax())
        if gains[cell] == -np.inf:
            break
        here = side[cell]
        for counts, line in ((rows, row[cell]), (columns, column[cell])):
            counts[line, here] -= 1
            counts[line, 1 - here] += 1
        left[here] += 1
        left[1 - here] -= 1
        side[cell], free[cell] = 1 - here, False
        total += float(gains[cell])
        moved.append(cell)
        if total > best + 1e-9:
            best, kept = total, len(moved)
    for cell in moved[kept:]:
        side[cell] = 1 - side[cell]
    return best, side
