"""What `cellplan contention --json` says."""

from __future__ import annotations

from math import isfinite
from typing import Any

from planner.contention.contending import Contention, JobContention, LinkContention
from profiles.host_lists import fold_hosts


def describe(contention: Contention, devices: int) -> dict[str, Any]:
    """Return the figures of jobs and of the links that they share, and of the cluster, which has so many devices."""
    jobs, names = contention.jobs, contention.fabric.links.names
    return {
        "jobs": [_job(job, contention) for job in jobs],
        "links": [_link(link, contention) for link in contention.links],
        "utilization": _utilization(jobs, devices),
        "hosts": len(names[: contention.fabric.links.nodes]),
        "devices": devices,
        "short_plays": contention.short_plays,
    }


def _job(found: JobContention, contention: Contention) -> dict[str, Any]:
    links = contention.fabric.links
    nodes = list(dict.fromkeys(seat.node for seat in found.job.seats))
    return {
        "id": found.job.id,
        "devices": len(found.job.seats),
        "hosts": fold_hosts(links.names[node] for node in nodes),
        "level": found.job.level,
        "weight": found.job.weight,
        "alone_s": _finite(found.alone_s),
        "iteration_time_s": _finite(found.seconds),
        "range_s": [_finite(end) for end in found.range_s],
        "compute_s": found.compute_s,
        "exposed_communication_s": _finite(found.exposed_s),
        "exposed_alone_s": _finite(found.alone_s - found.compute_s),
        "gpu_utilization": found.busy,
        "gpu_utilization_alone": found.compute_s / found.alone_s,
        "sent_bytes": found.sent_bytes,
        "intensity_flops_per_s": found.intensity,
        "unstable": found.unstable,
        "steady": found.steady,
        "slowed_by": [
            {
                "id": slower.id,
                "gained_s": _finite(slower.gained_s),
                "links": [links.name(link) for link in slower.links],
            }
            for slower in found.slowed_by
        ],
        "provenance": "modelled",
    }


def _link(found: LinkContention, contention: Contention) -> dict[str, Any]:
    jobs = [contention.jobs[number].job for number in found.jobs]
    return {
        "name": contention.fabric.links.name(found.link),
        "bandwidth_bytes_per_s": float(contention.fabric.links.bytes_per_s[found.link]),
        "busy": found.busy,
        "jobs": [{"id": job.id, "level": job.level} for job in jobs],
    }


def _utilization(jobs: tuple[JobContention, ...], devices: int) -> dict[str, float | None]:
    """GPU utilisation both ways in which Crux says it: the work done a second (eq. 1), here and if nobody met; the
    share of GPU-seconds that are busy, of all devices and of those of jobs."""
    held = sum(len(job.job.seats) for job in jobs)
    busy = sum(len(job.job.seats) * job.busy for job in jobs)
    alone = sum(len(job.job.seats) * job.compute_s / job.alone_s for job in jobs)
    known = all(job.job.flops is not None for job in jobs)
    return {
        "flops_per_s": sum((job.job.flops or 0.0) / job.seconds for job in jobs) if known else None,
        "flops_per_s_alone": sum((job.job.flops or 0.0) / job.alone_s for job in jobs) if known else None,
        "busy_of_all_devices": busy / devices,
        "busy_of_held_devices": busy / held,
        "busy_of_held_devices_alone": alone / held,
    }


def _finite(value: float) -> float | None:
    """A figure; None of what never ends."""
    return value if isfinite(value) else None
