"""Algorithm 1 of Crux, section 4.3: the best cut of some topological orders of the contention DAG.

As listed, but for what cannot be meant: line 4 goes to n, not to K (S is summed over both of its indices); f(i, 1) = 0
and f(0, 0) = 0, which the listing lacks, begin the recursion; and the argmax is not looked for from g(i - 1, k) on,
which is O(n^2 K) and no O(1) a state, but by halving: it grows with i, since weights are not below 0, so that
O(n K log n) are enough.

Its orders are not all that there are: a job that becomes ready goes behind those that are ready, whatever is drawn. Six
jobs are known whose best cut no such order has (`tests/planner/contention`). `exact` finds the best, and sooner.
"""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
from numpy.typing import NDArray

from planner.contention.policies.compression.dag import ContentionDag

ORDERS = 10
"""m of the paper."""


def algorithm_1_levels(dag: ContentionDag, levels: int, *, orders: int = ORDERS, seed: int = 0) -> tuple[int, ...]:
    """Return for each job a level, 0 first: the best that the K-cuts of `orders` drawn topological orders have."""
    rng, most, best = Random(seed), -1.0, (0,) * dag.count
    for _ in range(orders):
        order = draw_order(dag, rng)
        weight, cuts = best_cut(dag, order, min(levels, max(dag.count, 1)))
        if weight > most:
            most, best = weight, levels_of(order, cuts)
    return best


def draw_order(dag: ContentionDag, rng: Random) -> list[int]:
    """Return a topological order, breadth first: those that become ready at once go into the queue as drawn."""
    waits_for, after = [0] * dag.count, [[] for _ in range(dag.count)]  # type: list[int], list[list[int]]
    for first, second, _ in dag.edges:
        waits_for[second] += 1
        after[first].append(second)
    ready = [job for job in range(dag.count) if waits_for[job] == 0]
    rng.shuffle(ready)
    queue, order = deque(ready), []
    while queue:
        job = queue.popleft()
        order.append(job)
        ready = []
        for other in after[job]:
            waits_for[other] -= 1
            if waits_for[other] == 0:
                ready.append(other)
        rng.shuffle(ready)
        queue.extend(ready)
    return order


def best_cut(dag: ContentionDag, order: list[int], levels: int) -> tuple[float, list[int]]:
    """Return the weight of the best cut of `order` into at most `levels` runs, and where each but the first begins.

    f(i, k) = max over j <= i of f(j, k - 1) + C(j, i), where C(j, i) goes from the first j to those up to i (eq. 4).
    A run may be empty: fewer levels are a K-cut too.
    """
    sums = _prefix_sums(dag, order)
    diagonal = np.ascontiguousarray(sums.diagonal())
    worth = np.zeros(len(order) + 1)
    choices = []
    for _ in range(1, levels):
        worth, choice = _next_worths(worth - diagonal, sums)
        choices.append(choice)
    begins, end = [], len(order)
    for choice in reversed(choices):
        end = int(choice[end])
        begins.append(end)
    return float(worth[-1]), begins[::-1]


def _prefix_sums(dag: ContentionDag, order: list[int]) -> NDArray[np.float64]:
    """S[i, j], the weight from the first j to the first i jobs of the order: C(j, i) = S[i, j] - S[j, j]."""
    place = np.empty(dag.count, dtype=np.int64)
    place[order] = np.arange(dag.count)
    sums = np.zeros((dag.count + 1, dag.count + 1))
    if dag.edges:
        ends = np.array([edge[:2] for edge in dag.edges])
        sums[place[ends[:, 1]] + 1, place[ends[:, 0]] + 1] = [edge[2] for edge in dag.edges]
    np.cumsum(sums, axis=0, out=sums)
    np.cumsum(sums, axis=1, out=sums)
    return sums


def _next_worths(
    before: NDArray[np.float64], sums: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """max and argmax over j <= i of before[j] + sums[i, j], for each i: the middle one first, whose argmax bounds those
    on either side."""
    size = len(before)
    worth, choice = np.empty(size), np.empty(size, dtype=np.int64)
    open_ranges = [(0, size, 0, size)]
    while open_ranges:
        low, high, least, most = open_ranges.pop()
        if low == high:
            continue
        middle = (low + high) // 2
        stop = min(middle + 1, most)
        candidates = before[least:stop] + sums[middle, least:stop]
        at = int(candidates.argmax())
        worth[middle], choice[middle] = candidates[at], least + at
        open_ranges += [(low, middle, least, least + at + 1), (middle + 1, high, least + at, most)]
    return worth, choice


def levels_of(order: list[int], begins: list[int]) -> tuple[int, ...]:
    """Return the level of each job, where runs of the order begin at `begins`."""
    levels = [0] * len(order)
    for begin in begins:
        for job in order[begin:]:
            levels[job] += 1
    return tuple(levels)
