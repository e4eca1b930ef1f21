"""The default: a measurement is asked for only where it can still change which plan is chosen.

Before any measurement log(measured / estimated) of a group's candidates is taken as jointly normal around 0, with

    cov(i, j) = s_i s_j (common + alike exp(-|x_i - x_j|^2 / 2) + own [i = j])

s_i the candidate's `log_spread` and x_i its traits: what errs for all plans of the group alike, what errs alike for
plans that are near, and what is each plan's own, noise of measuring included. So each measurement corrects the
estimates of the others (kriging; Rasmussen, Williams, "Gaussian Processes for Machine Learning", 2006, equation 2.19).
Next comes the plan of the greatest expected improvement on the fastest one measured (Jones, Schonlau, Welch, "Efficient
Global Optimization", J. Global Optimization 13, 1998, equation 15), on the logarithm, among those that are faster by
more than `gain` with a probability above `odds`: whose lower confidence bound is below it. Where there is none the
choice is final.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from planner.tuning.records import Ask, Candidate, Measurement, P

NORMAL = NormalDist()
Z_90 = NORMAL.inv_cdf(0.95)
MEASURED_LOG_SPREAD = 0.08
"""Of estimates whose layer times and links are measured on the same machine: root mean square of log(estimated /
measured) over the 16 runs with torch in `bench/real_runs/RESULTS.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """How the estimates of one group err together, as shares of the variance. The defaults are the most likely values
    given the fit half of the run tables (`python -m bench.tuning --fit`)."""

    common: float = 0.13
    alike: float = 0.85
    own: float = 0.02

    def __post_init__(self) -> None:
        if min(self.common, self.alike) < 0 or self.own <= 0:
            raise ValueError(f"error model: {self}, expected no share below 0, and own above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a plan is measured: its odds to be faster by more than the share `gain` than the best one measured are above
    `odds`. The default is what a 90% interval leaves below itself. Fewer odds mean more measurements and a surer
    choice; `bench/tuning/RESULTS.md` has both."""

    odds: float = 0.05
    gain: float = 0.01
    errors: ErrorModel = ErrorModel()

    def __post_init__(self) -> None:
        if not 0 < self.odds < 1 or not 0 <= self.gain < 1:
            raise ValueError(f"rules: odds={self.odds}, gain={self.gain}; expected both below 1, and odds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known of each candidate: mean and standard deviation of its log seconds; 0 spread where it was
    measured. Out of memory: infinitely slow."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


def log_spread(interval_90_s: tuple[float, float]) -> float:
    """The standard deviation of the log error that a 90% interval stands for."""
    low, high = interval_90_s
    return math.log(high / low) / (2 * Z_90)


def ask_where_it_matters(rules: Rules | None = None) -> Ask[P]:
    """The procedure above; the first plan measured is that of the least estimate."""
    chosen = rules or Rules()

    def ask(candidates: Sequence[Candidate[P]], done: Sequence[Measurement]) -> int | None:
        ran = [one.seconds for one in done if one.seconds is not None]
        seen = {one.number for one in done}
        rest = [number for number in range(len(candidates)) if number not in seen]
        if not rest or (len(candidates) == 1 and not done):
            return None
        outlook = foresee(candidates, done, chosen.errors)
        if not ran:
            return min(rest, key=lambda number: outlook.mean[number])
        best = math.log(min(ran))
        doubtful = [number for number in rest if _odds(outlook, number, best, chosen.gain) > chosen.odds]
        return max(doubtful, key=lambda number: _improvement(outlook, number, best), default=None)

    return ask


def foresee(
    candidates: Sequence[Candidate[P]], done: Sequence[Measurement], errors: ErrorModel | None = None
) -> Outlook:
    """What the measurements make of the estimates."""
    covariance = error_covariance(candidates, errors or ErrorModel())
    mean = np.log([one.estimated_s for one in candidates])
    variance = np.diag(covariance).copy()
    timed = [(one.number, math.log(one.seconds)) for one in done if one.seconds is not None]
    if timed:
        numbers = [number for number, _ in timed]
        errors_seen = np.array([seconds for _, seconds in timed]) - mean[numbers]
        between = covariance[:, numbers]
        weights = np.linalg.solve(covariance[np.ix_(numbers, numbers)], between.T).T
        mean = mean + weights @ errors_seen
        variance -= np.einsum("ij,ij->i", weights, between)
        mean[numbers] = [seconds for _, seconds in timed]
        variance[numbers] = 0.0
    gone = [one.number for one in done if one.seconds is None]
    mean[gone], variance[gone] = math.inf, 0.0
    return Outlook(mean=mean, spread=np.sqrt(np.maximum(variance, 0.0)))


def error_covariance(candidates: Sequence[Candidate[P]], errors: ErrorModel) -> NDArray[np.float64]:
    """Of the log errors of the estimates, before anything is measured."""
    spread = np.array([one.log_spread for one in candidates])
    traits = np.array([one.traits for one in candidates], dtype=np.float64).reshape(len(candidates), -1)
    apart = ((traits[:, None, :] - traits[None, :, :]) ** 2).sum(axis=-1)
    shared = errors.common + errors.alike * np.exp(-apart / 2)
    found: NDArray[np.float64] = np.outer(spread, spread) * (shared + errors.own * np.eye(len(candidates)))
    return found


def _odds(outlook: Outlook, number: int, best: float, gain: float) -> float:
    """That the candidate is faster than `best` (log seconds) by more than `gain`."""
    return NORMAL.cdf((best + math.log1p(-gain) - float(outlook.mean[number])) / float(outlook.spread[number]))


def _improvement(outlook: Outlook, number: int, best: float) -> float:
    """Expected, of the log seconds."""
    spread = float(outlook.spread[number])
    ahead = (best - float(outlook.mean[number])) / spread
    return spread * (ahead * NORMAL.cdf(ahead) + NORMAL.pdf(ahead))
