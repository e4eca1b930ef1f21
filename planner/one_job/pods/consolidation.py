"""Arnold's placement (section 5.2, eq. 4 to 10): a row of the matrix, a PP group, is a unit; few pods, few units split.

Eq. 4 minimises alpha * (pods of the job) + beta * T, T the most pods that a unit touches. What is wrong or open in it:

- Eq. 2 puts alpha on rows, which are PP groups; everywhere else in the paper alpha is DP's, and so it is here.
- Eq. 3 counts 0, 2, 3, ... pods, eq. 4 counts 1, 2, 3, ...: pods are minimised, both are reported
  (`Placement.value_as_printed`).
- The sum of y is the number of pods of the job, not the spread of a DP group: with a unit split over two pods, a column
  may miss one of them. `Placement.objective` is eq. 4's value, `Placement.value` eq. 2's, which is never larger.
- At alpha = 0 nothing holds y down, at beta = 0 nothing T and s: ties are broken by the other term, then by most units
  left whole.
- p is a fraction of a unit, nodes are whole (`planner.one_job.pods.whole_nodes`).

All units are alike, so the program needs no solver. Let y1 be the fewest pods that hold all units whole, each pod j
floor(c_j) of them, and y2 the fewest that hold all cells; both take the largest pods first, as any others of that
number hold no more. Then

1. no unit split: T = 1 and at least y1 pods, so alpha * y1 + beta is the least value of such placements;
2. a unit split: T >= 2 and at least y2 pods, so no such placement is below alpha * y2 + 2 beta;
3. the cells laid row after row into the y2 largest pods, one after another, split a unit between neighbours alone. If
   each of these pods (the last one aside) holds at least a unit, a unit meets at most one border between pods, so that
   T <= 2, and 2 is reached.

Hence the smaller of alpha * y1 + beta and alpha * y2 + 2 beta is the optimum of eq. 4 to 10, on one condition: that the
first of them is the smaller one, or that the layout of 3 has T <= 2. It fails only where a pod has room for less than a
unit and is needed; HiGHS solves the program then (`planner.one_job.pods.program`).
"""

from __future__ import annotations

from itertools import accumulate

from planner.one_job.pods.layout import Layout, layout_of
from planner.one_job.pods.program import solve_program
from planner.one_job.pods.records import ROUNDING, Cells, Placement, PodRequest
from profiles.vocabulary import Infeasible

METHOD = "arnold"


def place_by_arnold(request: PodRequest) -> Placement | Infeasible:
    """Return the placement of least value under eq. 4 to 10, by the closed form where its condition holds, else by
    HiGHS; Infeasible where the free nodes do not hold the job."""
    shortage = request.shortage()
    if shortage is not None:
        return shortage
    layout = closed_form(request)
    if layout is None:
        layout = solve_program(request)
    return Placement(method=METHOD, request=request, cells=layout.cells, objective=layout.objective(request))


def closed_form(request: PodRequest) -> Layout | None:
    """Return the optimum of eq. 4 to 10, or None where its condition fails. Raise ValueError where the job does not
    fit."""
    if request.shortage() is not None:
        raise ValueError("closed_form: the job does not fit")
    room, order, unit = request.room, request.largest_first, request.columns
    split = _fewest([room[pod] for pod in order], request.cells)
    whole = _fewest([room[pod] // unit for pod in order], request.rows)
    assert split is not None
    if whole is not None and request.value(whole, 1) <= request.value(split, 2) + ROUNDING:
        taken = order[:whole]
        return layout_of(_in_a_row(request, [(pod, room[pod] // unit * unit) for pod in taken]))
    laid = layout_of(_in_a_row(request, _most_left_whole(request, order[:split])))
    return laid if laid.widest <= 2 else None


def _fewest(held: list[int], wanted: int) -> int | None:
    """How many of the first of `held` sum to `wanted`; None if all do not."""
    return next((count for count, total in enumerate(accumulate(held), start=1) if total >= wanted), None)


def _in_a_row(request: PodRequest, taken: list[tuple[int, int]]) -> Cells:
    """The cells, row after row, in the order of (pod, cells taken)."""
    line = [pod for pod, count in taken for _ in range(count)][: request.cells]
    width = request.columns
    return tuple(tuple(line[first : first + width]) for first in range(0, request.cells, width))


def _most_left_whole(request: PodRequest, order: tuple[int, ...]) -> list[tuple[int, int]]:
    """(pod, cells taken) in this order, with as many borders between units as the spare cells allow.

    A border inside a unit is moved to its start by leaving the pod's last cells free. Of all ways with so many borders
    moved, the one that has come farthest in cells is no worse than the others for what follows: so one figure for each
    number of borders moved is kept, pod after pod.
    """
    room, unit = request.room, request.columns
    reached, moved = [0], list[list[bool]]()
    for pod in order:
        stays = [cells + room[pod] for cells in reached]
        moves = [cells // unit * unit for cells in stays]
        pairs = list(zip([*stays, -1], [-1, *moves], strict=True))
        reached = [max(pair) for pair in pairs]
        moved.append([move > stay for stay, move in pairs])
    count = max(number for number, cells in enumerate(reached) if cells >= request.cells)
    ways = []
    for at in reversed(moved):
        ways.append(at[count])
        count -= at[count]
    taken, cells = [], 0
    for pod, at_start in zip(order, reversed(ways), strict=True):
        end = (cells + room[pod]) // unit * unit if at_start else cells + room[pod]
        taken.append((pod, end - cells))
        cells = end
    return taken
