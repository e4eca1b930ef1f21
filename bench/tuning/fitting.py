"""The error model of `planner.tuning.measured`: the most likely shares and lengths given half of a run table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from bench.tuning.groups import Group
from estimator.explicit.recipe import Setup
from planner.tuning.measured import ErrorModel, error_covariance
from planner.tuning.records import Candidate
from planner.tuning.traits import TRAITS

FITTED = ("tp", "pp", "dp", "samples", "recompute")
"""Traits in which enough groups of the fit half differ."""
PRIOR = 0.05
"""Weight of the squared logarithm of each parameter: what the rows do not tell stays near 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was found; log likelihoods are per plan, in nats, of this error model and of one of errors alone."""

    errors: ErrorModel
    lengths: dict[str, float]
    log_likelihood: float
    alone_log_likelihood: float


def fit_error_model(groups: Sequence[Group]) -> Fit:
    """Maximum of the groups' normal log likelihood, with a weak prior."""
    names = list(TRAITS)
    start = np.log([0.1, 0.5, 0.1, *(1.0 for _ in FITTED)])

    def model(point: NDArray[np.float64]) -> tuple[ErrorModel, dict[str, float]]:
        common, alike, own, *lengths = (float(value) for value in np.exp(point))
        return ErrorModel(common=common, alike=alike, own=own), dict(zip(FITTED, lengths, strict=True))

    def cost(point: NDArray[np.float64]) -> float:
        errors, lengths = model(point)
        scale = [TRAITS[name][1] / lengths.get(name, TRAITS[name][1]) for name in names]
        return -log_likelihood(groups, errors, scale) + PRIOR * float(point @ point)

    best = minimize(cost, start, method="L-BFGS-B").x
    errors, lengths = model(best)
    plans = sum(len(group.candidates) for group in groups)
    scale = [TRAITS[name][1] / lengths.get(name, TRAITS[name][1]) for name in names]

    def alone(share: NDArray[np.float64]) -> float:
        return -log_likelihood(groups, ErrorModel(common=0.0, alike=0.0, own=float(np.exp(share[0]))), scale)

    return Fit(
        errors=errors,
        lengths=lengths,
        log_likelihood=log_likelihood(groups, errors, scale) / plans,
        alone_log_likelihood=-float(minimize(alone, np.zeros(1)).fun) / plans,
    )


def log_likelihood(groups: Sequence[Group], errors: ErrorModel, scale: Sequence[float]) -> float:
    """Of log(measured / estimated) in all groups, traits multiplied by `scale`."""
    total = 0.0
    for group in groups:
        timed = [
            (_scaled(candidate, scale), math.log(seconds / candidate.estimated_s))
            for candidate, seconds in zip(group.candidates, group.measured_s, strict=True)
            if seconds is not None
        ]
        covariance = error_covariance([candidate for candidate, _ in timed], errors)
        found = np.array([error for _, error in timed])
        lower = np.linalg.cholesky(covariance)
        whitened = np.linalg.solve(lower, found)
        total -= float(whitened @ whitened) / 2 + float(np.log(np.diag(lower)).sum())
        total -= len(timed) * math.log(2 * math.pi) / 2
    return total


def _scaled(candidate: Candidate[Setup], scale: Sequence[float]) -> Candidate[Setup]:
    return replace(candidate, traits=tuple(one * by for one, by in zip(candidate.traits, scale, strict=True)))
