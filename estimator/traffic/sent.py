"""Seconds that remember which collectives they are made of: a price that is asked with these tells what is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from estimator.pricing.gradient_sync import TimeOnAxis
from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp

NEARBY = 1e-3
"""By how much less is sent to see which part of a time does not grow with bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective on the groups of an axis, and what one of them takes alone, its latency included."""

    op: CollectiveOp
    size_bytes: float
    axis: str | int
    alone_s: float
    latency_s: float


Calls = Mapping[Call, float]
"""Collectives, and how often each; not always a whole number of times, as buckets are counted on average."""


class SentSeconds(float):
    """Seconds of `calls` and of whatever else was added to them. Sums and multiples know their calls; whatever else is
    done with them makes a plain number."""

    calls: Calls

    def __new__(cls, seconds: float, calls: Calls) -> SentSeconds:
        made = super().__new__(cls, seconds)
        made.calls = calls
        return made

    def __add__(self, other: float) -> SentSeconds:
        return SentSeconds(float(self) + float(other), add_calls(self.calls, calls_of(other)))

    def __radd__(self, other: float) -> SentSeconds:
        return self + other

    def __mul__(self, times: float) -> SentSeconds:
        return SentSeconds(float(self) * times, multiply_calls(self.calls, times))

    def __rmul__(self, times: float) -> SentSeconds:
        return self * times

    def __reduce__(self) -> Any:
        return SentSeconds, (float(self), self.calls)


def calls_of(seconds: float) -> Calls:
    """Return the collectives that seconds are made of; none of a plain number."""
    return seconds.calls if isinstance(seconds, SentSeconds) else {}


def add_calls(one: Calls, other: Calls) -> Calls:
    """Return both together."""
    both = dict(one)
    for call, count in other.items():
        both[call] = both.get(call, 0.0) + count
    return both


def multiply_calls(calls: Calls, times: float) -> Calls:
    """Return each of them so many times as often."""
    return {call: count * times for call, count in calls.items()} if times else {}


def calls_s(calls: Calls) -> float:
    """Return the seconds of all of them, one after another."""
    return math.fsum(call.alone_s * count for call, count in calls.items())


def remembering(on_axis: TimeOnAxis) -> TimeOnAxis:
    """Return `on_axis` with seconds that remember what was asked. Collectives that take no time are none."""

    def seconds(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
        alone_s = on_axis(op, size_bytes, axis)
        if alone_s <= 0:
            return 0.0
        latency_s = latency_within(lambda size: on_axis(op, size, axis), size_bytes, alone_s)
        call = Call(op=op, size_bytes=size_bytes, axis=axis, alone_s=alone_s, latency_s=latency_s)
        return SentSeconds(alone_s, {call: 1.0})

    return seconds


def latency_within(seconds_of: Callable[[float], float], size_bytes: float, alone_s: float) -> float:
    """Return what of the seconds of so many bytes a few bytes less would take too: the part that is not sending."""
    grown_s = alone_s - seconds_of(size_bytes * (1 - NEARBY))
    return min(max(alone_s - grown_s / NEARBY, 0.0), alone_s)
