"""The parts of a network policy by name: paths, priorities, and when iterations begin. Compressions stand in
`planner.contention.policies.compression.catalogue`. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.contention.policies.cassini import shifts
from planner.contention.policies.coflows import bssi_order, shortest_first
from planner.contention.policies.crux import Crux
from planner.contention.policies.fairness import order_by_fairness
from planner.contention.policies.intensity import intensities
from planner.contention.policies.loads import LinkSeconds, contending_jobs, paths_now, spread_paths
from planner.contention.policies.path_selection import least_congested_paths
from planner.contention.policies.priority import order_by
from planner.contention.policies.records import Choice, View
from planner.contention.policies.taccl_star import farthest_first

Paths = tuple[tuple[Choice, ...], ...]
Order = tuple[int, ...]


def _tacclstar_paths(view: View) -> Paths:
    return least_congested_paths(view, farthest_first(view))


def _intensity_order(view: View, seconds: Sequence[LinkSeconds]) -> Order:
    jobs, intensity = contending_jobs(seconds), intensities(view, seconds)
    return order_by(view, jobs, [intensity[job] for job in jobs])


def _crux_order(view: View, seconds: Sequence[LinkSeconds]) -> Order:
    return Crux().rank(view, seconds)


def _sincronia_order(view: View, seconds: Sequence[LinkSeconds]) -> Order:
    return tuple(bssi_order(view, seconds))


def _tacclstar_order(view: View, seconds: Sequence[LinkSeconds]) -> Order:
    contending = set(contending_jobs(seconds))
    return tuple(job for job in farthest_first(view) if job in contending)


PATHS: dict[str, Callable[[View], Paths]] = {
    "crux": Crux().choose_paths,
    "hashed": paths_now,
    "spray": spread_paths,
    "tacclstar": _tacclstar_paths,
}
"""Name: what gives each connection a path. `hashed`: those that are in force."""

PRIORITIES: dict[str, Callable[[View, Sequence[LinkSeconds]], Order]] = {
    "crux": _crux_order,
    "fairness": order_by_fairness,
    "intensity": _intensity_order,
    "sincronia": _sincronia_order,
    "tacclstar": _tacclstar_order,
    "varys": shortest_first,
}
"""Name: what puts the jobs that share links in order, the most important first."""

OFFSETS: dict[str, Callable[[View, Sequence[LinkSeconds]], tuple[float, ...]]] = {
    "cassini": shifts,
    "none": lambda view, _: (0.0,) * len(view.jobs),
}
"""Name: how much later than now each job is to begin."""
