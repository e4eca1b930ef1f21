"""A trained predictor as a record, and what it says of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner.many_jobs.jct.boosting import Parameters, odds_of_bags
from planner.many_jobs.jct.features import Matrix
from planner.many_jobs.jct.intervals import INTERVAL_S, point_of, shortest_holding
from planner.many_jobs.jct.jobs import Floats, Ints
from planner.many_jobs.jct.mixture import Mixture, learned_rows, race_after
from planner.many_jobs.jct.prepared import Prepared
from planner.shared.options.jct import Loss
from profiles.records import dataclass

if TYPE_CHECKING:
    import lightgbm

CELLS = 4_000_000
"""Probabilities that are held at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a model was trained on: jobs submitted from `first_submit_s` to `last_submit_s`, and nothing that was not
    known at `until_s` (None: all that the trace says)."""

    first_submit_s: float
    last_submit_s: float
    until_s: float | None
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """How durations follow iterations times iteration time: log-logistic around `ratio` times the product, with `slope`
    the steepness of its odds in the logarithm of time."""

    ratio: float
    slope: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where boosting starts. `odds` are the training jobs' log odds of running longer than each of `thresholds`
    (intervals); `shares` how they lie on the `cap` intervals; `product` is there where the trace tells the product."""

    cap: int
    thresholds: tuple[int, ...]
    odds: tuple[float, ...]
    shares: tuple[float, ...]
    product: Product | None = None


@dataclass(frozen=True, kw_only=True)
class JctModel:
    """A predictor. `columns` are those of the trace it was trained on, `features` follow from them. `level` is the
    mass that an interval must hold to be right in 90% of cases; `mixture` says how far simple rules are followed beside
    the booster where finished jobs are at hand (`predict_rows`); `tail_s` stands for durations in the last interval."""

    booster: lightgbm.Booster
    start: Start
    columns: tuple[str, ...]
    features: tuple[str, ...]
    parameters: Parameters
    window: Window
    level: float
    mixture: Mixture
    tail_s: float


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """For each job: the most likely `interval`, the `point` for the loss that was asked for, in intervals and in
    seconds, and the shortest run of intervals [low, high] that the truth lies in with 90%."""

    interval: Ints
    point: Floats
    point_s: Floats
    low: Ints
    high: Ints


def start_odds(start: Start, product_s: Floats | None, rows: int) -> Floats:
    """Log odds before boosting: a row a job, a column a threshold."""
    odds = np.tile(np.array(start.odds), (rows, 1))
    if start.product is not None and product_s is not None:
        held = product_s > 0
        odds[held] = _log_logistic(start.product, product_s[held], np.array(start.thresholds, dtype=np.float64))
    return odds


def _log_logistic(product: Product, product_s: Floats, intervals: Floats) -> Floats:
    expected = np.log(product.ratio * product_s)[:, None]
    return np.clip(product.slope * (expected - np.log(intervals * INTERVAL_S)), -12.0, 12.0)


def masses_of(model: JctModel, features: Matrix, product_s: Floats | None, *, threads: int = 2) -> Floats:
    """The probability of each interval, a row a job: the mean over the bags."""
    bags = odds_of_bags(model.booster, features, bags=model.parameters.bags, threads=threads)
    return spread(model.start, bags, product_s)


def spread(start: Start, bags: list[Floats], product_s: Floats | None) -> Floats:
    """Probabilities of intervals from what each bag adds to the odds of the thresholds.

    Inside of a step between two thresholds they lie as the training jobs did, or, where the product is known, as its
    log-logistic law says.
    """
    rows = len(bags[0])
    before = start_odds(start, product_s, rows)
    chance = np.mean([1.0 / (1.0 + np.exp(-np.clip(before + added, -30.0, 30.0))) for added in bags], axis=0)
    chance = np.minimum.accumulate(chance, axis=1)
    edges = np.array([0, *start.thresholds, start.cap])
    steps = np.concatenate([np.ones((rows, 1)), chance], axis=1) - np.concatenate([chance, np.zeros((rows, 1))], axis=1)
    shares = np.array(start.shares) + 1e-9
    inside = np.repeat(np.add.reduceat(shares, edges[:-1]), np.diff(edges))
    masses = np.repeat(steps, np.diff(edges), axis=1) * (shares / inside)
    if start.product is not None and product_s is not None:
        held = product_s > 0
        masses[held] = np.repeat(steps[held], np.diff(edges), axis=1) * _inside(start, product_s[held], edges)
    return np.asarray(masses)


