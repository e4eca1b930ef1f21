"""Longest paths by relaxation: a schedule's end where messages take their time and occupy no stage."""

from __future__ import annotations

from collections.abc import Callable

from estimator.schedules.orders import Action, Shape, follower, order_of


def relax_until_still(shape: Shape, duration_s: Callable[[int, Action], float], latency_s: float) -> float:
    """Every step starts when the one before it and all that it needs have ended; repeated until nothing moves."""
    orders = [order_of(shape, stage) for stage in range(shape.stages)]
    ends = {(i, action): 0.0 for i, order in enumerate(orders) for step in order for action in step.actions}
    needs: dict[tuple[int, Action], list[tuple[tuple[int, Action], float]]] = {task: [] for task in ends}
    for i, (kind, chunk, k) in ends:
        place = follower(shape, i, chunk)
        if place and kind != "weight":
            wait = latency_s if place[0] != i else 0.0
            here, there = (i, (kind, chunk, k)), (place[0], (kind, place[1], k))
            needs[there if kind == "forward" else here].append((here if kind == "forward" else there, wait))
    moved = True
    while moved:
        moved = False
        for i, order in enumerate(orders):
            free = 0.0
            for step in order:
                start = max([free, *(ends[t] + wait for a in step.actions for t, wait in needs[i, a])])
                free = start + sum(duration_s(i, action) for action in step.actions)
                moved |= any(ends[i, action] != free for action in step.actions)
                ends.update({(i, action): free for action in step.actions})
    return max(ends.values())
