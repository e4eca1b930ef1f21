"""Brute force beside the policies' programs: every combination, every vertex, every cap."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def head_start_s(free: int, need: int, ends: Sequence[tuple[float, int]]) -> float:
    """When a job that needs `need` devices starts if those running end as said and nobody else starts."""
    for time_s in sorted({0.0, *(end_s for end_s, _ in ends)}):
        if free + sum(count for end_s, count in ends if end_s <= time_s) >= need:
            return time_s
    return float("inf")


def cheapest_choice(
    cost: Floats, idle: Floats, pool: Sequence[int], count: Sequence[int], capacity: Sequence[int]
) -> float:
    """The least cost over all choices of at most one option for each job."""
    best = float("inf")
    for picks in product(range(-1, cost.shape[1]), repeat=cost.shape[0]):
        used = [0] * len(capacity)
        total = 0.0
        for job, pick in enumerate(picks):
            if pick < 0:
                total += idle[job]
            else:
                total += cost[job, pick]
                used[pool[pick]] += count[pick]
        if total < best and all(have <= most for have, most in zip(used, capacity, strict=True)):
            best = total
    return best


def best_vertex(objective: Floats, matrix: Floats, limits: Floats) -> float:
    """The maximum of objective @ x over matrix @ x <= limits, x >= 0, by trying every vertex."""
    size = objective.size
    rows = np.vstack([matrix, -np.eye(size)])
    bounds = np.concatenate([limits, np.zeros(size)])
    best = -np.inf
    for chosen in combinations(range(len(rows)), size):
        square = rows[list(chosen)]
        if abs(np.linalg.det(square)) < 1e-12:
            continue
        point = np.linalg.solve(square, bounds[list(chosen)])
        if (rows @ point <= bounds + 1e-9).all():
            best = max(best, float(objective @ point))
    return best


def gavel_polytope(
    rate: Floats, devices: Sequence[int], number: Sequence[int], capacity: Sequence[int]
) -> tuple[Floats, Floats]:
    """The rows and limits of Gavel's program over the total time of each class on each pool."""
    classes, pools = rate.shape
    rows, limits = list[Floats](), list[float]()
    for index in range(classes):
        row = np.zeros(classes * pools)
        row[index * pools : (index + 1) * pools] = 1.0
        rows.append(row)
        limits.append(number[index])
    for pool in range(pools):
        row = np.zeros(classes * pools)
        for index in range(classes):
            row[index * pools + pool] = devices[index]
        rows.append(row)
        limits.append(capacity[pool])
    return np.array(rows), np.array(limits)


def max_min_levels(per_job: Floats, matrix: Floats, limits: Floats) -> list[float]:
    """The levels of a max-min fair division: raise all together; whoever cannot be above the level without somebody
    falling below is fixed there; go on with the others. `per_job[k]`: what a unit of each variable adds to class k."""
    count, size = per_job.shape
    fixed: dict[int, float] = {}
    while len(fixed) < count:
        free = [index for index in range(count) if index not in fixed]
        rows, bounds = list(np.hstack([matrix, np.zeros((len(matrix), 1))])), list(limits)
        for index in range(count):
            rows.append(np.append(-per_job[index], 1.0 if index in free else 0.0))
            bounds.append(-fixed.get(index, 0.0) + 1e-10)
        level = best_vertex(np.append(np.zeros(size), 1.0), np.array(rows), np.array(bounds))
        floors = [-(level if index in free else fixed[index]) + 1e-8 for index in range(count)]
        above = np.vstack([matrix, -per_job])
        for index in free:
            if best_vertex(per_job[index], above, np.concatenate([limits, floors])) <= level + 1e-6:
                fixed[index] = level
    return [fixed[index] for index in range(count)]


def smallest_share(
    free: Sequence[int],
    edges: Sequence[float],
    work: float,
    due_s: float,
    counts: Sequence[int],
    rates: Sequence[float],
) -> list[int] | None:
    """ElasticFlow's Algorithm 1 for one job, cap by cap and slot by slot, in fractions."""
    for cap in counts:
        done, share = Fraction(0), [0] * len(free)
        for slot, room in enumerate(free):
            span_s = min(Fraction(edges[slot + 1]), Fraction(due_s)) - Fraction(edges[slot])
            usable = [index for index, count in enumerate(counts) if count <= min(cap, room)]
            if span_s <= 0 or done >= Fraction(work):
                break
            if usable:
                share[slot] = counts[usable[-1]]
                done += span_s * Fraction(rates[usable[-1]])
        if done >= Fraction(work):
            return share
    return None
