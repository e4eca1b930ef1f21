"""CASSINI (NSDI'24): when jobs begin, so that their bytes meet least; every job keeps its paths and its fair share.

Of each link that jobs share, their iterations are laid around a circle of their common period, and turned against each
other until the demand above the link's capacity is least. Links and jobs then form an affinity graph: where it has no
loop, one shift for each job gives every link the angles between its jobs that it asks for.

What the paper leaves to whoever builds it, as it is here:
- The common period is, of the first `MULTIPLES` multiples of the longest iteration, the one of which all iterations
  differ least from a whole part; each counts as long as that part.
- The circle has `ANGLES` angles. One job after the other is turned to its best angle, until no turn of one job is
  better (the paper asks an optimiser; for two jobs this is the optimum).
- Links that would close a loop in the graph are left out, those with the least to gain first. (The paper would have the
  job scheduler choose a placement without loops.)
- Shifts alone do not hold: iterations that differ a little drift. CASSINI's agents move workers back; here nothing
  does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.contention.policies.intensity import bottleneck_s
from planner.contention.policies.levelling import same_level
from planner.contention.policies.loads import LinkSeconds, link_seconds, paths_now, users_of_links
from planner.contention.policies.pair import Pattern, pattern_of
from planner.contention.policies.records import Decision, View
from profiles.records import dataclass

ANGLES = 72
"""5 degrees, as in the paper."""
MULTIPLES = 8

Floats = NDArray[np.float64]


class Cassini:
    """`cassini`: as above."""

    name = "cassini"

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        seconds = link_seconds(view, paths_now(view))
        return Decision(
            paths=paths_now(view),
            levels=same_level(seconds),
            offsets_s=shifts(view, seconds),
            order=(),
        )


@dataclass(frozen=True, kw_only=True)
class Circle:
    """A link's circle: the seconds around it, by job the shift that it asks for, and how much of the demand above
    capacity this saves, a share of the circle."""

    period_s: float
    shifts_s: Mapping[int, float]
    saved: float


def shifts(view: View, seconds: Sequence[LinkSeconds]) -> tuple[float, ...]:
    """Return how much later each job is to begin, less than its iteration."""
    patterns = {
        job: pattern_of(view.jobs[job], bottleneck_s(view.jobs[job], its))
        for job, its in enumerate(seconds)
        if its and bottleneck_s(view.jobs[job], its) < float("inf")
    }
    circles: dict[tuple[tuple[int, float], ...], Circle] = {}
    for link, users in users_of_links(seconds).items():
        its = tuple((job, seconds[job][link] / patterns[job].wire_s) for job in users if job in patterns)
        if len(its) > 1 and its not in circles:
            circles[its] = circle_of({job: patterns[job] for job, _ in its}, dict(its))
    offsets = dict.fromkeys(range(len(view.jobs)), 0.0)
    groups = {job: {job} for job in offsets}
    for circle in sorted(circles.values(), key=lambda circle: (-circle.saved, sorted(circle.shifts_s.items()))):
        jobs = list(circle.shifts_s)
        if len({min(groups[job]) for job in jobs}) < len(jobs):
            continue
        for job in jobs[1:]:
            wanted_s = offsets[jobs[0]] - circle.shifts_s[jobs[0]] + circle.shifts_s[job]
            moved = groups[job]
            by_s = wanted_s - offsets[job]
            for other in moved:
                offsets[other] += by_s
            groups[jobs[0]] |= moved
            for other in moved:
                groups[other] = groups[jobs[0]]
    return tuple(offsets[number] % job.alone_s for number, job in enumerate(view.jobs))


def circle_of(patterns: Mapping[int, Pattern], shares: Mapping[int, float]) -> Circle:
    """Return the circle of a link on which each job has `shares` of the link's rate while it sends."""
    period_s, turns = common_period([pattern.alone_s for pattern in patterns.values()])
    demands = [
        _demand(pattern, shares[job], period_s, count)
        for (job, pattern), count in zip(patterns.items(), turns, strict=True)
    ]
    angles = [0] * len(demands)
    least = first = _excess(demands, angles)
    better = True
    while better:
        better = False
        for place in range(1, len(demands)):
            excess, angle = _best_turn(demands, angles, place, turns[place])
            if excess < least - 1e-12:
                least, angles[place], better = excess, angle, True
    shifts_s = {job: angle * period_s / ANGLES for job, angle in zip(patterns, angles, strict=True)}
    return Circle(period_s=period_s, shifts_s=shifts_s, saved=first - least)


def common_period(iterations_s: Sequence[float]) -> tuple[float, list[int]]:
    """Return the seconds around the circle, and how often each job goes around in them."""
    longest_s, least, best = max(iterations_s), float("inf"), 1
    for multiple in range(1, MULTIPLES + 1):
        times = [multiple * longest_s / one_s for one_s in iterations_s]
        error = max(abs(round(count) - count) / count for count in times)
        if error < least - 1e-9:
            least, best = error, multiple
    return best * longest_s, [round(best * longest_s / one_s) for one_s in iterations_s]


def _demand(pattern: Pattern, share: float, period_s: float, turns: int) -> Floats:
    """The share of the link that a job asks for at each angle, the mean over the angle's time."""
    edges_s = np.arange(ANGLES + 1) * (period_s / ANGLES)
    each_s = period_s / turns
    begins_s, wire_s = pattern.begins_s, min(pattern.wire_s, each_s)
    # Seconds on the wire up to each edge, over iterations that follow each other since long before.
    since_s = edges_s - begins_s + each_s
    sent_s = np.floor(since_s / each_s) * wire_s + np.minimum(since_s % each_s, wire_s)
    demand: Floats = np.diff(sent_s) / (period_s / ANGLES) * share
    return demand


def _excess(demands: Sequence[Floats], angles: Sequence[int]) -> float:
    total = sum((np.roll(demand, angle) for demand, angle in zip(demands, angles, strict=True)), np.zeros(ANGLES))
    return float(np.maximum(total - 1.0, 0.0).mean())


def _best_turn(demands: Sequence[Floats], angles: list[int], place: int, turns: int) -> tuple[float, int]:
    """The angle of one job, inside its first iteration, at which least is above capacity, and how much is."""
    tried = range(max(ANGLES // turns, 1))
    return min((_excess(demands, [*angles[:place], angle, *angles[place + 1 :]]), angle) for angle in tried)
