"""What a worker of a job computes and sends, and how both are scaled."""

from __future__ import annotations

from functools import cache

import cellplan
from bench.testbed.machines.moves import core_of
from bench.testbed.machines.seats import SAMPLES, WORKERS
from planner.many_jobs.traces.assign import count_parameters
from profiles.records import dataclass

DEVICE = "rtx-3090"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Links have `rates` of their rates, and everything takes `slow` times as long: a job sends `rates` times `slow` of
    its bytes."""

    rates: float
    slow: float


@cache
def compute_s(model: str) -> float:
    """Return the seconds of an iteration of one worker, modelled."""
    found = cellplan.estimate(model, cluster=f"{DEVICE}:1x1", global_batch=SAMPLES, dtype="fp32", dp=1, tp=1, pp=1)
    return float(found.to_dict()["estimate"]["iteration_time_s"])


@cache
def gradient_elements(model: str, scale: Scale) -> int:
    """Return the fp32 gradients that a worker sends, so many that they can be halved for every number of workers."""
    parts = core_of(max(WORKERS))
    return max(1, round(count_parameters(model) * scale.rates * scale.slow / parts)) * parts
