"""From a trace to a model: what was known, fitting, choosing, calibrating."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jct.boosting import Parameters, fit_booster, odds_of_bags, thresholds_of
from planner.many_jobs.jct.groups import feature_names
from planner.many_jobs.jct.intervals import INTERVAL_S, LOSSES, level_covering, shares_of
from planner.many_jobs.jct.jobs import Floats, Ints
from planner.many_jobs.jct.mixture import Mixture, Race, begin_weights, nothing_lost
from planner.many_jobs.jct.model import CELLS, JctModel, Product, Start, Window, spread, start_odds, starts_of
from planner.many_jobs.jct.prepared import Prepared
from planner.shared.options.record import Progress
from profiles.errors import InputError
from profiles.records import dataclass

if TYPE_CHECKING:
    import lightgbm

LEAST_JOBS, FEW_JOBS = 50, 20_000
CALIBRATED = 0.15
"""The share of the training jobs, the last ones, that calibrate what the others fitted; the last of FOLDS."""
CALIBRATING_BAGS = 2
"""Bags that are fitted for that, of all: the most costly step by far."""
ROUNDS = (0.15, 0.3, 0.6, 1.0, 1.4)
"""Rounds that are compared there, as multiples of those asked for."""
FOLDS = ((0.70, 0.85), (0.85, 1.0))
"""Chronological splits: fitted up to the first share of the jobs, compared on those up to the second."""
CHOICES: dict[str, tuple[float, ...]] = {
    "rounds": (8, 14, 24),
    "learning_rate": (0.06, 0.1, 0.15, 0.2),
    "leaves": (7, 15, 31, 63),
    "min_share": (0.003, 0.01, 0.03),
    "feature_fraction": (0.3, 0.5, 0.7, 1.0),
    "lambda_l2": (1.0, 5.0, 50.0),
    "extra_trees": (True, False),
}
"""What a randomised search (Arnold, appendix G) draws from."""


def known_rows(prepared: Prepared, until_s: float | None) -> tuple[Ints, Floats]:
    """The jobs whose interval was known at `until_s`, and that interval; without the killed ones.

    That is of finished jobs, and of those that had run into the cap's interval by then. Jobs submitted within the cap
    before `until_s` are left out if others remain: of these only the short ones are known. None: all is known.
    """
    jobs, cap_s = prepared.jobs, (prepared.cap - 1) * INTERVAL_S
    usable = ~jobs.killed & ~np.isnan(prepared.interval)
    if until_s is None:
        rows = np.flatnonzero(usable)
        return rows, prepared.interval[rows]
    finished = jobs.finish_s <= until_s
    capped = until_s - jobs.start_s > cap_s
    before = (jobs.submit_s < until_s) & ~(jobs.killed & finished) & (finished | capped)
    early = before & (jobs.submit_s <= until_s - cap_s)
    chosen = early if early.sum() * 2 >= before.sum() and early.sum() >= LEAST_JOBS else before
    rows = np.flatnonzero(chosen)
    return rows, np.where(finished[rows], np.nan_to_num(prepared.interval[rows]), float(prepared.cap))


def train(
    prepared: Prepared,
    *,
    until_s: float | None = None,
    parameters: Parameters | None = None,
    search: int = 0,
    seed: int = 0,
    threads: int = 2,
    progress: Progress | None = None,
) -> JctModel:
    """Return a model trained on the jobs whose interval was known at `until_s` (seconds; None: all). Raise InputError
    for fewer than 50 of them.

    The first 85% of them are fitted first; on the last 15% the number of rounds is chosen (by the ranked probability
    score) and the interval calibrated; then all are fitted. `search` parameter sets are drawn at random and compared
    before that, the default's among them.
    """
    rows, truth = known_rows(prepared, until_s)
    if len(rows) < LEAST_JOBS:
        known = "of known duration" if until_s is None else f"whose duration is known at {until_s:g} s"
        raise InputError(where="jct", key="trace", found=f"{len(rows)} jobs {known}", expected=f"at least {LEAST_JOBS}")
    fit = _Fit(prepared=prepared, rows=rows, truth=truth, seed=seed, threads=threads)
    chosen = parameters or Parameters()
    if search:
        chosen = _search(fit, chosen, count=search, progress=progress)
    level, rounds, mixture = _calibrate(fit, chosen)
    chosen = replace(chosen, rounds=rounds)
    start, booster = fit.booster(np.arange(len(rows)), chosen)
    jobs = prepared.jobs
    tail = jobs.duration_s[rows][(truth >= prepared.cap) & (jobs.finish_s[rows] <= (until_s or np.inf))]
    return JctModel(
        booster=booster,
        start=start,
        columns=prepared.columns,
        features=feature_names(prepared.columns),
        parameters=chosen,
        window=Window(
            first_submit_s=float(jobs.submit_s[rows[0]]),
            last_submit_s=float(jobs.submit_s[rows[-1]]),
            until_s=until_s,
            jobs=len(rows),
        ),
        level=level,
        mixture=mixture,
        tail_s=float(np.exp(np.log(tail).mean())) if len(tail) else prepared.cap * INTERVAL_S,
    )


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """The jobs to train on: rows of the trace, and the interval that is known of each."""

    prepared: Prepared
    rows: Ints
    truth: Floats
    seed: int
    threads: int

    def product_s(self, chosen: Ints) -> Floats | None:
        product = self.prepared.product_s
        return None if product is None else product[self.rows[chosen]]

    def booster(self, chosen: Ints, parameters: Parameters) -> tuple[Start, lightgbm.Booster]:
        """Where boosting starts, and the booster, of the chosen of these jobs."""
        features, truth = self.prepared.features[self.rows[chosen]], self.truth[chosen]
        product = self.product_s(chosen)
        start = _start(self.prepared.cap, truth, self.prepared.jobs.duration_s[self.rows[chosen]], product)
        longer = truth[:, None] > np.array(start.thresholds)
        booster = fit_booster(
            features,
            longer,
            start_odds(start, product, len(truth)),
            names=feature_names(self.prepared.columns),
            parameters=parameters,
            seed=self.seed,
            threads=self.threads,
        )
        return start, booster

    def split(self, first: float, last: float) -> tuple[Ints, Ints]:
        """Jobs of the first share whose interval was known when the next began, and these up to the last share."""
        begin, end = int(len(self.rows) * first), int(len(self.rows) * last)
        now = self.prepared.jobs.submit_s[self.rows[begin]]
        settled, _ = known_rows(self.prepared, float(now))
        before = np.flatnonzero(np.isin(self.rows[:begin], settled))
        return (before if len(before) >= LEAST_JOBS // 2 else np.arange(begin)), np.arange(begin, end)


def _start(cap: int, truth: Floats, duration_s: Floats, product_s: Floats | None) -> Start:
    thresholds = thresholds_of(cap)
    chance = (truth[:, None] > np.array(thresholds)).mean(axis=0)
    chance = (chance * len(truth) + 0.5) / (len(truth) + 1.0)
    return Start(
        cap=cap,
        thresholds=thresholds,
        odds=tuple(np.log(chance / (1.0 - chance)).tolist()),
        shares=shares_of(truth, cap),
        product=None if product_s is None else _fit_product(duration_s, product_s, truth < cap),
    )


def _fit_product(duration_s: Floats, product_s: Floats, closed: NDArray[np.bool_]) -> Product | None:
    """Median and spread (of the logistic law with the median absolute deviation) of duration / product."""
    held = closed & (product_s > 0) & (duration_s > 0)
    if held.sum() < LEAST_JOBS // 2:
        return None
    logs = np.log(duration_s[held] / product_s[held])
    middle = float(np.median(logs))
    deviation = max(float(np.median(np.abs(logs - middle))), 1e-3)
    return Product(ratio=float(np.exp(middle)), slope=float(np.log(3.0) / deviation))


@dataclass(frozen=True, kw_only=True)
class _Fold:
    """What was fitted on the jobs before, with its answers for those after; `chosen` as `_Fit.split` has them."""

    start: Start
    booster: lightgbm.Booster
    fitted: Ints
    chosen: Ints

    def masses(self, fit: _Fit, *, bags: int, rounds: int) -> Floats:
        """Probabilities of intervals after so many rounds of each bag."""
        features = fit.prepared.features[fit.rows[self.chosen]]
        odds = odds_of_bags(self.booster, features, bags=bags, rounds=rounds, threads=fit.threads)
        return spread(self.start, odds, fit.product_s(self.chosen))


def _calibrate(fit: _Fit, parameters: Parameters) -> tuple[float, int, Mixture]:
    """By the last jobs: the level that intervals must hold, the rounds of a bag, and how far to follow simple rules.
    Where jobs are few, the last two by those before them as well, since a habit that changed just then says little."""
    bags = min(parameters.bags, CALIBRATING_BAGS)
    longest = replace(parameters, bags=bags, rounds=round(parameters.rounds * ROUNDS[-1]))
    choices = sorted({max(1, round(parameters.rounds * part)) for part in ROUNDS})
    scores, levels = dict.fromkeys(choices, 0.0), dict.fromkeys(choices, 1.0)
    folds = []
    for fold in FOLDS if len(fit.rows) < FEW_JOBS else FOLDS[-1:]:
        fitted, last = fit.split(*fold)
        last = last[:: -(-len(last) * fit.prepared.cap // CELLS)]
        start, booster = fit.booster(fitted, longest)
        folds.append(_Fold(start=start, booster=booster, fitted=fitted, chosen=last))
        for rounds in choices:
            masses = folds[-1].masses(fit, bags=bags, rounds=rounds)
            scores[rounds] += ranked_score(masses, fit.truth[last])
            levels[rounds] = level_covering(masses, fit.truth[last], starts_of(start))
    best = min(choices, key=lambda rounds: scores[rounds])
    return levels[best], best, _mixture(fit, folds, bags=bags, rounds=best)


def _mixture(fit: _Fit, folds: list[_Fold], *, bags: int, rounds: int) -> Mixture:
    """Who is followed after the folds' jobs, each of which was predicted by what preceded it."""
    prepared = fit.prepared
    begin = begin_weights(prepared.columns, len(fit.rows))
    lost = nothing_lost(begin)
    for fold in folds:
        rows = fit.rows[fold.chosen]
        race = Race(prepared, rows, teaches=np.ones(len(prepared.jobs), bool), lost=lost)
        masses = fold.masses(fit, bags=bags, rounds=rounds)
        shares = np.array(shares_of(fit.truth[fold.fitted], prepared.cap))
        for part in race.parts():
            race.run(part, race.experts(part, masses[part], shares), np.array(begin))
        lost = race.settle()
    return Mixture(
        shares=shares_of(fit.truth, prepared.cap),
        begin=begin,
        lost=tuple(tuple(tuple(sums.tolist()) for sums in lost[loss]) for loss in LOSSES),
    )


