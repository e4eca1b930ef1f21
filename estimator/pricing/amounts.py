"""Seconds and bytes of one plan, or of many at once: the formulas are written once for both."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Amount = float | Floats
"""Of one, or of many at once."""


def most(one: Amount, other: Amount) -> Amount:
    """Return the greater of two, place by place."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return max(one, other)


def least(one: Amount, other: Amount) -> Amount:
    """Return the lesser of two, place by place."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.minimum(one, other)
    return min(one, other)


def norm_where_both(one: Amount, other: Amount, power: float) -> Amount:
    """Return the p-norm of two; of what is 0 in either, `one` as it is."""
    longer, shorter = most(one, other), least(one, other)
    if not isinstance(longer, np.ndarray):
        return longer * (1 + (shorter / longer) ** power) ** (1 / power) if shorter > 0 else one
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return np.where(shorter > 0, longer * (1 + ratio**power) ** (1 / power), one)


def ratio_or_one(one: Amount, other: Amount) -> Amount:
    """Return one over the other, 1 where there is nothing of the other."""
    if not isinstance(other, np.ndarray):
        return one / other if other > 0 else 1.0
    return np.divide(one, other, out=np.ones_like(other), where=other > 0)
