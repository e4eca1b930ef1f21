"""One simulation of an experiment, as a function that another process can be sent."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.scheduling.experiments import EXPERIMENTS, ROUND_S, Inputs, mean_in, prepare
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.scheduling.bound import bound_run
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.settings import Settings

Run = dict[str, Any]
BOUND = "bound"
"""In the place of a policy: what none can beat."""


def run_task(task: tuple[str, str, int, str, str]) -> Run:
    """One simulation, in whatever process."""
    name, policy, seed, data, cells = task
    one = next(one for one in EXPERIMENTS if one.name == name)
    inputs = prepare(one, Path(data), Path(cells), seed)
    span_s = one.span_s[1] - one.span_s[0]
    if policy == BOUND:
        return {"policy": BOUND, "seed": seed} | _bounds(inputs, span_s, Path(cells))
    made = make_policy(policy.partition("@")[0], **one.options.get(policy, {}))
    started = time.process_time()
    result = simulate(inputs.jobs, inputs.pools, inputs.cells, made, settings=Settings(round_s=ROUND_S, series=True))
    took_s = time.process_time() - started
    inputs.cells.save(Path(cells))
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
        "decision_p99_cpu_s": result.timing.decision_p99_cpu_s,
    }


def _bounds(inputs: Inputs, span_s: float, kept: Path) -> Run:
    """The least mean JCT, and the greatest throughput averaged over the span of arrivals."""
    started = time.process_time()
    found = bound_run(inputs.jobs, inputs.pools, inputs.cells, until_s=span_s)
    inputs.cells.save(kept)
    first_s = min(job.submit_s for job in inputs.jobs)
    throughput = found.throughput_mean * (span_s - first_s) / span_s
    return {"jct_mean_s": found.jct_mean_s, "throughput": throughput, "cpu_s": time.process_time() - started}
