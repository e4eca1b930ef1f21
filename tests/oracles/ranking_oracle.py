"""Brute force for `planner.one_job.validation.ranking` and `statistics`: every pair of plans, every way to cut a
list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """By the definition, pair by pair; None where one list is all ties."""
    signs = [
        (math.copysign(a != b, b - a), math.copysign(c != d, d - c))
        for (a, c), (b, d) in combinations(zip(first, second, strict=True), 2)
    ]
    score = sum(x * y for x, y in signs)
    spread = sum(x * x for x, _ in signs) * sum(y * y for _, y in signs)
    return score / math.sqrt(spread) if spread else None


def least_constant_error(ideal: Sequence[float], measured: Sequence[float]) -> float:
    """The least mean absolute relative error that ideal * constant can have: the best constant fits one row exactly."""
    return min(
        sum(abs(i * (m / j) / n - 1) for i, n in zip(ideal, measured, strict=True)) / len(ideal)
        for j, m in zip(ideal, measured, strict=True)
    )
