"""Fits the parameters of `profiles/data/training.toml` on half of a run table, and says which rows each rests on.

Least squares on the logarithm of estimated over measured iteration time, robust (soft L1), sources weighted so that no
large one rules. A row's half is decided by a salted hash of its identifier; only the fit half is looked at, and of it
only the sources that state their settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from profiles.training_parameters import TrainingParameters, load_training_rows

Values = dict[str, float]

FITTED_SOURCES = frozenset(
    (
        *("VTM", "VTS", "KORT", "SC21", "BSA", "MPT", "IEVO", "SMXB", "MLP", "DGXC", "MBR", "NEMO", "NTRN", "XTUN"),
        *(
            "TAO",
            "FMS",
            "GCPR",
            "TTUN",
            "QWEN",
            "LAMB",
            "MXT",
            "TPUR",
            "BSV",
            "DLE",
            "SMXA",
            "MNGP",
            "MLGV",
            "MLLL",
            "LEVT",
        ),
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
