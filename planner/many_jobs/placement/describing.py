"""A placed job as JSON and as files: the plan, and the cluster it was made on where that has other links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimator.pricing.training import Training
from planner.many_jobs.placement.placing import PlacedJob
from planner.many_jobs.placement.pods import placed_plan
from planner.many_jobs.sites.current_links import Route
from planner.many_jobs.sites.records import Alternative
from planner.one_job.explicit.whole import describe_training
from planner.one_job.site_pods.describing import describe_pod_ways, describe_pods, describe_pods_score
from planner.one_job.site_pods.placing import PlanInPods
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_to_json, save_plan
from profiles.cluster import host_of
from profiles.cluster_description import describe_cluster
from profiles.files import write_atomically
from profiles.yaml_files import yaml_text


def describe_placed(
    job: PlacedJob, plan: Plan, ways: Sequence[Alternative], options: PlaceOptions, training: Training | None = None
) -> dict[str, Any]:
    """Return the value of `cellplan place --json`. `rank` is None for a device that the plan leaves idle;
    `between_sites_s` what of an iteration would go if links between sites took no time. `training`: what a whole one
    takes, where that is asked for. `pods` and `score.pods` are of the sites that have any."""
    placement, estimate, basis = job.placement, plan.estimate, plan.provenance
    return {
        "model": plan.model.name,
        "cluster": job.ground.cluster.text,
        "method": placement.method,
        "step": placement.step,
        "proved": placement.proved,
        "local": job.ground.demand.local,
        "sites": _sites(job, plan),
        "pods": [] if job.in_pods is None else describe_pods(job.in_pods),
        "links": _links(job),
        "routes": [_route(route) for route in job.routes],
        "plan": json.loads(plan_to_json(plan)),
        "score": {
            **placement.score.to_json(),
            "iteration_time_s": estimate.iteration_time_s,
            "samples_per_s": estimate.samples_per_s,
            "between_sites_s": job.between_s,
            "between_sites_share": job.between_s / estimate.iteration_time_s,
            "basis": {"compute": basis.compute, "communication": basis.communication, "links": _basis(job)},
            "sites_used": list(job.sites_used),
            "idle_devices": len(job.idle),
            "pods": None if job.in_pods is None else describe_pods_score(job.in_pods, options.pods_method),
        },
        "training": None if training is None else describe_training(training),
        "alternatives": [
            *([] if job.in_pods is None else describe_pod_ways(job.in_pods, options.alternatives)),
            *(way.to_json() for way in ways),
        ],
        "timing": dict(job.timing),
    }


def save_placed(job: PlacedJob, path: Path, reserved: PlanInPods | None = None) -> tuple[Plan, Path | None]:
    """Write the plan to `path` (that of a later start where nodes are `reserved` for one), and the cluster beside it
    where its links are not those of the cluster file: the plan then names that one, so that `estimate --plan` finds the
    same links. Return the job's plan, and the cluster's file if one was written."""
    plan = job.plan
    later = None
    if reserved is not None:
        later = placed_plan(reserved, reference=plan.model.reference, assumptions=plan.assumptions)
    if not job.ground.measured:
        save_plan(later or plan, path)
        return plan, None
    beside = path.with_name(f"{path.stem}.cluster.yaml")
    head = f"# {job.ground.cluster.text}, with its links between sites as {path.name} was made on.\n"
    write_atomically(beside, head + yaml_text(describe_cluster(job.ground.cluster)))
    plan = replace(plan, cluster=str(beside))
    save_plan(plan if later is None else replace(later, cluster=str(beside)), path)
    return plan, beside


def _sites(job: PlacedJob, plan: Plan) -> list[dict[str, Any]]:
    ranks = {(device.site, device.node, device.index): device.rank for device in plan.devices}
    return [
        {
            "name": share.site,
            "devices": [
                {
                    "node": slot.node,
                    **({} if (host := host_of(job.ground.cluster, slot)) is None else {"host": host}),
                    "index": slot.index,
                    "device": slot.device,
                    "rank": ranks.get((slot.site, slot.node, slot.index)),
                }
                for slot in job.slots
                if slot.site == share.site
            ],
        }
        for share in job.placement.sites
    ]


def _links(job: PlacedJob) -> list[dict[str, Any]]:
    """Every link that the chosen sites' widest paths run over, and every one that was measured."""
    used = {frozenset(link) for link in job.placement.links}
    return [
        link.to_json() | {"used": frozenset(link.between) in used}
        for link in job.ground.links
        if link.basis != "file" or link.age_s is not None or frozenset(link.between) in used
    ]


def _route(route: Route) -> dict[str, Any]:
    return {
        "sites": list(route.sites),
        "bandwidth_bytes_per_s": route.bandwidth_bytes_per_s,
        "latency_s": route.latency_s,
    }


def _basis(job: PlacedJob) -> str | None:
    """Where the figures of the links between the chosen sites come from; None for one site."""
    used = {frozenset(link) for link in job.placement.links}
    bases = {link.basis for link in job.ground.links if frozenset(link.between) in used}
    return None if not bases else next(iter(bases)) if len(bases) == 1 else "measured and file"
