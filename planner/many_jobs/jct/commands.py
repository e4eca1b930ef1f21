"""What `cellplan jct` does: train, predict, evaluate. Records and files in, values that `json.dumps` takes out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from planner.many_jobs.jct.evaluation import Setting, evaluate
from planner.many_jobs.jct.intervals import INTERVAL_S, LOSSES, Loss
from planner.many_jobs.jct.mixture import rule_names
from planner.many_jobs.jct.model import predict_rows
from planner.many_jobs.jct.model_file import load_model, save_model
from planner.many_jobs.jct.prepared import prepare
from planner.many_jobs.jct.reading import load_jobs
from planner.many_jobs.jct.training import Say, train
from profiles.errors import InputError


def train_file(
    trace: Path,
    *,
    output: Path,
    cap: int,
    until_s: float | None,
    search: int,
    seed: int,
    threads: int,
    progress: Say | None,
) -> dict[str, Any]:
    """Train on a trace, write the model, and say what it is."""
    began = time.perf_counter()
    prepared = prepare(load_jobs(trace), cap)
    model = train(prepared, until_s=until_s, search=search, seed=seed, threads=threads, progress=progress)
    save_model(model, output)
    gains = model.booster.feature_importance("gain")
    order = np.argsort(-gains)[:10]
    return {
        "model": str(output),
        "cap_intervals": cap,
        "jobs": len(prepared.jobs),
        "training_window": asdict(model.window),
        "columns": list(model.columns),
        "features": list(model.features),
        "parameters": asdict(model.parameters),
        "interval_mass": model.level,
        "weights": {
            loss: dict(zip(("boosters", *rule_names(model.columns, loss)), weights, strict=True))
            for loss, weights in zip(LOSSES, model.mixture.weights, strict=True)
        },
        "most_used": {model.features[index]: float(gains[index] / max(gains.sum(), 1e-12)) for index in order},
        "timing": {"train_s": time.perf_counter() - began},
    }


def predict_file(
    model_file: Path,
    trace: Path,
    *,
    history: Sequence[Path],
    loss: Loss,
    from_s: float | None,
    threads: int,
) -> dict[str, Any]:
    """Predict the jobs of `trace` (from `from_s` on), each by what it and `history` had finished at its submission."""
    if loss not in LOSSES:
        raise InputError(where="jct", key="loss", found=loss, expected="one of " + ", ".join(LOSSES))
    model = load_model(model_file)
    asked_jobs = load_jobs(trace)
    jobs = load_jobs(*history, trace) if history else asked_jobs
    began = time.perf_counter()
    prepared = prepare(jobs, model.start.cap, model.columns)
    features_s = time.perf_counter() - began
    began = time.perf_counter()
    # a sort by submission keeps the order of files, so a trace's jobs are those after the history's of the same time
    asked = _asked(jobs.order >= len(jobs) - len(asked_jobs), jobs.submit_s, from_s)
    said = predict_rows(model, prepared, asked, loss=loss, threads=threads)
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
        "loss": loss,
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
        raise InputError(where="jct", key="from", found=from_s, expected="a time before the last submission")
    return rows


def evaluate_file(trace: Path, setting: Setting, *, progress: Say | None) -> dict[str, Any]:
    """The figures of a trace: `planner.many_jobs.jct.evaluation`."""
    return evaluate(load_jobs(trace), setting, progress=progress)
