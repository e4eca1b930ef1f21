"""Seconds that remember which collectives they are made of: a price that is asked with these tells what is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from estimator.communication.collectives import CollectiveTime
from estimator.communication.groups import Group
from estimator.pricing.gradient_sync import TimeOnAxis
from estimator.pricing.link_times import LinkAccount, LinkTimes
from estimator.pricing.recipe import StageSetup
from profiles.records import dataclass, replace
from profiles.vocabulary import CollectiveOp

TREES = ("tree", "in-network islands + tree")
"""Algorithms whose bytes go between nodes as in NCCL's double binary tree."""
NEARBY = 1e-3
"""By how much less is sent to see which part of a time does not grow with bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective on the groups of an axis, and what one of them takes alone, its latency included. `algorithm`: that
    of an all_reduce between nodes where it is no ring."""

    op: CollectiveOp
    size_bytes: float
    axis: str | int
    alone_s: float
    latency_s: float
    algorithm: Literal["tree"] | None = None


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


class _Latest(LinkAccount):
    """Whether what was timed last is a tree between nodes."""

    is_tree = False

    def note(self, op: CollectiveOp, group: Group | None, time: CollectiveTime) -> None:
        super().note(op, group, time)
        self.is_tree = op == "all_reduce" and time.algorithm in TREES


def remembering(links: LinkTimes, stage: StageSetup) -> TimeOnAxis:
    """Return who times collectives on the axes of `stage` (`LinkTimes.on_axes_of`), in seconds that remember what was
    asked. Collectives that take no time are none."""
    latest = _Latest()
    on_axis = replace(links, account=latest).on_axes_of(stage)
    known: dict[tuple[CollectiveOp, float, str | int], float] = {}

    def ask(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
        latest.is_tree = False
        alone_s = on_axis(op, size_bytes, axis)
        if alone_s <= 0:
            return 0.0
        algorithm: Literal["tree"] | None = "tree" if latest.is_tree else None
        latency_s = latency_within(lambda size: on_axis(op, size, axis), size_bytes, alone_s)
        call = Call(op=op, size_bytes=size_bytes, axis=axis, alone_s=alone_s, latency_s=latency_s, algorithm=algorithm)
        return SentSeconds(alone_s, {call: 1.0})

    def seconds(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
        key = (op, size_bytes, axis)
        if key not in known:
            known[key] = ask(*key)
        return known[key]

    return seconds


def latency_within(seconds_of: Callable[[float], float], size_bytes: float, alone_s: float) -> float:
    """Return what of the seconds of so many bytes a few bytes less would take too: the part that is not sending."""
    grown_s = alone_s - seconds_of(size_bytes * (1 - NEARBY))
    return min(max(alone_s - grown_s / NEARBY, 0.0), alone_s)
