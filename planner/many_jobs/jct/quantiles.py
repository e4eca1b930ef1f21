"""Intervals from quantile boosters, to set beside those of the bags."""

from __future__ import annotations

import numpy as np

from planner.many_jobs.jct.boosting import import_lightgbm, repeatable
from planner.many_jobs.jct.groups import feature_names
from planner.many_jobs.jct.jobs import Floats, Ints
from planner.many_jobs.jct.prepared import Prepared
from planner.many_jobs.jct.training import CALIBRATED

QUANTILES = (0.05, 0.95)


def quantile_intervals(
    prepared: Prepared, rows: Ints, truth: Floats, tested: Ints, *, seed: int, threads: int
) -> tuple[Ints, Ints]:
    """A 90% interval from two boosters of the quantile loss, widened as the last 15% of the training jobs ask for
    (conformalised quantile regression, Romano et al. 2019)."""
    lightgbm = import_lightgbm()

    split = int(len(rows) * (1.0 - CALIBRATED))
    bounds = []
    for share in QUANTILES:
        settings = {
            "objective": "quantile",
            "alpha": share,
            "num_leaves": 15,
            "learning_rate": 0.1,
            "min_data_in_leaf": max(5, len(rows) // 100),
            "feature_fraction": 0.5,
            **repeatable(split, seed=seed, threads=threads),
        }
        names = list(feature_names(prepared.columns))
        data = lightgbm.Dataset(prepared.features[rows[:split]], truth[:split], feature_name=names)
        bounds.append(lightgbm.train(settings, data, num_boost_round=60))
    low, high = (np.asarray(booster.predict(prepared.features[rows[split:]], num_threads=1)) for booster in bounds)
    last = truth[split:]
    excess = np.maximum(low - last, last - high)
    wanted = min(1.0, np.ceil((len(last) + 1) * 0.9) / len(last))
    wider = float(np.quantile(excess, wanted, method="higher"))
    low, high = (np.asarray(booster.predict(prepared.features[tested], num_threads=1)) for booster in bounds)
    cap = prepared.cap
    first = np.clip(np.ceil(low - wider - 1e-9), 1, cap).astype(np.int64)
    return first, np.maximum(first, np.clip(np.floor(high + wider + 1e-9), 1, cap).astype(np.int64))
