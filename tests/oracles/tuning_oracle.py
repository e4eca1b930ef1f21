"""Brute force for `planner.one_job.tuning`: measure all, try every plan, condition on one measurement after the
other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from estimator.cells.cell import CellEstimate, CellRules, assemble_cell
from estimator.cells.held_stages import StagePlace
from estimator.cells.stage_pricing import StagePricing
from planner.one_job.tuning.measured import ErrorModel
from planner.one_job.tuning.records import Candidate, Measurement, P
from profiles.vocabulary import Infeasible
from tests.oracles.cell_oracle import seconds_of_setup


def fastest(measured_s: Sequence[float | None]) -> float | None:
    """Measure all."""
    return min((seconds for seconds in measured_s if seconds is not None), default=None)


def is_in_half(dp: int, tp: int, favour: str) -> bool:
    """A plan is in the half of its side unless a plan of the same stage lies nearer to sqrt(N), or on it, beyond it."""
    devices = dp * tp
    degree = tp if favour == "dp" else dp
    return not any(devices % other == 0 and other * other >= devices for other in range(1, degree))


def best_in_halves(
    pricing: StagePricing, cell: CellEstimate, places: Sequence[StagePlace], rules: CellRules
) -> tuple[float, int]:
    """The least seconds by formula of all plans of the halves, each assembled by itself; and how many of them, told
    apart by degrees, can be had."""
    choices, plans = [], 1
    for favour, place in zip(cell.assembly, places, strict=True):
        count = len(place.slots)
        ways = [(count // tp, tp) for tp in range(1, count + 1) if count % tp == 0]
        options = [pricing.options(place, dp=dp, tp=tp) for dp, tp in ways if is_in_half(dp, tp, favour)]
        had = [some for some in options if not isinstance(some, Infeasible)]
        plans *= len(had)
        choices.append([(favour, option) for some in had for option in some])
    setups = (assemble_cell(pricing, places, [(one,) for one in plan], rules=rules).setup for plan in product(*choices))
    return min(seconds_of_setup(pricing, setup, rules.formula) for setup in setups), plans


def condition_in_turn(
    candidates: Sequence[Candidate[P]], done: Sequence[Measurement], errors: ErrorModel
) -> tuple[list[float], list[float]]:
    """Centre and scale of each candidate's log seconds: one measurement after the other is taken in,

    mean_j += K_ij / K_ii e,  K_jk = (K_jk - K_ij K_ik / K_ii) (f + e^2 / K_ii) / (f + 1),  f += 1

    with e = log t_i - mean_i.
    """
    count, freedom = len(candidates), errors.freedom
    spread = max(one.log_spread for one in candidates)
    mean = [math.log(one.estimated_s) for one in candidates]
    scales = np.empty((count, count))
    for i, one in enumerate(candidates):
        for j, other in enumerate(candidates):
            apart = math.dist(one.traits, other.traits) ** 2
            shared = errors.common + errors.alike * math.exp(-apart / 2) + (errors.own if i == j else 0.0)
            scales[i, j] = spread**2 * shared
    for measurement in done:
        if measurement.seconds is None:
            continue
        i = measurement.number
        gain = scales[i] / scales[i, i]
        surprise = math.log(measurement.seconds) - mean[i]
        mean = [old + float(step) * surprise for old, step in zip(mean, gain, strict=True)]
        wider = (freedom + surprise**2 / scales[i, i]) / (freedom + 1)
        scales = (scales - np.outer(gain, scales[i])) * wider
        freedom += 1
    return mean, [math.sqrt(max(0.0, scales[i, i])) for i in range(count)]
