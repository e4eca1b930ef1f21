"""A plan that exists, placed: its sites stay, and inside each its ranks go to the free nodes that suit them best."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from estimator.pricing.evaluate import evaluate
from estimator.pricing.pricing import Pricing
from estimator.pricing.training import over_limits
from models_zoo.model import Model
from planner.many_jobs.placement.free_now import cluster_now, occupancy_of
from planner.many_jobs.placement.free_seats import free_places
from planner.many_jobs.placement.later import PlacedPlan, look_later
from planner.many_jobs.placement.pods import placed_plan, wishes_of
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import setup_of_plan
from planner.one_job.explicit.whole import describe_training, read_whole
from planner.one_job.launchers.node_layout import job_name
from planner.one_job.planning.whole_training import train_plan
from planner.one_job.site_pods.describing import describe_pod_ways, describe_pods, describe_pods_score
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.placing import place_plan
from planner.shared.inputs import load_place, open_existing
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from planner.shared.plan_checks import load_plan_model
from planner.shared.plan_file import load_plan, plan_to_json, save_plan
from profiles.cluster import Cluster
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
        placed_setup = _placed(plan, options, store, str(path))
        later = look_later(placed_setup, options, whole)
    in_pods, cluster = placed_setup.in_pods, placed_setup.setup.cluster
    assert in_pods is not None, "a plan in pods"
    placed = placed_plan(in_pods, reference=plan.model.reference, assumptions=plan.assumptions)
    training = None if whole is None else train_plan(whole, placed, cluster)
    if options.output is not None:
        reserved = later.reserved if options.reserve else None
        written = placed
        if reserved is not None:
            written = placed_plan(reserved, reference=plan.model.reference, assumptions=plan.assumptions)
        save_plan(written, options.output)
    described = {
        **describe_existing(placed, cluster, options.method, "the plan's own sites"),
        "pods": describe_pods(in_pods),
        "score": score_of_plan(placed) | {"pods": describe_pods_score(in_pods, options.pods_method)},
        "training": None if training is None else describe_training(training),
        "alternatives": describe_pod_ways(in_pods, options.alternatives),
        "timing": {"read_s": None, "choose_s": None, "plan_s": None, "pods_s": time.perf_counter() - started},
        **later.describe(options, job_name(placed)),
    }
    over = () if whole is None or training is None else over_limits(whole, training)
    if over:
        raise NothingFits(f"{path} on {cluster.text}: placed, but {' and '.join(over)}", result=described)
    return described


def describe_existing(plan: Plan, cluster: Cluster, method: str, step: str) -> dict[str, Any]:
    """Return what the answer of `place` says of a plan whose sites are its own, whatever was done with it."""
    return {
        "model": plan.model.name,
        "cluster": cluster.text,
        "method": method,
        "step": step,
        "proved": False,
        "local": None,
        "sites": _sites(plan),
        "pods": [],
        "links": [],
        "routes": [],
        "plan": json.loads(plan_to_json(plan)),
        "score": score_of_plan(plan) | {"pods": None},
        "training": None,
        "alternatives": [],
    }


def load_plan_place(plan: Plan, options: PlaceOptions, store: ProfileStore | None, where: str) -> tuple[Model, Cluster]:
    """Return the model of a plan and the cluster that it is to be placed on, all of it free."""
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
    return model, cluster


def pricing_by(store: ProfileStore | None) -> Evaluate:
    """Return what prices setups with what the store has measured, or without."""
    return partial(evaluate, pricing=Pricing()) if store is None else partial(evaluate_with_store, store=store)


def _placed(plan: Plan, options: PlaceOptions, store: ProfileStore | None, where: str) -> PlacedPlan:
    model, base = load_plan_place(plan, options, store, where)
    occupancy = occupancy_of(base, options)
    cluster = cluster_now(base, options, occupancy, len(plan.devices))
    setup = setup_of_plan(plan, model, cluster, free_places(_wanted(plan, cluster), cluster, where), where=where)
    price = pricing_by(store)
    in_pods = place_plan(setup, price, wishes_of(options))
    if isinstance(in_pods, Infeasible):
        raise NothingFits(f"{where} on {cluster.text}: {in_pods.reason}", result=in_pods)
    if not in_pods.sites:
        said = in_pods.notes[0] if in_pods.notes else f"{cluster.text} has no pods"
        expected = "a plan of whole nodes on a cluster with pods: --topology FILE, or levels of its fabric"
        raise InputError(where=where, key="--plan", found=said, expected=expected)
    return PlacedPlan(
        setup=in_pods.setup, evaluation=in_pods.evaluation, in_pods=in_pods, evaluate=price, occupancy=occupancy
    )


def _wanted(plan: Plan, cluster: Cluster) -> list[tuple[str, str]]:
    """The site and device type of every rank; of a cluster of one site that one."""
    single = cluster.sites[0].name if len(cluster.sites) == 1 else None
    return [(single or device.site, device.device) for device in plan.devices]


def _sites(plan: Plan) -> list[dict[str, Any]]:
    names = dict.fromkeys(device.site for device in plan.devices)
    return [
        {
            "name": name,
            "devices": [
                {
                    "node": device.node,
                    **({} if device.host is None else {"host": device.host}),
                    "index": device.index,
                    "device": device.device,
                    "rank": device.rank,
                }
                for device in plan.devices
                if device.site == name
            ],
        }
        for name in names
    ]


def score_of_plan(plan: Plan) -> dict[str, Any]:
    """Return the score of a plan whose sites are its own."""
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
