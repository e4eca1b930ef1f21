"""What is simulated: which jobs of which trace on which cluster under which policies, and what the paper says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from planner.many_jobs.jobs.records import Job, Pool
from planner.many_jobs.scheduling.cell_book import EstimatedCells, common_dtype, pools_of
from planner.many_jobs.traces.assign import assign_workloads
from planner.many_jobs.traces.read import read_trace
from planner.many_jobs.traces.records import Trace, window
from profiles.cluster_file import load_cluster

HOUR, DAY, WEEK = 3600.0, 86400.0, 7 * 86400.0
TESTBED = "a40:16x2+a10:16x2"
LARGE = "a100-40gb:80x4+a40:160x2+a10:160x2+v100-32gb:20x16"
"""Crius, section 8.1 and table 1."""
ROUND_S = 300.0
TODAY = ("fcfs", "easy-backfill", "priority", "quota", "gang")
BASELINES = ("fcfs", "gandiva", "gavel", "elasticflow-ls")
"""The paper's (section 8.1)."""
OTHERS = ("sjf", "tiresias", "pollux", "sia")
WITH_CRUX = ("muri", "muri-s", "hived")
"""Those that Crux has beside itself (its section 6.4, `python -m bench.contention figure-25`)."""
Comparison = Literal["jct", "queueing", "throughput", "peak", "finished", "restarts", "deadlines"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says: `figure` of one policy beside another's (empty: by itself) is `value`: a ratio of ours to
    theirs, or a number. Weakest: beside whichever baseline is weakest."""

    figure: Comparison
    policy: str
    beside: str
    value: float
    where: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Jobs submitted in `span_s` of the trace `source`, under `policies` (with options).

    `load`: durations are scaled by one factor so that the jobs, as they were submitted, would keep all devices busy so
    much of the span; None: as they are. `deadlines`: drawn between so many durations.
    """

    name: str
    title: str
    cluster: str
    source: str
    span_s: tuple[float, float]
    policies: tuple[str, ...]
    options: Mapping[str, Mapping[str, int | float | str]] = field(default_factory=dict)
    load: float | None = None
    deadlines: tuple[float, float] | None = None
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()


PHILLY, LINGJUN = "philly.csv.gz", "crux_lingjun2023.csv.gz"
TESTBED_SPAN = (1463 * HOUR, 1469 * HOUR)
LARGE_SPAN = (90 * DAY, 104 * DAY)

EXPERIMENTS = (
    Experiment(
        name="testbed",
        title="Crius 8.3: 64 devices, six hours of Philly (the paper's has 244 jobs)",
        cluster=TESTBED,
        source=PHILLY,
        span_s=TESTBED_SPAN,
        load=1.5,
        policies=(*BASELINES, *OTHERS, *WITH_CRUX, "easy-backfill", "crius", "marginal", "marginal-now"),
        claims=(
            Claim(figure="queueing", policy="crius", beside="weakest", value=1 - 0.710, where="8.3, up to"),
            Claim(figure="jct", policy="crius", beside="weakest", value=1 - 0.489, where="8.3, up to"),
            Claim(figure="throughput", policy="crius", beside="weakest", value=1.49, where="8.3, up to"),
            Claim(figure="peak", policy="crius", beside="weakest", value=1.36, where="8.3, up to"),
        ),
        notes=("the window's own work is 3.9 times what 64 devices do in six hours; scaled to 1.5 times",),
    ),
    Experiment(
        name="large",
        title="Crius 8.4: 1,280 devices of four types, two weeks of Philly",
        cluster=LARGE,
        source=PHILLY,
        span_s=LARGE_SPAN,
        policies=(*BASELINES, *WITH_CRUX, "crius", "marginal", "marginal-now"),
        claims=(
            Claim(figure="jct", policy="crius", beside="fcfs", value=1 - 0.813, where="8.4"),
            Claim(figure="jct", policy="crius", beside="elasticflow-ls", value=1 - 0.758, where="8.4"),
            Claim(figure="jct", policy="crius", beside="gandiva", value=1 - 0.801, where="8.4"),
            Claim(figure="jct", policy="crius", beside="gavel", value=1 - 0.664, where="8.4"),
            Claim(figure="throughput", policy="crius", beside="weakest", value=1.54, where="8.4, up to"),
            Claim(figure="peak", policy="crius", beside="weakest", value=1.57, where="8.4, up to"),
            Claim(figure="finished", policy="crius", beside="weakest", value=1.29, where="8.4, up to"),
            Claim(figure="restarts", policy="crius", beside="", value=2.29, where="8.4"),
        ),
    ),
    Experiment(
        name="moderate",
        title="Crius 8.4, other traces: a day of moderate load (the paper's is Helios Venus; this is Philly)",
        cluster=LARGE,
        source=PHILLY,
        span_s=(84 * DAY, 85 * DAY),
        policies=(*BASELINES, *WITH_CRUX, "crius", "marginal", "marginal-now"),
        claims=(Claim(figure="jct", policy="crius", beside="weakest", value=1 - 0.647, where="8.4, figure 18"),),
    ),
    Experiment(
        name="low",
        title="Crius 8.4, other traces: a day of low load (the paper's is PAI; this is Alibaba's lingjun)",
        cluster=LARGE,
        source=LINGJUN,
        span_s=(5 * DAY, 6 * DAY),
        policies=(*BASELINES, *WITH_CRUX, "crius", "marginal", "marginal-now"),
        claims=(Claim(figure="jct", policy="crius", beside="weakest", value=1 - 0.663, where="8.4, figure 18"),),
    ),
    Experiment(
        name="deadlines",
        title="Crius 8.5: deadlines of 1 to 3 durations, six hours of Philly on 64 devices",
        cluster=TESTBED,
        source=PHILLY,
        span_s=TESTBED_SPAN,
        load=1.5,
        deadlines=(1.0, 3.0),
        policies=("elasticflow", "crius-ddl", "marginal-ddl"),
        claims=(
            Claim(figure="deadlines", policy="crius-ddl", beside="elasticflow", value=1.69, where="8.5"),
            Claim(figure="jct", policy="crius-ddl", beside="elasticflow", value=1 - 0.331, where="8.5"),
            Claim(figure="throughput", policy="crius-ddl", beside="elasticflow", value=1.72, where="8.5"),
        ),
    ),
    Experiment(
        name="ablation",
        title="Crius 8.6: without adaptivity (NA), without heterogeneity (NH), a day of Philly on 1,280 devices",
        cluster=LARGE,
        source=PHILLY,
        span_s=(90 * DAY, 91 * DAY),
        policies=("crius", "crius-na", "crius-nh"),
        claims=(
            Claim(figure="jct", policy="crius-na", beside="crius", value=2.54, where="8.6"),
            Claim(figure="jct", policy="crius-nh", beside="crius", value=3.53, where="8.6"),
        ),
    ),
    Experiment(
        name="depth",
        title="Crius 8.7: search depth, six hours of Philly on 64 devices",
        cluster=TESTBED,
        source=PHILLY,
        span_s=TESTBED_SPAN,
        load=1.5,
        policies=("crius@1", "crius@2", "crius@3", "crius@4", "crius@5"),
        options={f"crius@{depth}": {"depth": depth} for depth in range(1, 6)},
        claims=(
            Claim(
                figure="jct", policy="crius@5", beside="crius@1", value=1 - 0.146, where="8.7, deepest to shallowest"
            ),
            Claim(figure="throughput", policy="crius@5", beside="crius@1", value=1.0103, where="8.7"),
        ),
    ),
    Experiment(
        name="today",
        title="What people run today, six hours of Philly on 64 devices",
        cluster=TESTBED,
        source=PHILLY,
        span_s=TESTBED_SPAN,
        load=1.5,
        policies=(*TODAY, "crius", "marginal", "marginal-now"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a simulation takes, and how much of the span the jobs as submitted would keep all devices busy."""

    jobs: tuple[Job, ...]
    pools: Mapping[str, Pool]
    cells: EstimatedCells
    offered: float
    factor: float


@lru_cache(maxsize=2)
def _read(path: Path) -> Trace:
    return read_trace(path)


@lru_cache(maxsize=2)
def _book(cluster: str, kept: Path) -> EstimatedCells:
    place = load_cluster(cluster)
    book = EstimatedCells(cluster=place, pools=pools_of(place))
    book.load(kept)
    return book


def prepare(one: Experiment, data: Path, kept: Path, seed: int) -> Inputs:
    """The jobs, with models, pools and deadlines drawn by `seed`. `kept` is a folder of Cells from earlier runs."""
    book = _book(one.cluster, kept)
    trace = window(_read(data / "traces" / one.source), *one.span_s)
    devices = sum(pool.devices for pool in book.pools.values())
    largest = max(pool.devices for pool in book.pools.values())
    span_s = one.span_s[1] - one.span_s[0]
    work = sum(row.duration_s * min(row.gpus, largest) for row in trace.rows)
    factor = 1.0 if one.load is None else one.load * devices * span_s / work
    rows = tuple(replace(row, duration_s=row.duration_s * factor) for row in trace.rows)
    jobs = assign_workloads(
        replace(trace, rows=rows),
        pools=book.pools,
        cells=book,
        seed=seed,
        counts="powers",
        oversize="clip",
        deadlines=one.deadlines,
        dtype=common_dtype(book.cluster),
    )
    book.save(kept)
    offered = work * factor / (devices * span_s)
    return Inputs(jobs=jobs, pools=book.pools, cells=book, offered=offered, factor=factor)


def mean_in(span_s: float, times: Sequence[float], values: Sequence[float]) -> float:
    """The time average over the first `span_s` seconds of what holds from each time on."""
    ends = np.clip(np.append(np.asarray(times)[1:], np.inf), 0.0, span_s)
    lasts = np.maximum(ends - np.clip(np.asarray(times), 0.0, span_s), 0.0)
    return float((lasts * np.asarray(values)).sum() / span_s)
