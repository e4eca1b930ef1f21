"""The weights of the mixture of completion times by plain loops over jobs and thresholds."""

from __future__ import annotations

import math

import numpy as np

from planner.many_jobs.jct.hazards import thresholds_told
from planner.many_jobs.jct.intervals import INTERVAL_S
from planner.many_jobs.jct.jobs import Floats, Ints
from planner.many_jobs.jct.mixture import MEMORIES, RATES, threshold_weights
from planner.many_jobs.jct.prepared import Prepared
from planner.shared.options.jct import Loss


def scores(experts: Floats, interval: Ints, loss: Loss, cap: int) -> Floats:
    """The whole score of each expert (a row) on each job (a column) that ended in its interval."""
    total = np.zeros(experts.shape[:2])
    for threshold, weight in zip(thresholds_told(cap).tolist(), threshold_weights(cap, loss).tolist(), strict=True):
        total += weight * (experts[:, :, threshold:].sum(axis=2) - (interval > threshold)) ** 2
    return total


def weights_at(prepared: Prepared, experts: Floats, loss: Loss, begin: Floats, row: int) -> Floats:
    """The weights of the experts when the job of `row` is submitted, all jobs teaching."""
    jobs, cap = prepared.jobs, prepared.cap
    thresholds, weights = thresholds_told(cap).tolist(), threshold_weights(cap, loss).tolist()
    now = jobs.submit_s[row]
    sums = np.zeros((len(MEMORIES), len(begin)))
    for job in range(len(jobs)):
        if jobs.submit_s[job] > now:
            continue
        seen, interval = float(jobs.seen_finish_s[job]), float(prepared.interval[job])
        for number, threshold in enumerate(thresholds):
            ends = math.isfinite(seen) and interval <= threshold and interval < cap
            first_of_that = ends and (number == 0 or interval > thresholds[number - 1])
            if ends and (jobs.killed[job] or not first_of_that):
                continue
            time_s = seen if ends else np.nextafter(jobs.start_s[job] + threshold * INTERVAL_S, np.inf)
            if time_s > now:
                continue
            pieces = zip(thresholds[number:], weights[number:], strict=True) if ends else [(threshold, weights[number])]
            lost = np.zeros(len(begin))
            for each, weight in pieces:
                lost += weight * (experts[:, job, each:].sum(axis=1) - (not ends)) ** 2
            since = sum(time_s <= jobs.submit_s[later] for later in range(row))
            for place, memory in enumerate(MEMORIES):
                sums[place] += lost * memory**since
    members = [begin * np.exp(-rate * (row_sums - row_sums.min())) for rate in RATES for row_sums in sums]
    return np.asarray(np.mean([member / member.sum() for member in members], axis=0))
