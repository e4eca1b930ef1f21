"""Tuning as records: candidate plans, who measures them, what was measured; and the loop that asks for measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from profiles.records import dataclass

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[P]):
    """A plan that may be chosen, before it is measured.

    `log_spread` is the standard deviation of log(measured / estimated); `traits` are where the plan lies among others
    (`planner.one_job.tuning.traits`): the nearer two plans are, the more alike their estimates err.
    """

    plan: P
    estimated_s: float
    log_spread: float
    traits: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.estimated_s < math.inf or not 0 < self.log_spread < math.inf:
            raise ValueError(
                f"candidate: estimated_s={self.estimated_s}, log_spread={self.log_spread}; expected finite, above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What a measurement comes to where the plan does not run."""

    reason: str = ""


class Oracle(Protocol[P_contra]):
    """Who measures: a machine, or a table of what was measured on one."""

    def measure(self, plan: P_contra) -> float | OutOfMemory:
        """Seconds of an iteration."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What became of the candidate of that number; `seconds` None: it ran out of memory."""

    number: int
    seconds: float | None


Ask = Callable[[Sequence[Candidate[P]], Sequence[Measurement]], int | None]
"""The number of the candidate to measure next, None where the choice is final: a pure function of what is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Measurements in their order. `final`: no other was asked for; else what may be spent was spent."""

    measurements: tuple[Measurement, ...]
    final: bool

    @property
    def best(self) -> Measurement | None:
        """The fastest plan measured, of equals the first; None where none ran."""
        ran = [measured for measured in self.measurements if measured.seconds is not None]
        return min(ran, key=lambda measured: measured.seconds or 0.0, default=None)


def tune(
    candidates: Sequence[Candidate[P]],
    oracle: Oracle[P],
    ask: Ask[P],
    *,
    may_measure: Callable[[Candidate[P]], bool] = lambda _: True,
) -> Tuning:
    """Measures what `ask` asks for until it asks no more, or until `may_measure` refuses one."""
    done: list[Measurement] = []
    while (number := ask(candidates, done)) is not None:
        if any(measured.number == number for measured in done):
            raise RuntimeError(f"candidate {number} is asked for again")
        if not may_measure(candidates[number]):
            return Tuning(measurements=tuple(done), final=False)
        outcome = oracle.measure(candidates[number].plan)
        done.append(Measurement(number=number, seconds=None if isinstance(outcome, OutOfMemory) else outcome))
    return Tuning(measurements=tuple(done), final=True)