def _inside(start: Start, product_s: Floats, edges: Ints) -> Floats:
    """How the mass of each step lies on its intervals by the log-logistic law."""
    assert start.product is not None
    longer = 1.0 / (1.0 + np.exp(-_log_logistic(start.product, product_s, np.arange(1.0, start.cap))))
    bounds = np.concatenate([np.ones((len(product_s), 1)), longer, np.zeros((len(product_s), 1))], axis=1)
    masses = np.maximum(bounds[:, :-1] - bounds[:, 1:], 1e-12)
    return np.asarray(masses / np.repeat(np.add.reduceat(masses, edges[:-1], axis=1), np.diff(edges), axis=1))


def predict(
    model: JctModel, features: Matrix, product_s: Floats | None, *, loss: Loss = "squared", threads: int = 2
) -> Predictions:
    """Return what the model says of jobs with these features (`product_s`: iterations times iteration time in seconds,
    NaN unknown): the likeliest interval, the point for `loss`, and a 90% interval for each."""
    rows = max(1, CELLS // model.start.cap)
    parts = []
    for first in range(0, len(features), rows):
        part = slice(first, first + rows)
        masses = masses_of(model, features[part], None if product_s is None else product_s[part], threads=threads)
        low, high = shortest_holding(masses, model.level, starts_of(model.start))
        parts.append((masses.argmax(axis=1) + 1, point_of(masses, loss), low, high))
    if not parts:
        none = np.zeros(0, np.int64)
        return Predictions(interval=none, point=np.zeros(0), point_s=np.zeros(0), low=none, high=none)
    interval, point, low, high = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Predictions(interval=interval, point=point, point_s=seconds_of(model, point), low=low, high=high)


def predict_rows(
    model: JctModel, prepared: Prepared, rows: Ints, *, loss: Loss = "squared", threads: int = 2
) -> Predictions:
    """As `predict`, of rows of a trace in order; points are the mixture's with the rules, by what was known when each
    was submitted. `prepared` is of the model's columns and cap."""
    wider = learned_rows(prepared, rows, model.window.last_submit_s)
    parts = [
        (masses.argmax(axis=1) + 1, points[loss], *shortest_holding(masses, model.level, starts_of(model.start)))
        for (masses, *_), points in mixed_parts(model, prepared, wider, (loss,), threads=threads)
    ]
    if not parts:
        return predict(model, prepared.features[:0], None)
    asked = np.searchsorted(wider, rows)
    interval, point, low, high = (np.concatenate(column)[asked] for column in zip(*parts, strict=True))
    return Predictions(interval=interval, point=point, point_s=seconds_of(model, point), low=low, high=high)


def mixed_parts(
    model: JctModel, prepared: Prepared, wider: Ints, losses: Sequence[Loss], *, threads: int
) -> Iterator[tuple[Floats, dict[Loss, Floats]]]:
    """Return, part after part of the rows `wider` (as `learned_rows` gives them), what each of the experts says (masses
    of intervals, the boosters' first), and the mixture's points for each loss."""
    race = race_after(model.mixture, prepared, wider, model.window.last_submit_s, losses)
    shares, begin = np.array(model.mixture.shares), np.array(model.mixture.begin)
    for part in race.parts():
        product = None if prepared.product_s is None else prepared.product_s[wider[part]]
        boosters = masses_of(model, prepared.features[wider[part]], product, threads=threads)
        experts = race.experts(part, boosters, shares)
        yield experts, race.run(part, experts, begin)


def starts_of(start: Start) -> Ints:
    """The intervals that a predicted run of intervals may begin with: the first after each threshold."""
    return np.array([1, *(threshold + 1 for threshold in start.thresholds)])


def seconds_of(model: JctModel, point: Floats) -> Floats:
    """The middle of a point's interval; from the last closed one to the cap on a line up to `tail_s`."""
    last = model.start.cap - 1.0
    middle = (last - 0.5) * INTERVAL_S
    beyond = middle + (point - last) * (max(model.tail_s, last * INTERVAL_S) - middle)
    return np.where(point <= last, (point - 0.5) * INTERVAL_S, beyond)
