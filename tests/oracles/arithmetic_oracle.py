"""Rates of jobs beside each other by the formula of `planner.contention.policies.arithmetic_kernel`, read off it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import exp, prod

from planner.contention.policies.loads import LinkSeconds, link_seconds
from planner.contention.policies.pair import first_byte_s
from planner.contention.policies.records import Contender, View


def every_way(job: Contender) -> Iterator[tuple[int, ...]]:
    """All choices of a path for each connection."""
    yield from product(*(range(len(options)) for options in job.paths))


def arithmetic_rates(view: View, seconds: Sequence[LinkSeconds], levels: Sequence[int], rounds: int) -> list[float]:
    """Level by level; the first round takes what comes out, later ones the mean with what was, job after job."""
    wire = [max(its.values(), default=0.0) for its in seconds]
    least = [
        min(max(link_seconds(replace(view, jobs=(job,)), [ways])[0].values(), default=0.0) for ways in every_way(job))
        for job in view.jobs
    ]
    rates = [1 / job.alone_s for job in view.jobs]

    def piece(j: int, k: int) -> float:
        """Seconds for which j loses its pace to each of k's pieces."""
        shares = [(seconds[j][e] / wire[j], seconds[k][e] / wire[k]) for e in seconds[j].keys() & seconds[k].keys()]
        return wire[k] * max([0.0, *((mine + its - 1) / mine for mine, its in shares)])

    def rate(j: int) -> float:
        job = view.jobs[j]
        others = [k for k in range(len(rates)) if k != j and wire[k] > 0 and piece(j, k) > 0] if wire[j] > 0 else []
        before = [k for k in others if levels[k] < levels[j]]
        left = max(prod(max(1 - piece(j, k) * rates[k], 1e-3) for k in before), 1e-3)
        shared = sum(piece(j, k) * rates[k] for k in others if levels[k] == levels[j])
        waits_s = sum(piece(j, k) ** 2 * rates[k] / 2 for k in before)
        more_s = wire[j] / left * (1 + shared) - least[j] + waits_s / left
        if more_s <= 0:
            return 1 / job.alone_s
        compute_s = sum(step.times * step.compute_s for step in job.steps)
        slack_s = 0.0
        if job.alone_s <= compute_s:
            slack_s = max(job.alone_s - least[j] - first_byte_s(job.steps), 0)
        return min(1 / (job.alone_s + more_s * exp(-slack_s / more_s)), left / wire[j])

    for level in sorted(set(levels)):
        for number in range(rounds):
            for j in (j for j in range(len(rates)) if levels[j] == level):
                rates[j] = rate(j) if number == 0 else 0.5 * (rate(j) + rates[j])
    return rates
