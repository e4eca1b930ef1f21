"""What a predictor must beat: constants, medians of groups, and iterations times iteration time.

Every baseline is fitted to the asked loss as far as it can be: a constant and a group's answer are the points of least
loss on the training jobs (`intervals.point_of`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.many_jobs.jct.groups import LAST, feature_names, group_codes, groups_of
from planner.many_jobs.jct.intervals import LOSSES, best_constant, interval_of, point_of
from planner.many_jobs.jct.jobs import Floats, Ints
from planner.many_jobs.jct.prepared import Prepared
from planner.shared.options.jct import Loss

Points = Mapping[Loss, Floats]


def baseline_points(prepared: Prepared, rows: Ints, truth: Floats, tested: Ints) -> dict[str, Points]:
    """For each baseline the points of the `tested` jobs under each loss; fitted on `rows` and their known `truth`."""
    cap, middle = prepared.cap, float(np.median(truth))
    points: dict[str, Points] = {
        "best constant": {loss: np.full(len(tested), best_constant(truth, cap, loss)) for loss in LOSSES},
        "median": _same(np.full(len(tested), middle)),
        "best constant in hindsight": {
            loss: np.full(len(tested), best_constant(_truth(prepared, tested), cap, loss)) for loss in LOSSES
        },
    }
    names = feature_names(prepared.columns)
    for group in groups_of(prepared.columns):
        name = "-".join(group) or "all"
        past = prepared.features[tested, names.index(f"{name}.q50_{LAST}")].astype(np.float64)
        points[f"past-31 median by {name}"] = _same(np.where(np.isnan(past), middle, past))
        codes = group_codes(prepared.jobs, group)
        points[f"median by {name}"] = _same(_group_points(codes, rows, truth, tested, cap, "absolute"))
        points[f"group point by {name}"] = {
            loss: _group_points(codes, rows, truth, tested, cap, loss) for loss in LOSSES
        }
    if prepared.product_s is not None:
        product = interval_of(prepared.product_s[tested], cap)
        points["iterations x iteration time"] = _same(np.where(np.isnan(product), middle, product))
    return points


def _truth(prepared: Prepared, tested: Ints) -> Floats:
    return prepared.interval[tested]


def _same(points: Floats) -> Points:
    return dict.fromkeys(LOSSES, points)


def _group_points(codes: Ints, rows: Ints, truth: Floats, tested: Ints, cap: int, loss: Loss) -> Floats:
    """The point of least loss on the training jobs of each tested job's group; on all of them for a new group."""
    counts = np.zeros((int(codes.max()) + 1, cap))
    np.add.at(counts, (codes[rows], truth.astype(np.int64) - 1), 1.0)
    sizes = counts.sum(axis=1, keepdims=True)
    everything = counts.sum(axis=0) / counts.sum()
    masses = np.where(sizes > 0, counts / np.maximum(sizes, 1.0), everything)
    return point_of(masses, loss)[codes[tested]]
