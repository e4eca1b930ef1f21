"""The levels that cut most of the contention DAG: a linear programme over differences.

Maximise the sum of w_e z_e over edges e from u to v, with z_e <= 1, z_e <= l_v - l_u, z_e >= 0 and 0 <= l <= K - 1.
The text calls the problem difficult; it is the dual of a flow of least cost. Rounding shows it: for an optimal l and
theta in [0, 1), floor(l + theta) is valid, and the mean over theta of what it cuts of an edge is min(1, l_v - l_u). So
the mean over theta of all that is cut is the programme's optimum, which nothing is above: almost every theta is
optimal, and integral. A solver that ends in a vertex has integers anyway.
"""

from __future__ import annotations

from math import floor

import numpy as np

from planner.contention.policies.compression.dag import ContentionDag, is_valid
from planner.contention.policies.compression.solving import linear_programmes


def exact_levels(dag: ContentionDag, levels: int) -> tuple[int, ...]:
    """Return for each job a level, 0 first, such that what is cut is as much as can be with `levels` of them."""
    if levels == 1 or not dag.edges:
        return (0,) * dag.count
    if levels >= dag.count:
        return tuple(range(dag.count))
    rounded = tuple(min(max(floor(level + 0.5), 0), levels - 1) for level in _relaxed(dag, levels))
    if not is_valid(dag, rounded, levels):
        raise ArithmeticError(f"levels that are not valid: {rounded}")
    return rounded


def _relaxed(dag: ContentionDag, levels: int) -> list[float]:
    """The programme's solution, as HiGHS's simplex finds it: the levels first, then what is cut of each edge."""
    linprog, csr_array = linear_programmes()
    edges = len(dag.edges)
    first, second = (np.array([edge[side] for edge in dag.edges], dtype=np.int64) for side in (0, 1))
    weights = np.array([edge[2] for edge in dag.edges])
    rows = np.repeat(np.arange(edges), 3)
    columns = np.column_stack((first, second, dag.count + np.arange(edges))).ravel()
    values = np.tile([1.0, -1.0, 1.0], edges)
    matrix = csr_array((values, (rows, columns)), shape=(edges, dag.count + edges))
    # Sizes near 1 are what the solver's tolerances are made for.
    goal = np.concatenate((np.zeros(dag.count), -weights / max(weights.max(), 1e-300)))
    bounds = np.concatenate((np.tile([0.0, levels - 1.0], (dag.count, 1)), np.tile([0.0, 1.0], (edges, 1))))
    solution = linprog(goal, A_ub=matrix, b_ub=np.zeros(edges), bounds=bounds, method="highs-ds")
    if solution.status != 0:
        raise ArithmeticError(f"the programme of {dag.count} jobs was not solved: {solution.message}")
    return [float(level) for level in solution.x[: dag.count]]
