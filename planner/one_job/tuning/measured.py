"""The default: a measurement is asked for only where it can still change which plan is chosen.

Before any measurement log(measured / estimated) of a group's candidates is taken as jointly Student-t around 0, with
`freedom` degrees and the scale matrix

    K(i, j) = s^2 (common + alike exp(-|x_i - x_j|^2 / 2) + own [i = j])

x_i the candidate's traits: what errs for all plans of the group alike, what errs alike for plans that are near, and
what is each plan's own, noise of measuring included. s is the widest `log_spread` of the group: on the fit half that is
likelier than each plan's own, which leaps where a plan falls into another class. So each measurement corrects the
estimates of the others, and all of them together say whether the group's estimates err more than was thought, or less
(Shah, Wilson, Ghahramani, "Student-t Processes as Alternatives to Gaussian Processes", AISTATS 2014, lemma 3):

    mean_i + K(i, seen) K(seen, seen)^-1 e,   (K(i, i) - K(i, seen) K(seen, seen)^-1 K(seen, i)) (f + q) / (f + n)

with e the n errors seen, q = e K(seen, seen)^-1 e, f = `freedom`, and f + n degrees of freedom.

Next comes the plan of the greatest expected improvement on the fastest one measured (Jones, Schonlau, Welch, "Efficient
Global Optimization", J. Global Optimization 13, 1998, section 4.1), on the logarithm, among those that are faster by
more than `gain` with a probability above `odds`: whose lower confidence bound is below it. Where there is none the
choice is final.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from planner.one_job.tuning.records import Ask, Candidate, Measurement, P
from planner.one_job.tuning.student import Student
from profiles.records import dataclass

Z_90 = NormalDist().inv_cdf(0.95)
MEASURED_LOG_SPREAD = 0.12
"""Of estimates whose layer times and links are measured on the same machine: with the shares below that is a scale of
0.08, the root mean square of log(estimated / measured) over the 16 runs with torch in `bench/real_runs/RESULTS.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """How the estimates of one group err together, as shares of the squared spread. The defaults are the most likely
    values given the fit half of the run tables (`python -m bench.tuning --fit`)."""

    common: float = 0.063
    alike: float = 0.356
    own: float = 0.0105
    freedom: int = 10

    def __post_init__(self) -> None:
        if min(self.common, self.alike) < 0 or self.own <= 0 or self.freedom < 1:
            raise ValueError(f"error model: {self}, expected no share below 0, own above 0, and freedom at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a plan is measured: its odds to be faster by more than the share `gain` than the best one measured are above
    `odds`. Fewer odds mean more measurements and a surer choice; the default are the most, in steps of 0.025, with
    which choices in the fit half of the run tables are 99.5% accurate (`bench/tuning/RESULTS.md` has others)."""

    odds: float = 0.1
    gain: float = 0.01
    errors: ErrorModel = ErrorModel()

    def __post_init__(self) -> None:
        if not 0 < self.odds < 1 or not 0 <= self.gain < 1:
            raise ValueError(f"rules: odds={self.odds}, gain={self.gain}; expected both below 1, and odds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known of each candidate's log seconds: centre and scale of a Student-t distribution of `freedom` degrees;
    a scale of 0 where it was measured. Out of memory: infinitely slow."""

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]
    freedom: int


def log_spread(interval_90_s: tuple[float, float]) -> float:
    """The standard deviation of the log error that a 90% interval stands for."""
    low, high = interval_90_s
    return math.log(high / low) / (2 * Z_90)


def ask_where_it_matters(rules: Rules | None = None) -> Ask[P]:
    """The procedure above; the first plan measured is that of the least estimate."""
    chosen = rules or Rules()

    def ask(candidates: Sequence[Candidate[P]], done: Sequence[Measurement]) -> int | None:
        ran = [measured.seconds for measured in done if measured.seconds is not None]
        seen = {measured.number for measured in done}
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
    model = errors or ErrorModel()
    scales = error_scales(candidates, model)
    mean = np.log([each.estimated_s for each in candidates])
    variance = np.diag(scales).copy()
    freedom = model.freedom
    timed = [(each.number, math.log(each.seconds)) for each in done if each.seconds is not None]
    if timed:
        numbers = [number for number, _ in timed]
        seen = np.array([seconds for _, seconds in timed]) - mean[numbers]
        between = scales[:, numbers]
        among = scales[np.ix_(numbers, numbers)]
        weights = np.linalg.solve(among, between.T).T
        mean = mean + weights @ seen
        variance -= np.einsum("ij,ij->i", weights, between)
        freedom += len(timed)
        variance *= (model.freedom + float(seen @ np.linalg.solve(among, seen))) / freedom
        mean[numbers] = [seconds for _, seconds in timed]
        variance[numbers] = 0.0
    gone = [each.number for each in done if each.seconds is None]
    mean[gone], variance[gone] = math.inf, 0.0
    return Outlook(mean=mean, spread=np.sqrt(np.maximum(variance, 0.0)), freedom=freedom)


def error_scales(candidates: Sequence[Candidate[P]], errors: ErrorModel) -> NDArray[np.float64]:
    """The scale matrix of the log errors of the estimates, before anything is measured."""
    spread = max(candidate.log_spread for candidate in candidates)
    traits = np.array([candidate.traits for candidate in candidates], dtype=np.float64).reshape(len(candidates), -1)
    apart = ((traits[:, None, :] - traits[None, :, :]) ** 2).sum(axis=-1)
    shared = errors.common + errors.alike * np.exp(-apart / 2)
    scales: NDArray[np.float64] = spread**2 * (shared + errors.own * np.eye(len(candidates)))
    return scales


def _odds(outlook: Outlook, number: int, best: float, gain: float) -> float:
    """That the candidate is faster than `best` (log seconds) by more than `gain`."""
    ahead = (best + math.log1p(-gain) - float(outlook.mean[number])) / float(outlook.spread[number])
    return Student(outlook.freedom).below(ahead)


def _improvement(outlook: Outlook, number: int, best: float) -> float:
    """Expected, of the log seconds."""
    spread = float(outlook.spread[number])
    return spread * Student(outlook.freedom).expected_excess((best - float(outlook.mean[number])) / spread)
