"""What a job is placed on, and the plan on some of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from planner.many_jobs.placement.pods_plan import plan_for_pods
from planner.many_jobs.sites.devices import give_devices
from planner.many_jobs.sites.link_measurements import LinkNow
from planner.many_jobs.sites.records import Demand, Share
from planner.many_jobs.sites.state import SiteTable
from planner.many_jobs.sites.topology import Topology
from planner.many_jobs.sites.tpa import MOST_PRICED, Across, on_devices, plan_across
from planner.one_job.free_devices.coming_free import Occupancy
from planner.one_job.search.spaces.request import SearchRequest
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a job is placed on: the search's request on all that is free, the links as they are now, what was measured
    of them, the topology of the cluster file, and what comes free later, where that was asked."""

    request: SearchRequest
    demand: Demand
    table: SiteTable
    filed: Topology
    links: tuple[LinkNow, ...]
    occupancy: Occupancy | None = None

    @property
    def cluster(self) -> Cluster:
        """With the links as they are now."""
        return self.request.cluster

    @cached_property
    def measured(self) -> bool:
        """Whether any link differs from the file's."""
        return any(link.basis != "file" for link in self.links)


def sites_of(slots: Sequence[DeviceSlot]) -> tuple[str, ...]:
    """The sites of devices, each once."""
    return tuple(dict.fromkeys(slot.site for slot in slots))


def devices_of(ground: Ground, shares: Sequence[Share]) -> tuple[DeviceSlot, ...]:
    """The devices of shares that the table has free."""
    slots = give_devices(ground.cluster, shares)
    if slots is None:
        raise RuntimeError(f"the table has {shares} free, and the sites have not")
    return slots


def plan_on(
    ground: Ground,
    slots: Sequence[DeviceSlot],
    *,
    all_sites: bool = False,
    most: int = MOST_PRICED,
) -> Across | None:
    """The plan on these devices; None where none fits. Of sites that nothing joins one is used; of one site with pods
    the plan is the exact search's."""
    request = on_devices(ground.request, slots)
    in_pods = plan_for_pods(request, slots)
    if in_pods is not None:
        return in_pods
    return plan_across(request, wanted="all-sites" if all_sites else "any", most=most)
