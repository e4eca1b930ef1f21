"""`place --plan FILE --replace HOST`: the plan with a free node in the place of one that failed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.many_jobs.placement.existing import describe_existing, load_plan_place, pricing_by
from planner.many_jobs.placement.free_now import cluster_now
from planner.many_jobs.placement.free_seats import on_free_devices
from planner.many_jobs.placement.pods import wishes_of
from planner.one_job.explicit.reading import setup_of_plan
from planner.one_job.explicit.recording import record_plan
from planner.one_job.free_devices.nodes import FreeNode, FreeNodes
from planner.one_job.free_devices.reading import with_free_nodes
from planner.one_job.site_pods.axis_spread import axis_spreads
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.placing import PlanInPods, place_plan
from planner.one_job.site_pods.replacing import Replacement, replace_host
from planner.shared.inputs import open_existing
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan, save_plan
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError


def replace_in_plan(options: PlaceOptions, path: Path, host: str) -> dict[str, Any]:
    """Return the answer of `place` for the plan in the file `path` with another node for `host`, all others staying;
    write that plan where the options say.

    Raise InputError for a plan without names of its nodes, or without that host; NothingFits where no node is free.
    """
    started = time.perf_counter()
    plan, where = load_plan(path), str(path)
    with open_existing(options.store) as store:
        model, base = load_plan_place(plan, options, store, where)
        cluster = cluster_now(base, options, None, len(plan.devices)) if options.free is not None else base
        setup = setup_of_plan(plan, model, cluster, _own_places(plan, cluster, where), where=where)
        price = pricing_by(store)
        replacement = replace_host(setup, host, price, where=where)
        moved = _all_moved(setup, base, host, price, options)
    before = next(device for device in plan.devices if device.host == host)
    said = f"{replacement.stand_ins[0].host} in the place of {host} (node {before.node}), which failed"
    placed = record_plan(
        replacement.setup,
        replacement.evaluation,
        reference=plan.model.reference,
        assumptions=(*plan.assumptions, said),
    )
    if options.output is not None:
        save_plan(placed, options.output)
    return {
        **describe_existing(placed, cluster, options.method, "one node replaced"),
        "timing": {"read_s": None, "choose_s": None, "plan_s": None, "pods_s": time.perf_counter() - started},
        "replacement": _describe(replacement, moved),
    }


def _own_places(plan: Plan, cluster: Cluster, where: str) -> tuple[DeviceSlot, ...]:
    """The device of every rank on the host that the plan names."""
    slot_at = {(slot.site, slot.node, slot.index): slot for slot in cluster.slots}
    nodes = {(site.name, name): node for site in cluster.sites for node, name in enumerate(site.network.hosts)}
    slots: dict[DeviceSlot, None] = {}
    for device in plan.devices:
        key = f"devices[{device.rank}].host"
        if device.host is None:
            expected = "the name of its node (place on a cluster whose nodes have names writes it)"
            raise InputError(where=where, key=key, found="none", expected=expected)
        slot = slot_at.get((device.site, nodes.get((device.site, device.host), -1), device.index))
        if slot is None or slot.device != device.device or slot in slots:
            expected = f"a node of {cluster.text} with {device.device} {device.index}, which no other rank has"
            raise InputError(where=where, key=key, found=repr(device.host), expected=expected)
        slots[slot] = None
    return tuple(slots)


def _all_moved(setup: Setup, base: Cluster, host: str, price: Evaluate, options: PlaceOptions) -> PlanInPods | None:
    """The plan placed anew on its own nodes and the free ones, without the host that failed; None where it has no
    placement."""
    cluster = setup.cluster
    own = {(slot.site, slot.node) for stage in setup.stages for slot in stage.slots}
    free: dict[tuple[str, int], int] = {}
    for slot in cluster.free_slots:
        free[slot.site, slot.node] = free.get((slot.site, slot.node), 0) + 1
    nodes = []
    for site in cluster.sites:
        groups = [group for group in site.nodes for _ in range(group.count)]
        for node, (name, group) in enumerate(zip(site.network.hosts, groups, strict=True)):
            count = group.devices if (site.name, node) in own else free.get((site.name, node), 0)
            nodes.append(
                FreeNode(
                    name=name,
                    device=group.device.name,
                    said=group.device.name,
                    devices=group.devices,
                    free=0 if name == host else count,
                )
            )
    anew = with_free_nodes(base, FreeNodes(nodes=tuple(nodes), notes=()), "the plan's nodes", lenient=True)
    placed = place_plan(on_free_devices(setup, anew), price, wishes_of(options))
    return placed if isinstance(placed, PlanInPods) and isinstance(placed.evaluation, Evaluation) else None


def _describe(replacement: Replacement, moved: PlanInPods | None) -> dict[str, Any]:
    best = replacement.stand_ins[0]
    after_s = replacement.evaluation.iteration_time_s
    moved_s = None if moved is None else min(moved.evaluation.iteration_time_s, after_s)
    return {
        "failed": replacement.failed,
        "part": replacement.part,
        "host": best.host,
        "host_part": best.part,
        "before_s": replacement.before_s,
        "iteration_time_s": after_s,
        "cost_s": replacement.cost_s,
        "spreads": axis_spreads(replacement.setup),
        "moving_all_s": moved_s,
        "moving_all_wins_s": None if moved_s is None else after_s - moved_s,
        "stand_ins": [
            {"host": other.host, "part": other.part, "nodes": other.nodes, "iteration_time_s": other.time_s}
            for other in replacement.stand_ins
        ],
    }
