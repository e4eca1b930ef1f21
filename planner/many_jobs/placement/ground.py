"""What a job is placed on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planner.many_jobs.sites.link_measurements import LinkNow
from planner.many_jobs.sites.records import Demand
from planner.many_jobs.sites.state import SiteTable
from planner.many_jobs.sites.topology import Topology
from planner.one_job.search.request import SearchRequest
from profiles.cluster import Cluster


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a job is placed on: the search's request on all that is free, the links as they are now, what was measured
    of them, and the topology of the cluster file."""

    request: SearchRequest
    demand: Demand
    table: SiteTable
    filed: Topology
    links: tuple[LinkNow, ...]

    @property
    def cluster(self) -> Cluster:
        """With the links as they are now."""
        return self.request.cluster

    @cached_property
    def measured(self) -> bool:
        """Whether any link differs from the file's."""
        return any(link.basis != "file" for link in self.links)
