"""What `cellplan jct` does: train, predict, evaluate. Records and files in, values that `json.dumps` takes out."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from estimator.host.capacity import thread_limit
from planner.many_jobs.jct.evaluation import evaluate
from planner.many_jobs.jct.intervals import INTERVAL_S, LOSSES
from planner.many_jobs.jct.mixture import expert_names, mean_weights
from planner.many_jobs.jct.model import predict_rows
from planner.many_jobs.jct.model_file import load_model, save_model
from planner.many_jobs.jct.prepared import prepare
from planner.many_jobs.jct.reading import load_jobs
from planner.many_jobs.jct.training import train
from planner.shared.options.jct import JctEvaluateOptions, JctPredictOptions, JctTrainOptions
from profiles.errors import InputError


def train_file(options: JctTrainOptions) -> dict[str, Any]:
    """Train a model on the jobs of a trace file, write it to `output`, and return what it is. Raise InputError where
    the file is no trace, or fewer than 50 of its jobs have a known duration."""
    thread_limit().check(options.threads, where="jct", key="--threads")
    began = time.perf_counter()
    prepared = prepare(load_jobs(options.trace), options.cap)
    model = train(
        prepared,
        until_s=options.until_s,
        search=options.search,
        seed=options.seed,
        threads=options.threads,
        progress=options.progress,
    )
    save_model(model, options.output)
    gains = model.booster.feature_importance("gain")
    order = np.argsort(-gains)[:10]
    return {
        "model": str(options.output),
        "cap_intervals": options.cap,
        "jobs": len(prepared.jobs),
        "training_window": asdict(model.window),
        "columns": list(model.columns),
        "features": list(model.features),
        "parameters": asdict(model.parameters),
        "interval_mass": model.level,
        "weights": {
            loss: dict(zip(expert_names(model.columns), weights.tolist(), strict=True))
            for loss, weights in zip(
                LOSSES, mean_weights(np.array(model.mixture.begin), np.array(model.mixture.lost)), strict=True
            )
        },
        "most_used": {model.features[index]: float(gains[index] / max(gains.sum(), 1e-12)) for index in order},
        "timing": {"train_s": time.perf_counter() - began},
    }


def predict_file(options: JctPredictOptions) -> dict[str, Any]:
    """Predict the jobs of the trace submitted at `from_s` (seconds) or later, each by what it and `history` had
    finished at its submission; return a row a job, with points and intervals in seconds. Raise InputError for a file
    that is no trace or model."""
    thread_limit().check(options.threads, where="jct", key="--threads")
    model = load_model(options.model)
    trace_jobs = load_jobs(options.trace)
    jobs = load_jobs(*options.history, options.trace) if options.history else trace_jobs
    began = time.perf_counter()
    prepared = prepare(jobs, model.start.cap, model.columns)
    features_s = time.perf_counter() - began
    began = time.perf_counter()
    # a sort by submission keeps the order of files, so a trace's jobs are those after the history's of the same time
    asked = _asked(jobs.order >= len(jobs) - len(trace_jobs), jobs.submit_s, options.from_s)
    said = predict_rows(model, prepared, asked, loss=options.loss, threads=options.threads)
    cap, seconds = model.start.cap, time.perf_counter() - began
    rows = [
        {
            "job_id": jobs.ids[index],
            "submit_time_s": float(jobs.submit_s[index]),
            "interval": int(said.interval[place]),
            "point_intervals": float(said.point[place]),
            "point_s": float(said.point_s[place]),
            "interval_90": [int(said.low[place]), int(said.high[place])],
            "interval_90_s": [
                (int(said.low[place]) - 1) * INTERVAL_S,
                int(said.high[place]) * INTERVAL_S if said.high[place] < cap else None,
            ],
        }
        for place, index in enumerate(asked.tolist())
    ]
    return {
        "loss": options.loss,
        "cap_intervals": cap,
        "unknown_columns": sorted({*model.columns} - {"gpus", *jobs.numbers, *jobs.words}),
        "jobs": rows,
        "timing": {"features_s": features_s, "predict_s": seconds, "predictions_per_s": len(rows) / seconds},
    }


def _asked(
    of_trace: np.ndarray[Any, Any], submit_s: np.ndarray[Any, Any], from_s: float | None
) -> np.ndarray[Any, Any]:
    rows = np.flatnonzero(of_trace & (submit_s >= (-np.inf if from_s is None else from_s)))
    if not len(rows):
        raise InputError(where="jct", key="--from", found=from_s, expected="a time before the last submission")
    return rows


def evaluate_file(options: JctEvaluateOptions) -> dict[str, Any]:
    """Return the figures of `cellplan jct evaluate` on the jobs of a trace file: see
    `planner.many_jobs.jct.evaluation`. Raise InputError for a file that is no trace, or too few jobs in it."""
    thread_limit().check(options.threads, where="jct", key="--threads")
    return evaluate(load_jobs(options.trace), options)
