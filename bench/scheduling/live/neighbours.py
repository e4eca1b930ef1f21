"""How neighbours on a node slow a job, for the simulation: between its time alone and its time on a full node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from estimator.cells.stage_pricing import Hardware
from estimator.pricing.layer_times import slowed
from planner.many_jobs.jobs.records import Grant, Job, Pool
from planner.many_jobs.scheduling.cell_book import EstimatedCells
from planner.many_jobs.simulation.settings import Placement, Truth
from planner.many_jobs.simulation.sharing import SharedAmounts
from profiles.cluster import NodeGroup


@dataclass(frozen=True, kw_only=True)
class NodeNeighbours(SharedAmounts):
    """A `planner.many_jobs.simulation.settings.Sharing` of the workers of a node. `alone` and `crowded` give seconds of
    an iteration with no other worker of its nodes busy, and with all of them; between these it grows evenly with the
    busy workers of the fullest node."""

    pools: Mapping[str, Pool]
    alone: Truth
    crowded: Truth

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        """Workers of each node."""
        del job, grant
        return {_name(pool, node): mask.bit_count() for pool, pieces in placement.items() for node, mask in pieces}

    def iteration_s(self, job: Job, grant: Grant, placement: Placement, in_use: Mapping[str, int]) -> float:
        """Seconds beside so many busy workers."""
        alone_s, crowded_s = self.alone(job, grant, placement), self.crowded(job, grant, placement)
        if alone_s is None or crowded_s is None:
            raise ValueError(f"job {job.id}: no time for {grant}")
        shares = [
            (in_use[_name(pool, node)] - mask.bit_count()) / (self.pools[pool].devices_per_node - mask.bit_count())
            for pool, pieces in placement.items()
            for node, mask in pieces
            if mask.bit_count() < self.pools[pool].devices_per_node
        ]
        return alone_s + (crowded_s - alone_s) * max(shares, default=0.0)


def _name(pool: str, node: int) -> str:
    return f"{pool}/{node}"


class CrowdedCells(EstimatedCells):
    """Cells whose every device is priced as with all of its pool's nodes busy, whoever works there, not with the job's
    own alone (where a neighbour slows it: see `Device.contention`)."""

    def hardware(self, pool: str, devices: int) -> Hardware:
        """With so many workers busy on every node as the pool has there."""
        alone, workers = super().hardware(pool, devices), self.pools[pool].devices_per_node
        # A job that fills its nodes has no neighbour: its own workers slow each other while they are busy.
        if not alone.device.contention or devices % workers == 0:
            return alone
        device = replace(alone.device.among(workers), contention=())

        def busy(group: NodeGroup) -> NodeGroup:
            return replace(group, device=device) if group.device == alone.device else group

        sites = tuple(replace(site, nodes=tuple(map(busy, site.nodes))) for site in alone.cluster.sites)
        cluster, lookup = replace(alone.cluster, sites=sites), slowed(alone.lookup, alone.device, workers)
        return replace(alone, cluster=cluster, device=device, lookup=lookup)
