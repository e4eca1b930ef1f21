"""One simulation of an experiment, as a function that another process can be sent."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.scheduling.experiments import EXPERIMENTS, ROUND_S, mean_in, prepare
from planner.scheduling.catalogue import make_policy
from planner.simulation.engine import simulate
from planner.simulation.settings import Settings

Run = dict[str, Any]


def run_task(task: tuple[str, str, int, str, str]) -> Run:
    """One simulation, in whatever process."""
    name, policy, seed, data, cells = task
    one = next(one for one in EXPERIMENTS if one.name == name)
    inputs = prepare(one, Path(data), Path(cells), seed)
    made = make_policy(policy.partition("@")[0], **one.options.get(policy, {}))
    started = time.process_time()
    result = simulate(inputs.jobs, inputs.pools, inputs.cells, made, settings=Settings(round_s=ROUND_S, series=True))
    took_s = time.process_time() - started
    inputs.cells.save(Path(cells))
    span_s = one.span_s[1] - one.span_s[0]
    ends = np.asarray(result.table.end_s)
    found = asdict(result.summary)
    assert not result.summary.violations
    return found | {
        "policy": policy,
        "seed": seed,
        "throughput": mean_in(span_s, result.series["time_s"], result.series["throughput"]),
        "in_span": int((ends[np.isfinite(ends)] <= span_s).sum()),
        "cpu_s": took_s,
        "decision_p99_s": result.timing.decision_p99_s,
    }
