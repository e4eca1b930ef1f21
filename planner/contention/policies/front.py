"""Work against fairness: the most work at each of several caps on slowdowns (Crux, section 7.2, names the frontier)."""

from __future__ import annotations

from planner.contention.policies.ours import Ours, decision_of
from planner.contention.policies.records import Decision, View
from profiles.records import dataclass

SAME = 1e-9


@dataclass(frozen=True, kw_only=True)
class Point:
    """A decision, the work of all jobs under it and the greatest slowdown of any; `proved`: paths and levels with no
    greater slowdown do no more."""

    decision: Decision
    flops_per_s: float
    slowdown: float
    proved: bool


def fairness_front(view: View, *, caps: int = 6, plays: int = 0, seed: int = 0) -> tuple[Point, ...]:
    """Return decisions of which none is better than another in both, the most work first: without a cap, with the
    smallest that was found to work, and with `caps` between, evenly by ratio. Offsets and levels by axis are left out.
    """
    if not view.jobs:
        return ()
    free = _solved(view, 0.0, plays, seed)
    least = _solved(view, 1.0, plays, seed)
    points = [free, least]
    if free.slowdown > least.slowdown * (1 + SAME):
        ratio = free.slowdown / least.slowdown
        between = [least.slowdown * ratio ** (step / (caps + 1)) for step in range(1, caps + 1)]
        points += [_solved(view, cap, plays, seed) for cap in between]
    front: list[Point] = []
    for point in sorted(points, key=lambda each: (-each.flops_per_s, each.slowdown)):
        if not front or point.slowdown < front[-1].slowdown * (1 - SAME):
            front.append(point)
    return tuple(front)


def _solved(view: View, cap: float, plays: int, seed: int) -> Point:
    best = Ours(plays=plays, slowdown_cap=cap, seed=seed).solve(view).best
    return Point(
        decision=decision_of(view, best), flops_per_s=best.flops_per_s, slowdown=best.slowdown, proved=best.proved
    )
