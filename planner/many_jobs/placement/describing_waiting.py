"""Starting now against waiting, as values that `json.dumps` takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from planner.many_jobs.placement.holding import Held, held_for
from planner.many_jobs.placement.waiting import Start, Waiting
from planner.one_job.site_pods.axis_spread import axis_spreads
from planner.one_job.site_pods.spares import part_of, used_nodes


def describe_waiting(waiting: Waiting, *, name: str, reserve: bool) -> dict[str, Any]:
    """Return the starts, each beside the first, every coming end with the least time of an iteration by then, and what
    is to be held for the best start of a job of this name, where that is asked."""
    occupancy = waiting.occupancy
    return {
        "now_s": occupancy.now_s,
        "ends_by": "prediction" if occupancy.predicted else "time limit",
        "starts": [_start(start, waiting.first) for start in waiting.starts],
        "best": waiting.starts.index(waiting.best),
        "ends": [_end(waiting, wait_s) for wait_s in occupancy.waits_s if wait_s >= waiting.first.wait_s],
        "looked_at": waiting.looked_at,
        "reservation": describe_reservation(held_for(waiting, waiting.best, name)) if reserve else None,
        "notes": list(occupancy.notes),
    }


def _start(start: Start, first: Start) -> dict[str, Any]:
    training, hosts = start.training, start.hosts
    earlier = start is first
    return {
        "wait_s": start.wait_s,
        "jobs": list(start.jobs),
        "free_devices": start.free_devices,
        "nodes": len(hosts),
        "hosts": list(hosts),
        "pods": _pods(start),
        "spreads": axis_spreads(start.setup),
        "iteration_time_s": start.time_s,
        "interval_90_s": list(start.evaluation.interval_90_s),
        "training_s": None if training is None else training.seconds,
        "training_interval_90_s": None if training is None else list(training.interval_of(training.seconds)),
        "end_s": start.end_s,
        "chance_free": start.chance_free,
        "chance_pays": None if earlier else start.chance_pays(first),
        "pays_beyond_s": None if earlier else start.pays_beyond_s(first),
    }


def _pods(start: Start) -> dict[str, int]:
    """Nodes in every part of the pods' level; empty where the sites have no pods."""
    parts = (part_of(start.setup.cluster, node) for node in used_nodes(start.setup))
    return dict(sorted(Counter(part for part in parts if part is not None).items()))


def _end(waiting: Waiting, wait_s: float) -> dict[str, Any]:
    reached = [start for start in waiting.starts if start.wait_s <= wait_s]
    return {
        "wait_s": wait_s,
        "jobs": list(waiting.occupancy.ending_at(wait_s)),
        "free_devices": waiting.occupancy.free_devices(wait_s),
        "iteration_time_s": reached[-1].time_s,
    }


def describe_reservation(held: Held) -> dict[str, Any]:
    """Return what is held, and the commands that hold it."""
    return {
        "name": held.name,
        "wait_s": held.wait_s,
        "run_s": held.run_s,
        "nodes": [{"host": node.host, "free_s": node.free_s, "devices": node.devices} for node in held.nodes],
        "idle_device_hours": held.idle_device_hours,
        "scontrol": " ".join(held.scontrol()),
        "kubectl": " ".join(held.kubectl()),
    }