def ranked_score(masses: Floats, truth: Floats) -> float:
    """The mean ranked probability score: squared differences of the cumulated masses from the truth's step."""
    steps = truth[:, None] <= np.arange(1, masses.shape[1] + 1)
    return float(((np.cumsum(masses, axis=1) - steps) ** 2).sum(axis=1).mean())


def _search(fit: _Fit, default: Parameters, *, count: int, progress: Progress | None) -> Parameters:
    """The best of `count` random parameter sets and the default, by the mean score on chronological splits."""
    rng = np.random.default_rng(fit.seed)
    drawn = [default]
    for _ in range(count):
        picked = {name: values[int(rng.integers(len(values)))] for name, values in CHOICES.items()}
        drawn.append(replace(default, **picked))  # type: ignore[arg-type]
    scores = []
    for number, parameters in enumerate(drawn):
        if progress is not None:
            progress(number, len(drawn), None, "parameters")
        scores.append(np.mean([_score(fit, parameters, *fit.split(*fold)) for fold in FOLDS]))
    return drawn[int(np.argmin(scores))]


def _score(fit: _Fit, parameters: Parameters, fitted: Ints, compared: Ints) -> float:
    start, booster = fit.booster(fitted, parameters)
    features, product = fit.prepared.features[fit.rows[compared]], fit.product_s(compared)
    bags = odds_of_bags(booster, features, bags=parameters.bags, threads=fit.threads)
    return ranked_score(spread(start, bags, product), fit.truth[compared])
