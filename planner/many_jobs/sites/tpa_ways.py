"""How the groups of devices of a job are joined between sites, as the estimator routes traffic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from estimator.communication.groups import routes_of
from estimator.pricing.pricing import Pricing
from planner.many_jobs.sites.tpa_sites import Party, SiteGraph
from planner.one_job.search.mixed.space import Group
from profiles.cluster import Cluster
from profiles.records import dataclass
from profiles.vocabulary import DType


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ways:
    """Groups on a cluster."""

    groups: Sequence[Group]
    cluster: Cluster
    pricing: Pricing

    def graph(self, dtype: DType) -> SiteGraph:
        """The groups with what joins each two: the fabric inside a site, between sites the thinnest link on the way and
        the sum of latencies."""
        both = [[self._width(here, there) for there in self.groups] for here in self.groups]
        return SiteGraph(
            speed=tuple(len(group.slots) * (group.device.peak(dtype) or 1.0) for group in self.groups),
            bandwidth_bytes_per_s=tuple(tuple(width for width, _ in row) for row in both),
            latency_s=tuple(tuple(far_s for _, far_s in row) for row in both),
        )

    @property
    def pass_others(self) -> bool:
        """Whether traffic between two sites goes over a third, so that what joins two does not tell all."""
        routes = routes_of(self.cluster)
        pairs = itertools.combinations(dict.fromkeys(group.site for group in self.groups), 2)
        return any(len(routes.route(*pair) or ()) > 1 for pair in pairs)

    def in_ring(self, party: Party) -> Party:
        """The groups in the order in which a ring through their sites has most bandwidth, each type together."""
        return self.pricing.remember(self._in_ring, party)

    def _in_ring(self, party: Party) -> Party:
        ring = routes_of(self.cluster).best_ring([self.groups[number].site for number in party])
        types = list(dict.fromkeys(self.groups[number].own.device for number in party))

        def place(number: int) -> tuple[int, int]:
            group = self.groups[number]
            return types.index(group.own.device), 0 if ring is None else ring.order.index(group.site)

        return tuple(sorted(party, key=place))

    def _width(self, group: Group, other: Group) -> tuple[float, float]:
        if group.site == other.site:
            fabric = self.cluster.site(group.site).fabric_link
            return fabric.bandwidth_bytes_per_s * fabric.efficiency, fabric.latency_s
        way = routes_of(self.cluster).route(group.site, other.site)
        if way is None:
            return 0.0, math.inf
        return min(link.bandwidth_bytes_per_s for link in way), sum(link.latency_s for link in way)
