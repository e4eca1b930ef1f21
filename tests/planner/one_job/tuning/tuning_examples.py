"""Groups of made-up candidates for the tests of tuning, and an oracle that counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from planner.one_job.tuning.records import Candidate, OutOfMemory


@dataclass
class Counting:
    """Measures candidate `i`, whose plan is the number i, and remembers what was asked."""

    measured_s: Sequence[float | None]
    asked: list[int] = field(default_factory=list)

    def measure(self, plan: int) -> float | OutOfMemory:
        self.asked.append(plan)
        seconds = self.measured_s[plan]
        return OutOfMemory() if seconds is None else seconds


def make_candidates(
    estimated_s: Sequence[float], *, spread: float = 0.1, traits: Sequence[tuple[float, ...]] | None = None
) -> tuple[Candidate[int], ...]:
    """Candidates numbered from 0; without `traits` all at distance 3 of each other or more."""
    return tuple(
        Candidate(
            plan=number,
            estimated_s=seconds,
            log_spread=spread,
            traits=(3.0 * number,) if traits is None else traits[number],
        )
        for number, seconds in enumerate(estimated_s)
    )


@st.composite
def groups(draw: st.DrawFn) -> tuple[tuple[Candidate[int], ...], list[float | None]]:
    """Candidates and what measuring each comes to: a common factor, an error of its own, or out of memory."""
    count = draw(st.integers(1, 8))
    common = draw(st.floats(-0.3, 0.3))
    candidates, measured = [], []
    for number in range(count):
        estimated_s = math.exp(draw(st.floats(-1.0, 1.0)))
        spread = draw(st.floats(0.02, 0.5))
        traits = (draw(st.integers(0, 3)) / 1.0, draw(st.integers(0, 2)) / 3.0)
        candidates.append(Candidate(plan=number, estimated_s=estimated_s, log_spread=spread, traits=traits))
        own = draw(st.floats(-2.0, 2.0)) * spread
        measured.append(None if draw(st.integers(0, 7)) == 0 else estimated_s * math.exp(common + own))
    return tuple(candidates), measured
