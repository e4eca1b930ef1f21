"""Fitting: one LightGBM booster whose outputs are the odds that a job runs longer than each of some intervals.

The paper's gradient boosting classifies jobs into intervals (Arnold, appendix G). Intervals are ordered, so ours asks
"longer than h?" for a few h and fits all of these questions in one booster: trees number i, i + C, i + 2C, ... belong
to question i of C. Bags (the paper's bagging) follow each other in the same booster: each starts from nothing, on its
own resample, so the whole stays one file of LightGBM's text format.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jct.features import Matrix
from planner.many_jobs.jct.jobs import Floats
from profiles.errors import InputError
from profiles.records import dataclass

if TYPE_CHECKING:
    import lightgbm

BLOCKS = 200
ROWS_A_THREAD = 200_000
"""Jobs for each thread that fits. LightGBM's threads wait for each other several times a leaf: two threads on two cores
that other processes keep busy took over 260 s for 2,255 jobs that one thread fitted in 20 s (2.5 CPU seconds)."""
BAG_SHARE = 0.8
"""A bag has this share of the blocks of neighbouring jobs (neighbours are alike), drawn without replacement. The paper
does not say how its bags are drawn; with replacement ours were worse on Philly in every loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How to fit. `rounds` is of each bag; `min_share` the least share of the training jobs in a leaf (and never fewer
    than 5 of them); the rest as in LightGBM."""

    bags: int = 4
    rounds: int = 14
    learning_rate: float = 0.2
    leaves: int = 31
    min_share: float = 0.01
    feature_fraction: float = 0.7
    bagging_fraction: float = 0.7
    lambda_l2: float = 5.0
    extra_trees: bool = True


def import_lightgbm() -> ModuleType:
    """LightGBM, which is heavy and optional; InputError where it is missing."""
    try:
        import lightgbm
    except ModuleNotFoundError:
        raise InputError(where="jct", found="no lightgbm", expected="pip install 'cellplan[jct]'") from None
    return cast("ModuleType", lightgbm)


def thresholds_of(cap: int) -> tuple[int, ...]:
    """The h of "longer than h intervals?": 1, 2, 4, 8, 12, 16, then half as many again each, and cap - 1.

    >>> thresholds_of(24), thresholds_of(3), thresholds_of(1000)[-3:]
    ((1, 2, 4, 8, 12, 16, 23), (1, 2), (609, 913, 999))
    """
    thresholds = [1, 2, 4, 8, 12, 16]
    while thresholds[-1] * 3 // 2 < cap - 1:
        thresholds.append(thresholds[-1] * 3 // 2)
    return tuple(sorted({*(step for step in thresholds if step < cap - 1), cap - 1}))


def threads_for(rows: int, threads: int) -> int:
    """At most `threads`, fewer for few jobs; what comes out does not depend on it.

    >>> threads_for(2_000, 2), threads_for(100_000, 2), threads_for(1_000_000, 16)
    (1, 1, 5)
    """
    return max(1, min(threads, rows // ROWS_A_THREAD))


def repeatable(rows: int, *, seed: int, threads: int) -> dict[str, Any]:
    """Return the settings of LightGBM with which the same `rows` jobs give the same trees."""
    return {
        "num_threads": threads_for(rows, threads),
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,
        "verbose": -1,
    }


def fit_booster(
    features: Matrix,
    longer: NDArray[np.bool_],
    start: Floats,
    *,
    names: tuple[str, ...],
    parameters: Parameters,
    seed: int,
    threads: int,
) -> lightgbm.Booster:
    """A booster of raw odds (logits) on top of `start`; `longer` and `start`: a row a job, a column a question."""
    library = import_lightgbm()
    rows, questions = longer.shape
    rng = np.random.default_rng(seed)
    blocks = np.arange(rows) * min(BLOCKS, rows) // rows
    truth = longer.astype(np.float64)
    state: dict[str, Any] = {"round": 0}

    def gradients(scores: Floats, _: lightgbm.Dataset) -> tuple[Floats, Floats]:
        scores = scores.reshape(rows, questions)
        if state["round"] % parameters.rounds == 0:
            state["before"] = np.array(scores, copy=True)
            state["weight"] = _resample(blocks, rng, whole=parameters.bags == 1)[:, None]
        state["round"] += 1
        chance = 1.0 / (1.0 + np.exp(-(start + scores - state["before"])))
        slope = state["weight"] * (chance - truth)
        curvature = state["weight"] * np.maximum(chance * (1.0 - chance), 1e-6)
        return (slope, curvature) if questions > 1 else (slope[:, 0], curvature[:, 0])

    settings: dict[str, Any] = {
        "objective": gradients,
        "num_class": questions,
        "num_leaves": parameters.leaves,
        "learning_rate": parameters.learning_rate,
        "min_data_in_leaf": max(5, round(rows * parameters.min_share)),
        "feature_fraction": parameters.feature_fraction,
        "bagging_fraction": parameters.bagging_fraction,
        "bagging_freq": 1,
        "lambda_l2": parameters.lambda_l2,
        "extra_trees": parameters.extra_trees,
        "max_bin": 127,
        **repeatable(rows, seed=seed, threads=threads),
    }
    data = library.Dataset(features, np.zeros(rows), feature_name=list(names), params={"max_bin": 127, "verbose": -1})
    return cast("lightgbm.Booster", library.train(settings, data, num_boost_round=parameters.bags * parameters.rounds))


def _resample(blocks: NDArray[np.int64], rng: np.random.Generator, *, whole: bool) -> Floats:
    """1 for the jobs of the blocks that this bag has, 0 for the others."""
    count = int(blocks[-1]) + 1
    kept = rng.permutation(count) < (count if whole else round(count * BAG_SHARE))
    return kept.astype(np.float64)[blocks]


def odds_of_bags(
    booster: lightgbm.Booster, features: Matrix, *, bags: int, rounds: int | None = None, threads: int = 2
) -> list[Floats]:
    """What each bag adds to the start, up to `rounds` of its own: for each a row a job and a column a question."""
    each = booster.num_trees() // booster.num_model_per_iteration() // bags
    used = each if rounds is None else min(rounds, each)
    return [
        np.asarray(
            booster.predict(
                features, raw_score=True, start_iteration=bag * each, num_iteration=used, num_threads=threads
            )
        ).reshape(len(features), -1)
        for bag in range(bags)
    ]
