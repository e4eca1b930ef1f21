"""Fits the parameters of `profiles/data/training.toml` on half of a run table, and says which rows each rests on.

Least squares on the logarithm of estimated over measured iteration time, robust (soft L1), sources weighted so that no
large one rules. A row's half is decided by a salted hash of its identifier; only the fit half is looked at, and of it
only the sources that state their settings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from profiles.training_parameters import TrainingParameters, load_training_rows

Values = dict[str, float]

FITTED_SOURCES = frozenset(
    (
        *("VTM", "VTS", "KORT", "SC21", "BSA", "MPT", "IEVO", "SMXB", "MLP", "DGXC", "MBR", "NEMO", "NTRN", "XTUN"),
        *("TAO", "FMS", "GCPR", "TTUN", "QWEN", "LAMB", "MXT", "TPUR", "BSV", "DLE", "SMXA", "MNGP"),
    )
)
"""Sources whose runs state their settings. Parameters of whole runs rest on half of their rows; no row of any other
source is ever fitted on."""

SENSITIVE = 0.01
"""A row rests on a parameter if 1% of it moves the row's time by at least this part of 1%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A row with a measured time that can be predicted."""

    id: str
    source: str
    setup: Setup
    measured_s: float
    fitted: bool


def log_errors(rows: Iterable[Timed], values: Mapping[str, float]) -> np.ndarray:
    """log(estimated / measured) of each row."""
    pricing = Pricing(parameters=TrainingParameters(values=dict(values)))
    errors = []
    for row in rows:
        outcome = evaluate(row.setup, pricing)
        errors.append(math.log(outcome.iteration_time_s / row.measured_s) if isinstance(outcome, Evaluation) else 0.0)
    return np.array(errors)


def initial_values() -> Values:
    """Where every fit begins, and what the prior holds it to."""
    return {name: float(row["initial"]) for name, row in load_training_rows().items()}


def committed_values() -> Values:
    """The parameters as the package has them."""
    return {name: float(row["value"]) for name, row in load_training_rows().items()}


def fit(
    rows: Sequence[Timed],
    names: Sequence[str],
    start: Values,
    *,
    prior: float = 0.08,
    evaluations: int = 20,
    progress: Callable[[str], None] | None = None,
) -> Values:
    """`start` with the parameters `names` fitted on `rows`, within their bounds and held to `start` by `prior`."""
    bounds = load_training_rows()
    low = np.log([max(bounds[name]["low"], 1e-9) for name in names])
    high = np.log([bounds[name]["high"] for name in names])
    begin = np.clip(np.log([max(start[name], 1e-9) for name in names]), low + 1e-6, high - 1e-6)
    counts = Counter(row.source for row in rows)
    weights = np.sqrt([len(rows) / len(counts) / counts[row.source] for row in rows])

    def residuals(point: np.ndarray) -> np.ndarray:
        values = start | {name: float(np.exp(at)) for name, at in zip(names, point, strict=True)}
        errors = log_errors(rows, values)
        if progress is not None:
            progress(f"mean absolute log error {float(np.mean(np.abs(errors))):.4f}")
        return np.concatenate([weights * errors, prior * (point - begin)])

    found = least_squares(
        residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=0.03, max_nfev=evaluations, diff_step=1e-3
    )
    return start | {name: float(np.exp(at)) for name, at in zip(names, found.x, strict=True)}


def rows_behind(rows: Sequence[Timed], values: Values, name: str) -> tuple[Timed, ...]:
    """The rows whose time the parameter `name` moves."""
    moved = values | {name: values[name] * 1.01}
    before, after = log_errors(rows, values), log_errors(rows, moved)
    change = np.abs(after - before) / math.log(1.01)
    return tuple(row for row, each in zip(rows, change, strict=True) if each >= SENSITIVE)
