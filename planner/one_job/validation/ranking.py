"""Whether the estimates put plans into the right order: Kendall's tau and the regret of taking the predicted best.

Compared are plans of one configuration (model, device, devices, global batch, sequence length), where at least three
different ones were measured. A plan measured several times counts once, with the median of its times.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from planner.one_job.validation.results import Key, RowResult
from profiles.records import dataclass

LEAST_PLANS = 3

Estimate = Callable[[RowResult], float | None]
"""Seconds that a method estimates for a row, None if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Over `sets` of plans: tau-b averaged by pairs of plans, and the regret of the predicted best plan of each set."""

    sets: int
    plans: int
    pairs: int
    kendall_tau: float
    regret_mean: float
    regret_worst: float
    regret_worst_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    measured_s: float
    estimated_s: float
    ids: tuple[str, ...]


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two equally long lists: 1 in the same order, -1 in the opposite one, ties allowed.

    tau_b = (C - D) / sqrt((n0 - n1) (n0 - n2)) with C concordant and D discordant of n0 = n (n - 1) / 2 pairs, n1 and
    n2 of them tied in either list (Kendall, "The treatment of ties in ranking problems", Biometrika 33, 1945). D is
    counted as the inversions of one list sorted by the other (Knight, JASA 61, 1966). None where a list is all ties.
    """
    if len(first) != len(second):
        raise ValueError(f"kendall_tau: {len(first)} and {len(second)} values, expected as many")
    points = sorted(zip(first, second, strict=True))
    discordant = 0
    seen: list[float] = []
    for _, value in points:
        discordant += len(seen) - bisect_right(seen, value)
        insort(seen, value)
    n0 = math.comb(len(points), 2)
    n1, n2, n3 = (_tied_pairs(values) for values in (first, second, points))
    if n0 in (n1, n2):
        return None
    concordant = n0 - n1 - n2 + n3 - discordant
    return (concordant - discordant) / (math.sqrt(n0 - n1) * math.sqrt(n0 - n2))


def rank_plans(rows: Iterable[RowResult], estimate: Estimate) -> Ranking | None:
    """How well `estimate` orders the plans of each configuration among `rows`; None if no set has three plans.

    Estimates that are all alike say nothing of the order: tau 0. A set whose measured times are all alike has no order
    and is left out. Of several equally good predicted plans any may be taken: their mean time is what one gets.
    """
    taus, weights, regrets = [], [], []
    plans_in_all = 0
    for plans in _plan_sets(rows, estimate):
        measured = [plan.measured_s for plan in plans]
        if min(measured) == max(measured):
            continue
        tau = kendall_tau(measured, [plan.estimated_s for plan in plans])
        taus.append(0.0 if tau is None else tau)
        weights.append(math.comb(len(plans), 2))
        regrets.append(_regret(plans))
        plans_in_all += len(plans)
    if not taus:
        return None
    worst, worst_ids = max(regrets)
    return Ranking(
        sets=len(taus),
        plans=plans_in_all,
        pairs=sum(weights),
        kendall_tau=math.fsum(tau * weight for tau, weight in zip(taus, weights, strict=True)) / sum(weights),
        regret_mean=fmean(regret for regret, _ in regrets),
        regret_worst=worst,
        regret_worst_ids=worst_ids,
    )


def _plan_sets(rows: Iterable[RowResult], estimate: Estimate) -> list[list[_Plan]]:
    sets: dict[Key, dict[Key, list[tuple[float, float, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        estimated = estimate(row)
        if row.measured_iteration_time_s is not None and estimated is not None:
            sets[row.configuration][row.plan].append((row.measured_iteration_time_s, estimated, row.id))
    return [
        [
            _Plan(median(run[0] for run in runs), median(run[1] for run in runs), tuple(run[2] for run in runs))
            for runs in plans.values()
        ]
        for plans in sets.values()
        if len(plans) >= LEAST_PLANS
    ]


def _regret(plans: list[_Plan]) -> tuple[float, tuple[str, ...]]:
    """Measured time of the predicted best over the measured best, minus 1; and the ids of the plan that was taken."""
    best_estimate = min(plan.estimated_s for plan in plans)
    taken = [plan for plan in plans if plan.estimated_s == best_estimate]
    best = min(plan.measured_s for plan in plans)
    return fmean(plan.measured_s for plan in taken) / best - 1, taken[0].ids


def _tied_pairs(values: Iterable[object]) -> int:
    return sum(math.comb(count, 2) for count in Counter(values).values())
