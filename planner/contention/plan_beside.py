"""A plan on its cluster's fabric beside jobs that run there: `estimate --plan P --network flow --beside JOBS`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from estimator.network.fabric import fabric_of
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from planner.contention.contending import contend
from planner.contention.describing import describe
from planner.contention.jobs_file import PlacedJob, Places, read_jobs
from planner.one_job.explicit.on_fabric import free_traffic, seats_of
from profiles.errors import InputError

PLAN = "plan"
"""What the plan is called among the jobs. It comes first on a link with those of level 0, and its weight is 1."""
OF_THE_PLAN = (
    "iteration_time_s",
    "range_s",
    "exposed_communication_s",
    "exposed_alone_s",
    "gpu_utilization",
    "gpu_utilization_alone",
    "unstable",
    "steady",
    "slowed_by",
)


def read_beside(path: Path, setup: Setup) -> tuple[PlacedJob, ...]:
    """Return the jobs of the file at `path` that run on the cluster of `setup`, a plan's. Raise InputError as
    `read_jobs`, and for a job on a device of the plan or that is called as the plan is."""
    jobs = read_jobs(path, setup.cluster)
    names = Places(setup.cluster).names
    ours = set(seats_of(setup))
    for number, job in enumerate(jobs):
        if job.id == PLAN:
            expected = f"another name: {PLAN!r} is the plan that is estimated, which needs no job of its own"
            raise InputError(where=str(path), key=f"jobs[{number}].id", found=repr(job.id), expected=expected)
        taken = next((seat for seat in job.seats if seat in ours), None)
        if taken is not None:
            found = f"job {job.id} on device {taken.device} of {names[taken.node]}, which the plan has"
            raise InputError(where=str(path), key=f"jobs[{number}].hosts", found=found, expected="other devices")
    return jobs


def describe_beside(setup: Setup, pricing: Pricing | None, others: Sequence[PlacedJob]) -> dict[str, Any]:
    """Return what an iteration of a plan takes alone and beside the others, who slows it and whom it slows, and the
    links on which it meets them. NothingFits for a job whose nodes no way joins."""
    traffic = free_traffic(setup, pricing)
    ours = PlacedJob(id=PLAN, seats=seats_of(setup), traffic=traffic, flops=traffic.flops, first_ports=0)
    said = describe(contend((ours, *others), fabric_of(setup.cluster)), len(setup.cluster.slots))
    plan, *rest = said["jobs"]
    return {
        "jobs": len(rest),
        "alone_s": plan["alone_s"],
        **{name: plan[name] for name in OF_THE_PLAN},
        "slows": _slowed(rest),
        "links": [link for link in said["links"] if PLAN in (job["id"] for job in link["jobs"])],
        "provenance": "modelled",
    }


def _slowed(jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Jobs that the plan slows, the most first; what one never gets through loses has no end (None)."""
    slowed = [
        {"id": job["id"], "lost_s": slower["gained_s"], "links": slower["links"]}
        for job in jobs
        for slower in job["slowed_by"]
        if slower["id"] == PLAN
    ]
    return sorted(slowed, key=lambda each: (each["lost_s"] is not None, -(each["lost_s"] or 0.0), each["id"]))
