"""The error model of `planner.one_job.tuning.measured`: the most likely shares and lengths given half of a run
table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from bench.tuning.groups import Group
from estimator.pricing.recipe import Setup
from planner.one_job.tuning.measured import ErrorModel, error_scales
from planner.one_job.tuning.records import Candidate
from planner.one_job.tuning.traits import TRAITS

FITTED = ("tp", "pp", "dp", "samples", "recompute")
"""Traits in which enough groups of the fit half differ."""
FREEDOMS = (3, 5, 10, 20, 40)
"""Degrees of freedom that are tried."""
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
    """Maximum of the groups' log likelihood, with a weak prior."""
    return max((_fit(groups, freedom) for freedom in FREEDOMS), key=lambda fit: fit.log_likelihood)


def _fit(groups: Sequence[Group], freedom: int) -> Fit:
    names = list(TRAITS)
    start = np.log([0.1, 0.5, 0.1, *(1.0 for _ in FITTED)])

    def model(point: NDArray[np.float64]) -> tuple[ErrorModel, dict[str, float]]:
        common, alike, own, *lengths = (float(value) for value in np.exp(point))
        errors = ErrorModel(common=common, alike=alike, own=own, freedom=freedom)
        return errors, dict(zip(FITTED, lengths, strict=True))

    def cost(point: NDArray[np.float64]) -> float:
        errors, lengths = model(point)
        scale = [TRAITS[name][1] / lengths.get(name, TRAITS[name][1]) for name in names]
        return -log_likelihood(groups, errors, scale) + PRIOR * float(point @ point)

    best = minimize(cost, start, method="L-BFGS-B").x
    errors, lengths = model(best)
    plans = sum(len(group.candidates) for group in groups)
    scale = [TRAITS[name][1] / lengths.get(name, TRAITS[name][1]) for name in names]

    def alone(share: NDArray[np.float64]) -> float:
        errors = ErrorModel(common=0.0, alike=0.0, own=float(np.exp(share[0])), freedom=freedom)
        return -log_likelihood(groups, errors, scale)

    return Fit(
        errors=errors,
        lengths=lengths,
        log_likelihood=log_likelihood(groups, errors, scale) / plans,
        alone_log_likelihood=-float(minimize(alone, np.zeros(1)).fun) / plans,
    )


def log_likelihood(groups: Sequence[Group], errors: ErrorModel, scale: Sequence[float]) -> float:
    """Of log(measured / estimated) in all groups, each jointly Student-t, traits multiplied by `scale`."""
    total, freedom = 0.0, errors.freedom
    for group in groups:
        timed = [
            (_scaled(candidate, scale), math.log(seconds / candidate.estimated_s))
            for candidate, seconds in zip(group.candidates, group.measured_s, strict=True)
            if seconds is not None
        ]
        lower = np.linalg.cholesky(error_scales([candidate for candidate, _ in timed], errors))
        whitened = np.linalg.solve(lower, np.array([error for _, error in timed]))
        whole = freedom + len(timed)
        total += math.lgamma(whole / 2) - math.lgamma(freedom / 2) - len(timed) * math.log(freedom * math.pi) / 2
        total -= float(np.log(np.diag(lower)).sum()) + whole / 2 * math.log1p(float(whitened @ whitened) / freedom)
    return total


def _scaled(candidate: Candidate[Setup], scale: Sequence[float]) -> Candidate[Setup]:
    return replace(candidate, traits=tuple(one * by for one, by in zip(candidate.traits, scale, strict=True)))
