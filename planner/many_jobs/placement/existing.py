"""A plan that exists, placed: its sites stay, and inside each its ranks go to the free nodes that suit them best."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from estimator.pricing.evaluate import evaluate
from estimator.pricing.pricing import Pricing
from estimator.pricing.training import over_limits
from planner.many_jobs.placement.pods import placed_plan, wishes_of
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import setup_of_plan
from planner.one_job.explicit.whole import describe_training, read_whole
from planner.one_job.planning.whole_training import train_plan
from planner.one_job.site_pods.describing import describe_pod_ways, describe_pods, describe_pods_score
from planner.one_job.site_pods.placing import PlanInPods, place_plan
from planner.shared.inputs import load_place, open_existing
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from planner.shared.plan_checks import load_plan_model
from planner.shared.plan_file import load_plan, plan_to_json, save_plan
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError, NothingFits
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible


def place_existing(options: PlaceOptions, path: Path) -> dict[str, Any]:
    """Return the answer of `place` for the plan in the file `path`; write the placed plan where the options say.

    Raise InputError for a file that is no plan, or a plan that its sites cannot hold; NothingFits where they have too
    few free devices, or nothing meets what is asked of pods.
    """
    started = time.perf_counter()
    plan, whole = load_plan(path), read_whole(options)
    with open_existing(options.store) as store:
        in_pods = _in_pods(plan, options, store, str(path))
    cluster = in_pods.setup.cluster
    placed = placed_plan(in_pods, reference=plan.model.reference, assumptions=plan.assumptions)
    training = None if whole is None else train_plan(whole, placed, cluster)
    if options.output is not None:
        save_plan(placed, options.output)
    described = {
        "model": placed.model.name,
        "cluster": cluster.text,
        "method": options.method,
        "step": "the plan's own sites",
        "proved": False,
        "local": None,
        "sites": _sites(placed),
        "pods": describe_pods(in_pods),
        "links": [],
        "routes": [],
        "plan": json.loads(plan_to_json(placed)),
        "score": _score(placed) | {"pods": describe_pods_score(in_pods, options.pods_method)},
        "training": None if training is None else describe_training(training),
        "alternatives": describe_pod_ways(in_pods, options.alternatives),
        "timing": {"read_s": None, "choose_s": None, "plan_s": None, "pods_s": time.perf_counter() - started},
    }
    over = () if whole is None or training is None else over_limits(whole, training)
    if over:
        raise NothingFits(f"{path} on {cluster.text}: placed, but {' and '.join(over)}", result=described)
    return described


def _in_pods(plan: Plan, options: PlaceOptions, store: ProfileStore | None, where: str) -> PlanInPods:
    model = load_plan_model(plan, where=where)
    cluster = load_place(
        options.cluster or plan.cluster,
        model,
        store=store,
        dtype=plan.model.dtype,
        seq_len=plan.model.seq_len or 0,
        optimizer=plan.optimizer,
        margin=options.memory_margin,
    )
    if options.free is not None:
        from planner.one_job.free_devices.reading import cluster_with_free

        cluster = cluster_with_free(cluster, options.free, lenient=options.lenient)
    setup = setup_of_plan(plan, model, cluster, free_places(plan, cluster, where), where=where)
    price = partial(evaluate, pricing=Pricing()) if store is None else partial(evaluate_with_store, store=store)
    in_pods = place_plan(setup, price, wishes_of(options))
    if isinstance(in_pods, Infeasible):
        raise NothingFits(f"{where} on {cluster.text}: {in_pods.reason}", result=in_pods)
    if not in_pods.sites:
        said = in_pods.notes[0] if in_pods.notes else f"{cluster.text} has no pods"
        expected = "a plan of whole nodes on a cluster with pods: --topology FILE, or levels of its fabric"
        raise InputError(where=where, key="--plan", found=said, expected=expected)
    return in_pods


def free_places(plan: Plan, cluster: Cluster, where: str) -> tuple[DeviceSlot, ...]:
    """Return a free device for every rank in its own site (in the only one, where the cluster has one), whole nodes
    first. Raise InputError for a site that the cluster lacks, NothingFits for too few free devices of a type."""
    free: defaultdict[tuple[str, str], list[DeviceSlot]] = defaultdict(list)
    for slot in _whole_nodes_first(cluster):
        free[slot.site, slot.device].append(slot)
    single = cluster.sites[0].name if len(cluster.sites) == 1 else None
    names = [site.name for site in cluster.sites]
    wanted = Counter((single or device.site, device.device) for device in plan.devices)
    for (site, device), count in wanted.items():
        if site not in names:
            expected = f"a site of {cluster.text}: {', '.join(names)}"
            raise InputError(where=where, key="devices[].site", found=repr(site), expected=expected)
        here = len(free[site, device])
        if here < count:
            types = Counter(slot.device for slot in cluster.free_slots if slot.site == site and slot.device != device)
            others = "".join(f"; {number} {name} are free" for name, number in types.items())
            said = f"{count} {device} wanted, {here} free in {site}: {count - here} too few"
            raise NothingFits(f"{where} on {cluster.text}: {said}{others}")
    lines = {key: iter(slots) for key, slots in free.items()}
    return tuple(next(lines[single or device.site, device.device]) for device in plan.devices)


def _whole_nodes_first(cluster: Cluster) -> Sequence[DeviceSlot]:
    free = Counter((slot.site, slot.node) for slot in cluster.free_slots)
    return sorted(cluster.free_slots, key=lambda slot: free[slot.site, slot.node] < cluster.group_of(slot).devices)


def _sites(plan: Plan) -> list[dict[str, Any]]:
    names = dict.fromkeys(device.site for device in plan.devices)
    return [
        {
            "name": name,
            "devices": [
                {"node": device.node, "index": device.index, "device": device.device, "rank": device.rank}
                for device in plan.devices
                if device.site == name
            ],
        }
        for name in names
    ]


def _score(plan: Plan) -> dict[str, Any]:
    estimate, basis = plan.estimate, plan.provenance
    used = list(dict.fromkeys(device.site for device in plan.devices))
    return {
        "sites": len(used),
        "bandwidth_bytes_per_s": None,
        "distance_s": None,
        "iteration_time_s": estimate.iteration_time_s,
        "samples_per_s": estimate.samples_per_s,
        "between_sites_s": None,
        "between_sites_share": None,
        "basis": {"compute": basis.compute, "communication": basis.communication, "links": None},
        "sites_used": used,
        "idle_devices": 0,
    }
