"""How good predictions are on a trace: rolling chronological origins, every loss, beside every baseline.

An origin is a time at which a model is trained on what was known by then; it predicts the jobs of the block that
follows, each from what is known when that job is submitted. Figures are over the jobs of all blocks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jct.baselines import Points, baseline_points
from planner.many_jobs.jct.boosting import Parameters
from planner.many_jobs.jct.intervals import LOSSES, loss_of, point_of, shortest_holding
from planner.many_jobs.jct.jobs import Floats, Ints, Jobs
from planner.many_jobs.jct.mixture import expert_names, learned_rows
from planner.many_jobs.jct.model import JctModel, mixed_parts, starts_of
from planner.many_jobs.jct.network_torch import network_points
from planner.many_jobs.jct.prepared import Prepared, prepare
from planner.many_jobs.jct.quantiles import quantile_intervals
from planner.many_jobs.jct.training import known_rows, train
from planner.shared.options.jct import EvaluationOptions, Loss
from profiles.errors import InputError
from profiles.records import dataclass

LEAST_TESTED = 20
EXPERT = "expert "
"""How the names of the mixture's experts begin among those of points."""


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One origin's tested jobs: the truth, all points, and the intervals by how they were made."""

    truth: Floats
    points: Mapping[str, Points]
    intervals: Mapping[str, tuple[Ints, Ints]]
    likely: Ints
    origin_s: float
    training_jobs: int
    train_s: float
    predict_s: float


def evaluate(jobs: Jobs, options: EvaluationOptions, *, parameters: Parameters | None = None) -> dict[str, Any]:
    """Return the figures of `cellplan jct evaluate`: how far predictions are off, in intervals of 600 s, beside
    baselines.

    Each loss has its figure (`KEYS`), of the points made for that loss; `boosters` the same without
    the simple rules that the model follows as well, `experts` each of these alone, `baselines` each baseline,
    `best_group` the best median of a group, `origins` the model's by origin. InputError where blocks are too small.
    """
    if len(jobs) * options.tested < LEAST_TESTED * options.origins:
        asked = f"{options.origins} origins for {len(jobs)} jobs"
        raise options.wrong("origins", found=asked, expected=f"{LEAST_TESTED} tested jobs an origin")
    began = time.perf_counter()
    prepared = prepare(jobs, options.cap)
    features_s = time.perf_counter() - began
    blocks = []
    for number in range(options.origins):
        if options.progress is not None:
            options.progress(number, options.origins, None, "origins")
        share = 1.0 - options.tested + options.tested * np.array([number, number + 1]) / options.origins
        first, last = (round(len(jobs) * float(edge)) for edge in share)
        blocks.append(_block(prepared, first, last, options, parameters))
    everything = _figures(blocks, "model")
    hits = np.concatenate([block.likely == block.truth for block in blocks])
    names = [name for name in blocks[0].points if name not in ("model", "boosters", "network")]
    experts = {name.removeprefix(EXPERT): _figures(blocks, name) for name in names if name.startswith(EXPERT)}
    baselines = {name: _figures(blocks, name) for name in names if not name.startswith(EXPERT)}
    return {
        "test_jobs": int(sum(len(block.truth) for block in blocks)),
        "cap_intervals": options.cap,
        **everything,
        "interval_accuracy": float(hits.mean()),
        **_coverage(blocks, "bagging", options.cap),
        "quantiles": _coverage(blocks, "quantiles", options.cap) if options.quantiles else None,
        "network": _figures(blocks, "network") if options.network else None,
        "boosters": _figures(blocks, "boosters"),
        "experts": experts,
        "baselines": baselines,
        "best_group": {key: _best(baselines, key, ("past-31 median by ", "median by ")) for key in everything},
        "origins": [_origin(block, options.cap) for block in blocks],
        "timing": {
            "features_s": features_s,
            "train_s": [block.train_s for block in blocks],
            "predictions_per_s": sum(len(block.truth) for block in blocks) / sum(block.predict_s for block in blocks),
        },
    }


