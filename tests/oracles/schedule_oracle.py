"""Longest paths by relaxation: a schedule's end where messages take their time and occupy no stage."""

from __future__ import annotations

from collections.abc import Callable

from estimator.schedules.orders import Action, Shape, follower, leader, order_of


def relax_until_still(shape: Shape, duration_s: Callable[[int, Action], float], latency_s: float) -> float:
    """Every step starts when the one before it has ended and all that it needs has come; activations, and gradients, on
    the way from one stage to another come one after another; repeated until nothing moves."""
    orders = [order_of(shape, stage) for stage in range(shape.stages)]
    ends = {(i, action): 0.0 for i, order in enumerate(orders) for step in order for action in step.actions}
    come: dict[tuple[int, Action], float] = {}
    moved = True
    while moved:
        moved = False
        for i, order in enumerate(orders):
            free, links = (
                0.0,
                dict.fromkeys(((j, kind) for j in range(shape.stages) for kind in ("forward", "backward")), 0.0),
            )
            for step in order:
                start = max([free, *(come.get((i, action), 0.0) for action in step.actions)])
                free = start + sum(duration_s(i, action) for action in step.actions)
                moved |= any(ends[i, action] != free for action in step.actions)
                ends.update({(i, action): free for action in step.actions})
                for kind, chunk, k in step.actions:
                    way = {"forward": follower, "backward": leader}.get(kind)
                    place = way(shape, i, chunk) if way else None
                    if place:
                        wait = latency_s if place[0] != i else 0.0
                        links[place[0], kind] = max(free, links[place[0], kind] if wait else 0.0) + wait
                        moved |= come.get((place[0], (kind, place[1], k))) != links[place[0], kind]
                        come[place[0], (kind, place[1], k)] = links[place[0], kind]
    return max(ends.values())
