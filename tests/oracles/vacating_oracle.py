"""What moving everybody off some nodes can win, of jobs that sit on one node each, by trying every way to do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

Held = tuple[int, int, float, float]
"""A job: its node, its devices, how long it stays, and the device-seconds that moving it costs."""


def net_gain(size: int, jobs: Sequence[Held], targets: Sequence[int]) -> float:
    """Return the device-seconds for which nodes are in use less if the jobs go on there, less what that costs."""
    before, after = dict[int, float](), dict[int, float]()
    for (node, _, stays_s, _), target in zip(jobs, targets, strict=True):
        before[node] = max(before.get(node, 0.0), stays_s)
        after[target] = max(after.get(target, 0.0), stays_s)
    paid = sum(job[3] for job, target in zip(jobs, targets, strict=True) if job[0] != target)
    return size * (sum(before.values()) - sum(after.values())) - paid


def best_net_gain(size: int, nodes: int, jobs: Sequence[Held]) -> float:
    """Return the most that is won where of each node all jobs leave or none, to nodes that somebody sits on and nobody
    leaves; 0 where nobody moves."""
    return max(net_gain(size, jobs, targets) for targets in _ways(size, nodes, jobs))


def _ways(size: int, nodes: int, jobs: Sequence[Held]) -> Iterator[tuple[int, ...]]:
    for targets in product(range(nodes), repeat=len(jobs)):
        held, left, kept = [0] * nodes, set[int](), set[int]()
        for (node, devices, _, _), target in zip(jobs, targets, strict=True):
            held[target] += devices
            (kept if node == target else left).add(node)
        if max(held) <= size and not left & kept and set(targets) <= kept:
            yield targets
