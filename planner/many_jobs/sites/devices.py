"""Which devices a job gets of the sites chosen for it: by the buddy allocator of each site and type."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.sites.buddy import near_devices
from planner.many_jobs.sites.domains import domain_of_site
from planner.many_jobs.sites.records import Share
from profiles.cluster import Cluster, DeviceSlot


def give_devices(cluster: Cluster, shares: Sequence[Share]) -> tuple[DeviceSlot, ...] | None:
    """Return the free devices of `cluster` that these shares get, near each other, in the order of the cluster; None
    where a site has fewer free. KeyError for a site that there is not."""
    free = set(cluster.free_slots)
    taken: set[DeviceSlot] = set()
    for share in shares:
        for device, count in share.devices:
            domain, slots = domain_of_site(cluster.site(share.site), device)
            given = near_devices(domain, (number for number, slot in enumerate(slots) if slot in free), count)
            if given is None:
                return None
            taken.update(slots[number] for number in given)
    return tuple(slot for slot in cluster.free_slots if slot in taken)
