"""The least time of a collective over all ways to seat its ranks, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.communication.phases import Phase
from estimator.communication.walking import Ground, walk
from tests.oracles.rank_order_oracle import seatings


def least_s(phases: Sequence[Phase], ground: Ground, size_bytes: float) -> float:
    """Return the seconds of the fastest seating."""
    counts = [node.ranks for node in ground.nodes]
    lines = (walk(phases, seats, ground) for seats in seatings(counts))
    return min(latency_s + size_bytes * seconds for latency_s, seconds in lines)


def walked_s(phases: Sequence[Phase], seats: Sequence[int], ground: Ground, size_bytes: float) -> float:
    """Return the seconds of one seating on nodes of one level: NICs out and in, and what each rank sends and gets."""
    total_s = 0.0
    (inside,) = ground.inside
    for phase in phases:
        slowest, step_s = 0.0, 0.0
        for node, there in enumerate(ground.nodes):
            out = sum(size for a, b, size in phase.flows if seats[a] == node != seats[b])
            into = sum(size for a, b, size in phase.flows if seats[b] == node != seats[a])
            slowest = max(slowest, out / there.bytes_per_s, into / there.bytes_per_s)
            step_s = ground.latency_s if out else step_s
        inner = [flow for flow in phase.flows if seats[flow[0]] == seats[flow[1]]]
        kept = [sum(flow[2] for flow in inner if flow[way] == rank) for way in (0, 1) for rank in range(len(seats))]
        step_s = max(step_s, inside.latency_s) if inner else step_s
        total_s += phase.repeats * (step_s + size_bytes * max(slowest, max(kept, default=0.0) / inside.bytes_per_s))
    return total_s
