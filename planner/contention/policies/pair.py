"""Two jobs on one link, one of them first: what each of them sends and computes (Crux, section 4.2).

A job computes `compute_s` in an iteration and has the wire for `wire_s`, in one piece if nobody disturbs, from
`begins_s` on. The first job runs as if alone, so that its time on the wire is known for ever; the second takes what is
left of it. When its bytes have gone is arithmetic, and no event is played.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from math import floor

from estimator.network.steps import Step
from planner.contention.policies.records import Contender
from profiles.records import dataclass

MOST_KNOWN = 4096
"""So many pairs are kept for who asks again, as every policy does that ranks by the same patterns."""
ITERATIONS = 400
"""After so many iterations of the second job without a state that recurs, its rate over the later half is the rate."""
SAME_PHASE = 1e-9
"""Two phases of the first job, over its iteration, that differ by no more are the same."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """An iteration: it ends when the compute is over and the bytes have gone."""

    compute_s: float
    begins_s: float
    wire_s: float

    def __post_init__(self) -> None:
        """Raise ValueError for bytes that go before the iteration, or after its compute."""
        if not (0 <= self.begins_s <= self.compute_s and self.wire_s > 0):
            raise ValueError(f"compute {self.compute_s} s, bytes from {self.begins_s} s on for {self.wire_s} s")

    @property
    def alone_s(self) -> float:
        """Of an iteration that nobody disturbs."""
        return max(self.compute_s, self.begins_s + self.wire_s)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds on the wire and of compute, of the first job and of the second; in a second, or in a window."""

    wire_s: tuple[float, float]
    compute_s: tuple[float, float]


def pattern_of(job: Contender, wire_s: float) -> Pattern:
    """Return the job as one stretch of compute and one on the wire (the simple pattern of section 7.1): whatever of an
    iteration alone is neither hidden nor on the wire counts as compute."""
    compute_s = sum(step.times * step.compute_s for step in job.steps)
    if job.alone_s > compute_s:
        begins_s = max(job.alone_s - wire_s, 0.0)
        return Pattern(compute_s=max(compute_s, begins_s), begins_s=begins_s, wire_s=wire_s)
    begins_s = min(first_byte_s(job.steps), max(compute_s - wire_s, 0.0))
    return Pattern(compute_s=compute_s, begins_s=begins_s, wire_s=wire_s)


def first_byte_s(steps: tuple[Step, ...]) -> float:
    """Return how far into an iteration its first transfer begins."""
    before_s = 0.0
    for step in steps:
        if step.transfers:
            return before_s + step.begins_s
        before_s += step.times * step.compute_s
    return before_s


@lru_cache(maxsize=MOST_KNOWN)
def in_the_long_run(first: Pattern, second: Pattern) -> Spent:
    """Return what both spend in a second of the long run: from one state to where it recurs."""
    iterations_per_s = _long_run_rate(first, second)
    return Spent(
        wire_s=(first.wire_s / first.alone_s, second.wire_s * iterations_per_s),
        compute_s=(first.compute_s / first.alone_s, second.compute_s * iterations_per_s),
    )


def in_a_window(first: Pattern, second: Pattern, window_s: float, *, communication_first: bool) -> Spent:
    """Return what both spend in the first `window_s`, where they begin together: with their compute, or with their
    bytes (as in figure 11)."""
    wire, compute = _Wire(first, _shift_s(first, communication_first)), [0.0, 0.0]
    start_s = wire.shift_s
    while start_s < window_s:
        compute[0] += _overlap_s(start_s, start_s + first.compute_s, window_s)
        start_s += first.alone_s
    sent_s = 0.0
    for start_s, ready_s, end_s in _iterations(second, wire, _shift_s(second, communication_first)):
        if start_s >= window_s:
            break
        compute[1] += _overlap_s(start_s, start_s + second.compute_s, window_s)
        if end_s <= window_s:
            sent_s += second.wire_s
        elif ready_s < window_s:
            sent_s += min(second.wire_s, wire.free_s(window_s) - wire.free_s(ready_s))
    busy_s = window_s - (wire.free_s(window_s) - wire.free_s(0.0))
    return Spent(wire_s=(busy_s, sent_s), compute_s=(compute[0], compute[1]))


def _shift_s(pattern: Pattern, communication_first: bool) -> float:
    return -pattern.begins_s if communication_first else 0.0


def _overlap_s(begin_s: float, end_s: float, window_s: float) -> float:
    return max(min(end_s, window_s) - max(begin_s, 0.0), 0.0)


class _Wire:
    """What the first job, whose iterations begin at `shift_s`, leaves of the link."""

    def __init__(self, first: Pattern, shift_s: float) -> None:
        self.shift_s, self.period_s = shift_s, first.alone_s
        self.begins_s, self.gap_s = first.begins_s, first.alone_s - first.wire_s

    def free_s(self, time_s: float) -> float:
        """Seconds that are free up to then, from an iteration's begin on."""
        periods = floor((time_s - self.shift_s) / self.period_s)
        phase_s = time_s - self.shift_s - periods * self.period_s
        busy_s = self.period_s - self.gap_s
        return periods * self.gap_s + phase_s - min(max(phase_s - self.begins_s, 0.0), busy_s)

    def when_free_s(self, free_s: float) -> float:
        """The first moment up to which so many seconds are free."""
        periods = floor(free_s / self.gap_s)
        left_s = free_s - periods * self.gap_s
        if left_s <= self.gap_s * SAME_PHASE:
            periods, left_s = periods - 1, self.gap_s
        busy_s = self.period_s - self.gap_s if left_s > self.begins_s * (1 + SAME_PHASE) else 0.0
        return self.shift_s + periods * self.period_s + left_s + busy_s


def _iterations(second: Pattern, wire: _Wire, start_s: float) -> Iterator[tuple[float, float, float]]:
    """Of each iteration of the second job when it begins, when its bytes are ready and when they have gone."""
    while True:
        ready_s = start_s + second.begins_s
        end_s = wire.when_free_s(wire.free_s(ready_s) + second.wire_s) if wire.gap_s > 0 else float("inf")
        yield start_s, ready_s, end_s
        start_s = max(start_s + second.compute_s, end_s)


def _long_run_rate(first: Pattern, second: Pattern) -> float:
    """Iterations of the second job in a second, both having begun together."""
    wire = _Wire(first, 0.0)
    if wire.gap_s <= first.alone_s * SAME_PHASE:
        return 0.0
    seen: dict[int, tuple[int, float]] = {}
    starts_s: list[float] = []
    for number, (start_s, _, _) in enumerate(islice(_iterations(second, wire, 0.0), ITERATIONS + 1)):
        phase = start_s / first.alone_s % 1.0
        key = round(phase / SAME_PHASE) % round(1 / SAME_PHASE)
        if key in seen:
            before, before_s = seen[key]
            return (number - before) / (start_s - before_s)
        seen[key] = number, start_s
        starts_s.append(start_s)
    middle = ITERATIONS // 2
    return (ITERATIONS - middle) / (starts_s[ITERATIONS] - starts_s[middle])
