"""Graph partitioning as an integer linear program, solved by HiGHS (`scipy.optimize.milp`): incumbent and bound.

Binary x[v, p] puts node v into part p; z[e] >= x[u, p] - x[v, p] for every part says that edge e = (u, v) is cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.many_jobs.scheduling.sites.partition import Partition, PartitionGraph, measure


@dataclass(frozen=True, slots=True, kw_only=True)
class IlpPartition:
    """The best partition that the solver found, None where it has none yet; no partition within the capacities cuts
    less than `lower_bound`. `proved`: the best is no worse than any."""

    best: Partition | None
    lower_bound: float
    proved: bool


def partition_by_ilp(graph: PartitionGraph, capacities: Sequence[int], *, limit_s: float = 60.0) -> IlpPartition:
    """The partition that cuts least, or what the solver knows of it after `limit_s` seconds of the clock."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    nodes, parts, edges = graph.nodes, len(capacities), len(graph.edges)
    binaries = nodes * parts
    rows = [*_once(nodes, parts), *_capacities(graph, capacities), *_cuts(graph, parts)]
    matrix, low, high = _matrix(rows, binaries + edges)
    solved: Any = milp(
        c=np.concatenate([np.zeros(binaries), graph.traffic.astype(float)]),
        integrality=np.concatenate([np.ones(binaries), np.zeros(edges)]),
        bounds=Bounds(np.zeros(binaries + edges), np.ones(binaries + edges)),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": limit_s},
    )
    if solved.status == 2:
        return IlpPartition(best=None, lower_bound=math.inf, proved=True)
    found = getattr(solved, "mip_dual_bound", None)
    # Traffic is in whole numbers, and so is what is cut.
    bound = 0.0 if found is None or not math.isfinite(found) else float(math.ceil(found - 1e-6))
    if solved.x is None:
        return IlpPartition(best=None, lower_bound=bound, proved=False)
    chosen = np.argmax(np.asarray(solved.x)[:binaries].reshape(nodes, parts), axis=1)
    best = measure(graph, chosen, capacities)
    return IlpPartition(best=best, lower_bound=min(bound, float(best.cut)), proved=solved.status == 0)


Row = tuple[list[int], list[float], float, float]
"""Columns, factors, and between which values their sum lies."""


def _once(nodes: int, parts: int) -> list[Row]:
    return [([node * parts + part for part in range(parts)], [1.0] * parts, 1.0, 1.0) for node in range(nodes)]


def _capacities(graph: PartitionGraph, capacities: Sequence[int]) -> list[Row]:
    parts, loads = len(capacities), graph.loads.astype(float).tolist()
    return [
        ([node * parts + part for node in range(graph.nodes)], loads, -np.inf, float(most))
        for part, most in enumerate(capacities)
    ]


def _cuts(graph: PartitionGraph, parts: int) -> list[Row]:
    found: list[Row] = []
    for number, (one, other) in enumerate(graph.edges.tolist()):
        cut = graph.nodes * parts + number
        for part in range(parts):
            columns = [cut, one * parts + part, other * parts + part]
            found += [(columns, [1.0, -1.0, 1.0], 0.0, np.inf), (columns, [1.0, 1.0, -1.0], 0.0, np.inf)]
    return found


def _matrix(rows: Sequence[Row], columns: int) -> tuple[Any, Any, Any]:
    from scipy.sparse import csr_array

    first = np.cumsum([0, *(len(row[0]) for row in rows)])
    where = np.concatenate([np.array(row[0]) for row in rows])
    factors = np.concatenate([np.array(row[1]) for row in rows])
    matrix = csr_array((factors, where, first), shape=(len(rows), columns))
    return matrix, np.array([row[2] for row in rows]), np.array([row[3] for row in rows])
