"""A plan in pods as JSON: pods with what they hold, the score, the alternatives."""

from __future__ import annotations

from collections import Counter
from typing import Any

from planner.one_job.site_pods.axis_spread import axis_spreads
from planner.one_job.site_pods.candidates import DEFAULT_SCHEDULER
from planner.one_job.site_pods.free_nodes import holds_back
from planner.one_job.site_pods.least_time import EQUAL, Timed
from planner.one_job.site_pods.placing import InPods, PlanInPods, beside, why_it_loses
from profiles.cluster import host_of

PAPER = "arnold"


def describe_pods(plan: PlanInPods) -> list[dict[str, Any]]:
    """Return the pods of every site that was placed into: name, site, free nodes, nodes taken, the devices taken with
    their ranks, and which rows (PP groups) of which stages sit there."""
    ranks, number = {}, 0
    for stage in plan.setup.stages:
        for slot in stage.slots:
            ranks[slot.site, slot.node, slot.index] = number
            number += 1
    return [pod for site in plan.sites for pod in _pods_of(plan, site, ranks)]


def _pods_of(plan: PlanInPods, site: InPods, ranks: dict[tuple[str, int, int], int]) -> list[dict[str, Any]]:
    job = site.job
    pod_of = job.pod_of_node
    devices: dict[int, list[dict[str, Any]]] = {}
    for stage in plan.setup.stages:
        for slot in stage.slots:
            if slot.site == job.nodes.site:
                devices.setdefault(pod_of[slot.node], []).append(
                    {
                        "node": slot.node,
                        "host": host_of(plan.setup.cluster, slot),
                        "index": slot.index,
                        "device": slot.device,
                        "rank": ranks[slot.site, slot.node, slot.index],
                    }
                )
    maps: dict[int, list[dict[str, Any]]] = {}
    for column, pods in zip(job.matrix.columns, job.pods_of(site.placed.best.seating), strict=True):
        for pod in dict.fromkeys(pods):
            rows = [row for row, place in enumerate(pods) if place == pod]
            stages = [job.stages[stage] for stage in column.stages]
            maps.setdefault(pod, []).append({"stages": stages, "rows": rows})
    width = Counter(pod_of[device["node"]] for here in devices.values() for device in here if device["index"] == 0)
    return [
        {
            "site": job.nodes.site,
            "name": name,
            "free": free,
            "taken": width[pod],
            "devices": sorted(devices.get(pod, []), key=lambda device: device["rank"]),
            "map": maps.get(pod, []),
        }
        for pod, (name, free) in enumerate(zip(job.nodes.pods, job.nodes.counts, strict=True))
    ]


def describe_pods_score(plan: PlanInPods, method: str) -> dict[str, Any]:
    """Return how good the placement is: spreads by axis, eq. 2's value, time and interval beside the default
    scheduler's, the paper's and the bound."""
    time_s = plan.evaluation.iteration_time_s
    return {
        "method": method,
        "spreads": plan.spreads,
        "iteration_time_s": time_s,
        "interval_90_s": _interval(plan.evaluation.interval_90_s),
        "sites": [_site_score(site) for site in plan.sites],
        "notes": list(plan.notes),
    }


def _site_score(site: InPods) -> dict[str, Any]:
    placed, affinity = site.placed, site.affinity
    best, bound_s = placed.best, placed.bound_s
    named = {candidate.name: candidate for candidate in placed.candidates}
    network = site.job.site.network
    return {
        "site": site.job.nodes.site,
        "level": site.job.nodes.level,
        "chosen": best.name,
        "alpha": affinity.alpha,
        "beta": 1 - affinity.alpha,
        "j_dp": affinity.j_dp,
        "j_pp": affinity.j_pp,
        "affinity": affinity.source,
        "value": best.value,
        "nodes_a_cell": site.job.matrix.nodes_a_cell,
        "partly_busy_nodes": site.job.nodes.partly_busy,
        "holds_back": any(map(holds_back, network.levels)),
        "iteration_time_s": best.time_s,
        "interval_90_s": _interval(best.evaluation.interval_90_s),
        "default_scheduler": _timed(named.get(DEFAULT_SCHEDULER), best),
        "paper": _timed(named.get(PAPER), best),
        "bound_s": bound_s,
        "gap": None if bound_s is None else max(0.0, best.time_s / bound_s - 1),
        "proved": bound_s is not None and best.time_s <= bound_s * (1 + EQUAL),
        "priced": placed.priced,
    }


def describe_pod_ways(plan: PlanInPods, most: int) -> list[dict[str, Any]]:
    """Return at most so many other placements of each site, the default scheduler's and the paper's before the others,
    each with why it loses; those that are the chosen one are left out, and so are those that seat alike."""
    ways = []
    for site in plan.sites:
        best = site.placed.best
        seen = {best.seating}
        distinct = []
        for candidate in site.placed.candidates:
            if candidate.seating not in seen:
                seen.add(candidate.seating)
                distinct.append(candidate)
        first = [one for one in distinct if one.name in (DEFAULT_SCHEDULER, PAPER)]
        others = sorted((one for one in distinct if one not in first), key=lambda one: one.time_s)
        ways += [_way(site, one) for one in [*first, *others][:most]]
    return ways


def _way(site: InPods, other: Timed) -> dict[str, Any]:
    taken = Counter(pod for column in site.job.pods_of(other.seating) for pod in column)
    width = site.job.matrix.nodes_a_cell
    return {
        "name": other.name,
        "sites": [],
        "score": None,
        "iteration_time_s": other.time_s,
        "loses": why_it_loses(other, site.placed.best),
        "interval_90_s": _interval(other.evaluation.interval_90_s),
        "spreads": axis_spreads(other.setup),
        "value": other.value,
        "pods": {site.job.nodes.pods[pod]: count * width for pod, count in sorted(taken.items())},
    }


def _timed(timed: Timed | None, best: Timed) -> dict[str, Any] | None:
    if timed is None:
        return None
    return {
        "iteration_time_s": timed.time_s,
        "interval_90_s": _interval(timed.evaluation.interval_90_s),
        "spreads": axis_spreads(timed.setup),
        "value": timed.value,
        "beside": beside(timed, best),
    }


def _interval(interval_s: tuple[float, float] | None) -> list[float] | None:
    return None if interval_s is None else list(interval_s)
