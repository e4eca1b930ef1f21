"""Titan's experiment 4: profit, at each arrival, of a trace with what scattering costs (`bench.machines.loads`).

Arrivals, sizes and durations are the trace's, on machines where hardly anybody waits. "Once a job arrives, we decide
its worker placement and calculate the profit rate at this timestamp": K P / (N T), K the jobs that run, P the price of
the job, N the machines in use, T the duration of jobs; the total is the sum over the timestamps. P is the job's
device-hours as traced, whatever the placement makes of them, and T the hours that it runs under the rule. The paper
does not say of which jobs these are: `as_printed` takes means of those that run, `job_by_job` the sum of each one's
P / T, over N.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.machines.loads import simulate_under
from planner.many_jobs.jobs.records import Job

Column = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Profit:
    """Means over the arrivals (of the nodes: over time), in device-hours an hour of a machine."""

    nodes: float
    jct_s: float
    as_printed: float
    job_by_job: float
    cpu_s: float


def measure_profit(jobs: Sequence[Job], rule: str, nodes: int) -> Profit:
    """Return the profit of the jobs under a rule (`bench.machines.loads.rule_of`)."""
    began_s = time.process_time()
    result = simulate_under(jobs, rule, nodes, series=True)
    starts_s, ends_s = np.asarray(result.table.start_s), np.asarray(result.table.end_s)
    price_h = np.array([job.devices * job.duration_s / 3600 for job in result.jobs])
    runs_h = (ends_s - starts_s) / 3600
    at_s = np.array([job.submit_s for job in result.jobs])
    row = np.searchsorted(np.asarray(result.series["time_s"]), at_s, side="right") - 1
    in_use = np.asarray(result.series["nodes_in_use"])[row]

    def of_running(values: Column) -> Column:
        """The sum of a figure over those that run, at each arrival."""
        return _summed_up_to(starts_s, values, at_s) - _summed_up_to(ends_s, values, at_s)

    running = of_running(np.ones(len(at_s)))
    price, run_h, each = of_running(price_h), of_running(runs_h), of_running(price_h / runs_h)
    some = running > 0.5
    printed = running[some] * price[some] / (in_use[some] * run_h[some])
    summary = result.summary
    return Profit(
        nodes=summary.nodes_in_use_mean or 0.0,
        jct_s=summary.jct_mean_s or 0.0,
        as_printed=float(printed.mean()),
        job_by_job=float((each[some] / in_use[some]).mean()),
        cpu_s=time.process_time() - began_s,
    )


def _summed_up_to(times_s: Column, values: Column, at_s: Column) -> Column:
    """The sum of the values whose times are not after each of `at_s`."""
    order = np.argsort(times_s, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(values[order])])
    return sums[np.searchsorted(times_s[order], at_s, side="right")]
