"""Coordinate search: a fit without gradients, for objectives with kinks such as tiles and waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis(Generic[Value]):
    """One parameter of a record: its range, how to read it and how to change it."""

    name: str
    low: float
    high: float
    get: Callable[[Value], float]
    put: Callable[[Value, float], Value]


def search_coordinates(
    start: Value, axes: Sequence[Axis[Value]], objective: Callable[[Value], float], *, rounds: int = 60
) -> tuple[Value, float]:
    """The best value found, and its objective: each axis in turn tries a step up and down, which grows where it helps
    and halves where it does not. Deterministic; it ends after `rounds` or when all steps are below 0.1% of their range.
    """
    best, least = start, objective(start)
    steps = [(axis.high - axis.low) / 8 for axis in axes]
    for _ in range(rounds):
        for i, axis in enumerate(axes):
            for sign in (1, -1):
                trial = axis.put(best, min(axis.high, max(axis.low, axis.get(best) + sign * steps[i])))
                value = objective(trial)
                if value < least:
                    best, least = trial, value
                    steps[i] *= 1.5
                    break
            else:
                steps[i] /= 2
        if all(step < (axis.high - axis.low) / 1000 for step, axis in zip(steps, axes, strict=True)):
            break
    return best, least