def _block(
    prepared: Prepared, first: int, last: int, options: EvaluationOptions, parameters: Parameters | None
) -> _Block:
    jobs = prepared.jobs
    origin_s = float(jobs.submit_s[first])
    tested = np.arange(first, last)
    tested = tested[~jobs.killed[tested] & ~np.isnan(prepared.interval[tested])]
    if not len(tested):
        raise InputError(where="jct", key="trace", found="a block without jobs that finished", expected="some in each")
    began = time.perf_counter()
    model = train(
        prepared,
        until_s=origin_s,
        parameters=parameters,
        search=options.search,
        seed=options.seed,
        threads=options.threads,
    )
    train_s = time.perf_counter() - began
    began = time.perf_counter()
    wider = learned_rows(prepared, tested, model.window.last_submit_s)
    points, masses = _mixed(model, prepared, wider, np.isin(wider, tested), threads=options.threads)
    intervals = {"bagging": shortest_holding(masses, model.level, starts_of(model.start))}
    predict_s = time.perf_counter() - began
    rows, truth = known_rows(prepared, origin_s)
    points |= baseline_points(prepared, rows, truth, tested)
    if options.network:
        points["network"] = network_points(prepared, rows, truth, tested, seed=options.seed, threads=options.threads)
    if options.quantiles:
        intervals["quantiles"] = quantile_intervals(
            prepared, rows, truth, tested, seed=options.seed, threads=options.threads
        )
    return _Block(
        truth=prepared.interval[tested],
        points=points,
        intervals=intervals,
        likely=masses.argmax(axis=1) + 1,
        origin_s=origin_s,
        training_jobs=len(rows),
        train_s=train_s,
        predict_s=predict_s,
    )


def _mixed(
    model: JctModel, prepared: Prepared, wider: Ints, tested: NDArray[np.bool_], *, threads: int
) -> tuple[dict[str, Points], Floats]:
    """The points of the mixture and of each of its experts for the tested ones of the rows `wider`, and the boosters'
    masses."""
    names = ["boosters", *(f"{EXPERT}{name}" for name in expert_names(model.columns)[1:])]
    parts: dict[str, list[Points]] = {name: [] for name in ("model", *names)}
    masses, first = [], 0
    for experts, points in mixed_parts(model, prepared, wider, LOSSES, threads=threads):
        kept = tested[first : first + experts.shape[1]]
        first += experts.shape[1]
        masses.append(experts[0, kept])
        parts["model"].append({loss: points[loss][kept] for loss in LOSSES})
        for name, said in zip(names, experts[:, kept], strict=True):
            parts[name].append({loss: point_of(said, loss) for loss in LOSSES})
    joined: dict[str, Points] = {
        name: {loss: np.concatenate([part[loss] for part in of_name]) for loss in LOSSES}
        for name, of_name in parts.items()
    }
    return joined, np.concatenate(masses)


KEYS: dict[str, Loss] = {
    "rmse_intervals": "squared",
    "mae_intervals": "absolute",
    "log_rmse": "log",
    "within_2x": "within-2x",
}
"""The figure of each loss. `within_2x` is the share within; the point is each loss's own."""


def _figures(blocks: list[_Block], name: str) -> dict[str, float]:
    """Each loss of the points made for it, in intervals, over all blocks."""
    truth = np.concatenate([block.truth for block in blocks])
    figures = {}
    for key, loss in KEYS.items():
        value = loss_of(np.concatenate([block.points[name][loss] for block in blocks]), truth, loss)
        figures[key] = 1.0 - value if loss == "within-2x" else value
    return figures


def _best(baselines: Mapping[str, Mapping[str, float]], key: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The baseline of these kinds that turned out best in one figure."""
    held = {name: figures[key] for name, figures in baselines.items() if name.startswith(kinds)}
    name = (max if key == "within_2x" else min)(held, key=lambda baseline: held[baseline])
    return {"name": name, "value": held[name]}


def _coverage(blocks: list[_Block], name: str, cap: int) -> dict[str, float]:
    """The share of truths in the interval, and its mean width in intervals."""
    truth = np.concatenate([block.truth for block in blocks])
    low, high = (np.concatenate([block.intervals[name][side] for block in blocks]) for side in (0, 1))
    assert high.max(initial=1) <= cap
    return {
        "coverage_90": float(np.mean((truth >= low) & (truth <= high))),
        "width_90_intervals": float(np.mean(high - low + 1)),
    }


def _origin(block: _Block, cap: int) -> dict[str, Any]:
    return {
        "origin_s": block.origin_s,
        "training_jobs": block.training_jobs,
        "test_jobs": len(block.truth),
        **_figures([block], "model"),
        **_coverage([block], "bagging", cap),
        "best_constant": _figures([block], "best constant in hindsight"),
    }
