"""A cluster as far as the options of `place` say that it is free: now, or when enough of it is."""

from __future__ import annotations

from planner.many_jobs.placement.job_ends import predictor_of
from planner.one_job.free_devices.coming_free import Occupancy, read_occupancy, too_few
from planner.one_job.free_devices.reading import cluster_with_free
from planner.shared.options.place import PlaceOptions
from profiles.cluster import Cluster


def occupancy_of(cluster: Cluster, options: PlaceOptions) -> Occupancy | None:
    """Return what holds the cluster's nodes by `--running`, and when it ends; None where that is not asked."""
    if options.running is None:
        return None
    return read_occupancy(
        cluster,
        options.running,
        free=options.free,
        predict=None if options.jct is None else predictor_of(options.jct),
        now_s=options.now,
        lenient=options.lenient,
    )


def cluster_now(cluster: Cluster, options: PlaceOptions, occupancy: Occupancy | None, devices: int) -> Cluster:
    """Return the cluster with what is free now; where `devices` are not, and nodes are to be reserved, when they are.

    Raise NothingFits where too few are free, with how many and when enough come free.
    """
    if occupancy is None:
        if options.free is None:
            return cluster
        return cluster_with_free(cluster, options.free, lenient=options.lenient)
    return occupancy.cluster_at(first_start_s(occupancy, options, devices) or None)


def first_start_s(occupancy: Occupancy, options: PlaceOptions, devices: int) -> float:
    """Return after how many seconds the job may start at the earliest: 0, or where it is to be reserved for, when
    enough devices are free. Raise NothingFits as `cluster_now`."""
    first_s = occupancy.first_with(devices)
    if first_s is None or (first_s and not options.reserve):
        raise too_few(occupancy, devices, occupancy.cluster.text)
    return first_s
