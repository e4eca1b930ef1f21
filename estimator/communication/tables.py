"""Reading a link table: seconds of its collective at any number of bytes, by two methods chosen by name."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Literal

from profiles.vocabulary import CollectiveOp, LinkTable

Method = Literal["interpolate", "alpha-beta"]


def bus_factor(op: CollectiveOp, ranks: int) -> float:
    """Share of a collective's `bytes` that has to pass each rank's link (nccl-tests: bus over algorithm bandwidth).

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("send_recv", 2)
    (1.75, 0.875, 1.0)
    """
    if op == "send_recv":
        return 1.0
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def alpha_beta(table: LinkTable, size_bytes: float) -> float:
    """Seconds by the table's summary line: alpha + beta * bytes."""
    return table.alpha_s + table.beta_s_per_byte * size_bytes


def interpolate(table: LinkTable, size_bytes: float) -> float:
    """Seconds by a straight line in log-log scale between the two neighbouring points; exact at every point.

    Beyond either end it is the summary line, scaled to pass through the end point: continuous there, positive, and
    rising with bytes. Between the points it rises wherever they do.
    """
    points = table.points
    right = bisect_left(points, size_bytes, key=lambda point: point[0])
    if right < len(points) and points[right][0] == size_bytes:
        return points[right][1]
    if right in (0, len(points)):
        end_bytes, end_s = points[0] if right == 0 else points[-1]
        return end_s * alpha_beta(table, size_bytes) / alpha_beta(table, end_bytes)
    (low_bytes, low_s), (high_bytes, high_s) = points[right - 1], points[right]
    share = math.log(size_bytes / low_bytes) / math.log(high_bytes / low_bytes)
    return low_s * math.exp(share * math.log(high_s / low_s))


METHODS: dict[Method, Callable[[LinkTable, float], float]] = {"interpolate": interpolate, "alpha-beta": alpha_beta}
