"""Intervals of a predicted completion time, and what to answer for which loss.

Interval k holds the durations (k-1, k] x 600 s; the cap is the last one and open (Arnold, appendix G). A prediction is
a distribution: `masses[i, k-1]` is the probability that job i falls into interval k. Rows sum to 1.
"""

from __future__ import annotations

import numpy as np

from planner.many_jobs.jct.jobs import Floats, Ints
from planner.shared.options.jct import Loss

INTERVAL_S = 600.0
LOSSES: tuple[Loss, ...] = ("squared", "absolute", "log", "within-2x")


def interval_of(duration_s: Floats, cap: int) -> Floats:
    """The interval of each duration, as a float; NaN of NaN.

    >>> interval_of(np.array([0.0, 600.0, 600.5, 9e9]), 24).tolist()
    [1.0, 1.0, 2.0, 24.0]
    """
    return np.clip(np.ceil(duration_s / INTERVAL_S), 1, cap)


def shares_of(truth: Floats, cap: int) -> tuple[float, ...]:
    """Return the share of each interval among the `truth`, half a job added to each so that none is 0."""
    counts = np.bincount(truth.astype(np.int64), minlength=cap + 1)[1:] + 0.5
    return tuple((counts / counts.sum()).tolist())


def point_of(masses: Floats, loss: Loss) -> Floats:
    """The point, in intervals, with the least expected loss: mean, median, geometric mean, or (within-2x) the p that
    has the most mass in [p/2, 2p]; of several, the smallest."""
    cap = masses.shape[1]
    if loss == "squared":
        return np.asarray(masses @ np.arange(1, cap + 1))
    if loss == "log":
        return np.asarray(np.exp(masses @ np.log(np.arange(1, cap + 1))))
    if loss == "absolute":
        return np.asarray(1.0 + (np.cumsum(masses, axis=1)[:, :-1] < 0.5).sum(axis=1))
    cumulative = np.concatenate([np.zeros((len(masses), 1)), np.cumsum(masses, axis=1)], axis=1)
    points = np.arange(2, 2 * cap + 1) / 2
    first, last = np.ceil(points / 2).astype(int), np.minimum(np.floor(points * 2), cap).astype(int)
    held = np.round(cumulative[:, last] - cumulative[:, first - 1], 12)
    return np.asarray(points[held.argmax(axis=1)])


def loss_of(point: Floats, truth: Floats, loss: Loss) -> float:
    """Return the mean loss: root mean square, mean absolute, root mean square of the logarithm, or share *not* within
    2x."""
    mean = float(np.mean(losses_of(point, truth, loss)))
    return mean**0.5 if loss in ("squared", "log") else mean


def losses_of(point: Floats, truth: Floats, loss: Loss) -> Floats:
    """Return the loss of each point: the difference squared or absolute, the squared difference of logarithms, or 1
    where it is not within 2x."""
    if loss == "squared":
        return np.asarray((point - truth) ** 2)
    if loss == "absolute":
        return np.asarray(np.abs(point - truth))
    if loss == "log":
        return np.asarray(np.log(np.maximum(point, 1e-9) / truth) ** 2)
    return np.asarray(1.0 - ((truth >= point / 2) & (truth <= point * 2)))


def best_constant(truth: Floats, cap: int, loss: Loss) -> float:
    """The constant with the least mean loss on `truth`, in intervals."""
    masses = np.bincount(truth.astype(int) - 1, minlength=cap)[None, :] / len(truth)
    return float(point_of(masses, loss)[0])


def shortest_holding(masses: Floats, level: float, starts: Ints) -> tuple[Ints, Ints]:
    """For each row the shortest run of intervals [low, high] with low among `starts` (1 must be) that holds at least
    `level` of its mass; of equal ones the heaviest."""
    rows, cap = masses.shape
    cumulative = np.concatenate([np.zeros((rows, 1)), np.cumsum(masses, axis=1)], axis=1)
    wanted = min(level, 1.0) - 1e-9
    best = np.full(rows, np.inf)
    low, high = np.ones(rows, np.int64), np.full(rows, cap, np.int64)
    for first in starts.tolist():
        before = cumulative[:, first - 1]
        last = first + (cumulative[:, first:] - before[:, None] < wanted).sum(axis=1)
        held = cumulative[np.arange(rows), np.minimum(last, cap)] - before
        cost = np.where(last <= cap, last - first + 1 - held / 2, np.inf)
        better = cost < best
        best = np.where(better, cost, best)
        low, high = np.where(better, first, low), np.where(better, last, high)
    return low, high


def level_covering(masses: Floats, truth: Floats, starts: Ints, *, coverage: float = 0.9) -> float:
    """The least level at which the shortest intervals hold `coverage` of (rows + 1) truths: split conformal prediction
    (Vovk) with the level as the score. 1 where that many rows cannot be held."""
    wanted = np.ceil((len(truth) + 1) * coverage)
    below, above = 0.0, 1.0
    for _ in range(12):
        middle = (below + above) / 2
        low, high = shortest_holding(masses, middle, starts)
        if np.count_nonzero((truth >= low) & (truth <= high)) >= wanted:
            above = middle
        else:
            below = middle
    return above
