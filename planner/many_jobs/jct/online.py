"""A predictor that learns while a simulation or a cluster runs: told of submissions and finishes, it answers seconds.

A job's duration enters its history, and what it is retrained on, when the job is reported finished and not before.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from planner.many_jobs.jct.groups import LAST
from planner.many_jobs.jct.incremental import History
from planner.many_jobs.jct.intervals import INTERVAL_S, interval_of
from planner.many_jobs.jct.jobs import make_jobs
from planner.many_jobs.jct.model import JctModel, predict
from planner.many_jobs.jct.prepared import Prepared
from planner.many_jobs.jct.training import LEAST_JOBS, known_rows, train
from planner.many_jobs.jobs.records import Job
from planner.shared.options.jct import Loss
from profiles.records import dataclass

COLUMNS = ("gpus", "vc", "user", "name")
"""What a `Job` tells: devices, virtual cluster, user, model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A job that was submitted, its features at that time, and what came of it."""

    id: str
    submit_s: float
    gpus: float
    row: tuple[float, ...]
    finish_s: float = math.inf
    duration_s: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSetting:
    """`model`: a trained one to begin with. `retrain_s`: train anew so many seconds after the last time (None: never),
    from `least_jobs` finished ones on. `cap` intervals of 600 s, where there is no model. `unknown_s` is answered while
    nothing at all is known. `loss` is what the point is to be best at."""

    model: JctModel | None = None
    retrain_s: float | None = 86_400.0
    least_jobs: int = 500
    cap: int = 144
    loss: Loss = "log"
    unknown_s: float = 3_600.0
    seed: int = 0
    threads: int = 2


class OnlinePredictor:
    """Durations of jobs on what they asked for, predicted at their submission (`planner.many_jobs.simulation`'s
    predictor).

    Before there is a model it answers the median of the last 31 finished of the same virtual cluster and devices; of
    all, where that has none. What a model's trace had and a `Job` has not (CPUs, memory) is unknown to it here.
    """

    def __init__(self, setting: OnlineSetting | None = None) -> None:
        self._setting = setting or OnlineSetting()
        self._model = self._setting.model
        self._cap = self._model.start.cap if self._model is not None else self._setting.cap
        self._columns = self._model.columns if self._model is not None else COLUMNS
        self._history = History(self._columns, self._cap)
        self._running: dict[str, _Seen] = {}
        self._done: list[_Seen] = []
        self._recent: dict[tuple[str, int] | None, deque[float]] = {}
        self._trained_s: float | None = None
        self._intervals: dict[str, tuple[float, float]] = {}

    def submitted(self, job: Job, now_s: float) -> float:
        """Predicted seconds of running, by what is known now."""
        self._retrain(now_s)
        words = {"vc": job.virtual_cluster, "user": job.user, "name": job.workload.model}
        row = self._history.submitted(job.id, now_s, numbers={"gpus": float(job.devices)}, words=words)
        self._running[job.id] = _Seen(id=job.id, submit_s=now_s, gpus=float(job.devices), row=tuple(row))
        if self._model is None:
            recent = self._recent.get((job.virtual_cluster, job.devices)) or self._recent.get(None)
            self._intervals[job.id] = _held_by(recent or ())
            return float(np.median(recent)) if recent else self._setting.unknown_s
        features = np.array([row], np.float32)
        said = predict(self._model, features, None, loss=self._setting.loss, threads=1)
        latest_s = said.high[0] * INTERVAL_S if said.high[0] < self._model.start.cap else math.inf
        self._intervals[job.id] = float((said.low[0] - 1) * INTERVAL_S), float(latest_s)
        return float(said.point_s[0])

    def interval_s(self, job: Job) -> tuple[float, float]:
        """Between which times the job was expected to run with 90% when it was submitted; before there is a model, what
        the last finished ones that are asked then say of the next. Infinity above where that is open."""
        return self._intervals[job.id]

    def finished(self, job: Job, now_s: float) -> None:
        """The job has ended; from now on its duration (`job.duration_s`, what the trace says) is known."""
        self._history.finished(job.id, now_s, job.duration_s)
        seen = self._running.pop(job.id)
        del self._intervals[job.id]
        if self._setting.retrain_s is not None:
            self._done.append(replace(seen, finish_s=now_s, duration_s=job.duration_s))
        for key in (None, (job.virtual_cluster, job.devices)):
            self._recent.setdefault(key, deque(maxlen=LAST)).append(job.duration_s)

    def _retrain(self, now_s: float) -> None:
        setting = self._setting
        if setting.retrain_s is None:
            return
        if self._trained_s is None:
            self._trained_s = now_s
        if now_s < self._trained_s + setting.retrain_s:
            return
        self._trained_s = now_s
        if len(self._done) >= max(setting.least_jobs, LEAST_JOBS):
            prepared = self._prepared()
            if len(known_rows(prepared, now_s)[0]) >= LEAST_JOBS:
                self._model = train(prepared, until_s=now_s, seed=setting.seed, threads=setting.threads)

    def _prepared(self) -> Prepared:
        """All jobs so far, with the features that each had when it was submitted."""
        seen = sorted([*self._done, *self._running.values()], key=lambda job: (job.submit_s, job.id))
        submit, finish, duration = (
            np.array([getattr(job, name) for job in seen]) for name in ("submit_s", "finish_s", "duration_s")
        )
        jobs = make_jobs(
            ids=[job.id for job in seen],
            submit_s=submit,
            duration_s=duration,
            queue_s=np.where(np.isnan(duration), 0.0, finish - submit - duration),
            gpus=np.array([job.gpus for job in seen]),
        )
        return Prepared(
            jobs=jobs,
            cap=self._cap,
            columns=self._columns,
            features=np.array([job.row for job in seen], np.float32),
            interval=interval_of(duration, self._cap),
        )


def _held_by(recent: Collection[float]) -> tuple[float, float]:
    """From the next to the shortest to the next to the longest of so many that the next one lies between them with at
    least 90% if it is like them: of n, between two of them k apart with k / (n + 1). Open where they are too few."""
    ordered = sorted(recent)
    spare = math.floor((len(ordered) + 1) * 0.1)
    if spare < 1:
        return 0.0, math.inf
    below = spare // 2
    low_s = ordered[below - 1] if below else 0.0
    return low_s, ordered[len(ordered) - (spare - below)]
