"""Cutting a model's layers over the stages of a pipeline whose devices and degrees are known.

The iteration is taken as sum of w + (m - 1) max of (w + sync / m) over the stages, w being a stage's forward, backward
and messages of one of m micro-batches. For every least bound on the max the sum is least by a table over layers; so the
cut is exact for this form. The estimator then prices the plan; `planner.one_job.search.mixed.best_cut` is exact for it
as well, and slow where links are thin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST_BOUNDS = 400


def cut_layers(takes_s: Sequence[Floats], loads_s: Sequence[Floats], micro_batches: int) -> tuple[int, ...] | None:
    """Return the end of each stage's layers; None where they cannot be held.

    `takes_s[s][first, end]` and `loads_s[s][first, end]` are w and w + sync / m of stage s with layers [first, end);
    infinite where it cannot hold them, and where there are none.
    """
    layers = takes_s[0].shape[0] - 1
    free = _ends(takes_s, loads_s, math.inf, layers)
    if free is None:
        return None
    finite = np.unique(np.concatenate([loads[np.isfinite(loads)] for loads in loads_s]))
    # No stage is below its own least load; what the free cut has can be had.
    slowest_s = max(float(loads[span]) for loads, span in zip(loads_s, pairwise((0, *free[1])), strict=True))
    low, high = np.searchsorted(finite, [max(float(loads.min()) for loads in loads_s), slowest_s]).tolist()
    while low < high:
        middle = (low + high) // 2
        if _is_reached(loads_s, float(finite[middle])):
            high = middle
        else:
            low = middle + 1
    best: tuple[float, tuple[int, ...]] | None = None
    for bound in finite[low : low + MOST_BOUNDS].tolist():
        if best is not None and free[0] + (micro_batches - 1) * bound >= best[0]:
            break
        bounded = _ends(takes_s, loads_s, bound, layers)
        assert bounded is not None
        total = bounded[0] + (micro_batches - 1) * bound
        if best is None or total < best[0]:
            best = total, bounded[1]
    assert best is not None
    return best[1]


def _is_reached(loads_s: Sequence[Floats], bound_s: float) -> bool:
    """Whether any cut keeps to a bound on every load."""
    reached: NDArray[np.bool_] = np.zeros(loads_s[0].shape[0], dtype=np.bool_)
    reached[0] = True
    for loads in loads_s:
        reached = np.asarray((loads[reached] <= bound_s).any(axis=0))
    return bool(reached[-1])


def _ends(
    takes_s: Sequence[Floats], loads_s: Sequence[Floats], bound_s: float, layers: int
) -> tuple[float, tuple[int, ...]] | None:
    """The least sum under a bound on every load, and the ends."""
    least = np.full(layers + 1, np.inf)
    least[0] = 0.0
    firsts = []
    for takes, loads in zip(takes_s, loads_s, strict=True):
        through = least[:, None] + np.where(loads <= bound_s, takes, np.inf)
        first = np.argmin(through, axis=0)
        firsts.append(first)
        least = through[first, np.arange(layers + 1)]
    if not math.isfinite(least[layers]):
        return None
    ends, end = [], layers
    for first in reversed(firsts):
        ends.append(end)
        end = int(first[end])
    return float(least[layers]), tuple(reversed(ends))
