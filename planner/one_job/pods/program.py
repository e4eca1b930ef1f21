"""Arnold's program as printed (eq. 4 to 10) through HiGHS, and a whole solution of equal value.

Where the closed form's condition fails this is the method; everywhere else the tests hold the closed form against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.one_job.pods.layout import Layout, layout_of
from planner.one_job.pods.records import Cells, PodRequest
from planner.one_job.pods.transport import transport

TIE_BREAK = 1e-5
"""What the other term weighs where alpha or beta is 0: less than one pod does, whatever the number of pods."""


def solve_program(request: PodRequest) -> Layout:
    """Return a whole solution of eq. 4 to 10 of least value. Raise RuntimeError where HiGHS finds none.

    Variables: y of every pod, s and p of every unit and pod, T. c_j is the pod's room in units.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    pods, units = request.largest_first, request.rows
    count = len(pods)
    pairs = units * count
    last = count + 2 * pairs
    cost = np.zeros(last + 1)
    cost[:count] = max(request.alpha, TIE_BREAK)
    cost[last] = max(request.beta, TIE_BREAK * count)
    matrix, low, high = _constraints(request, pods)
    whole = np.zeros(last + 1)
    whole[: count + pairs] = 1
    most = np.ones(last + 1)
    most[last] = count
    solved: Any = milp(
        cost,
        constraints=LinearConstraint(matrix, low, high),
        integrality=whole,
        bounds=Bounds(np.zeros(last + 1), most),
        options={"mip_rel_gap": 0.0},
    )
    if solved.x is None:
        raise RuntimeError(f"Arnold's program was not solved: {solved.message}")
    selected = np.asarray(solved.x)[count : count + pairs].reshape(units, count) > 0.5
    chosen = [[pods[place] for place in np.flatnonzero(row)] for row in selected]
    return layout_of(whole_nodes(request, chosen))


def _constraints(request: PodRequest, pods: Sequence[int]) -> tuple[Any, list[float], list[float]]:
    """Eq. 5 to 8 as one matrix with its limits."""
    from scipy.sparse import csr_array

    units, count = request.rows, len(pods)
    pairs = units * count
    s, p, last = count, count + pairs, count + 2 * pairs
    row: list[int] = []
    column: list[int] = []
    factor: list[float] = []
    low: list[float] = []
    high: list[float] = []

    def add(terms: list[tuple[int, float]], least: float, most: float) -> None:
        row.extend([len(low)] * len(terms))
        column.extend(place for place, _ in terms)
        factor.extend(value for _, value in terms)
        low.append(least)
        high.append(most)

    for unit in range(units):
        own = range(unit * count, (unit + 1) * count)
        add([(s + place, 1.0) for place in own] + [(last, -1.0)], -np.inf, 0.0)
        add([(p + place, 1.0) for place in own], 1.0, 1.0)
        for place in own:
            add([(p + place, 1.0), (s + place, -1.0)], -np.inf, 0.0)
    for number, pod in enumerate(pods):
        held = [(p + unit * count + number, 1.0) for unit in range(units)]
        add([*held, (number, -request.room[pod] / request.columns)], -np.inf, 0.0)
    return csr_array((factor, (row, column)), shape=(len(low), last + 1)), low, high


def whole_nodes(request: PodRequest, chosen: Sequence[Sequence[int]]) -> Cells:
    """Return a pod for every cell, those of a unit in its `chosen` pods, within every pod's room.

    With s and y fixed, what is left of eq. 6 to 8 is a transportation problem: units supply `columns` cells each, pods
    take up to their room, both whole. Its matrix is totally unimodular, so that where a fraction of units fits, whole
    cells do (Hoffman and Kruskal 1956); a maximum flow finds them. Raise ValueError where none fits.
    """
    flow = transport([request.columns] * len(chosen), chosen, request.room)
    if flow is None:
        raise ValueError("whole_nodes: the chosen pods do not hold the units")
    return tuple(tuple(pod for pod, cells in sorted(unit.items()) for _ in range(cells)) for unit in flow)
