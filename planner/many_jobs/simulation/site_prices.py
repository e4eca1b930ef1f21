"""What an iteration takes over several sites: the truth of a simulation, and how jobs share links between sites."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from planner.many_jobs.jobs.records import CellBook, Grant, Job, Workload
from planner.many_jobs.scheduling.sites.planners import Planned, Workshop, priced
from planner.many_jobs.scheduling.sites.shapes import Allocation, Shape, Shapes, links_of
from planner.many_jobs.simulation.settings import Placement, Truth
from planner.many_jobs.simulation.sharing import SharedAmounts
from planner.many_jobs.simulation.truth import cells_truth
from profiles.cluster import Cluster
from profiles.records import dataclass

Key = tuple[str, Workload, Shape]


class SitePrices:
    """Prices plans of grants on one cluster, and keeps the price of each shape of an allocation. `cost_s`: CPU seconds
    that making each plan took; it is no part of any result."""

    def __init__(self, cluster: Cluster) -> None:
        self.shapes, self.workshop = Shapes(cluster), Workshop()
        self.cost_s: dict[Key, float] = {}
        self._plans: dict[Key, Planned | None] = {}
        self._shared: dict[tuple[Key, tuple[int, ...]], float] = {}

    def key(self, workload: Workload, grant: Grant) -> tuple[Key, Allocation]:
        """What a grant's price is kept under, and its allocation."""
        allocation = self.shapes.of(grant.parts)
        return (grant.planner, workload, allocation.shape), allocation

    def plan(self, workload: Workload, grant: Grant) -> Planned | None:
        """The plan of the grant's planner, on a small cluster that stands for the allocation; None where none fits."""
        return self._plan(self.key(workload, grant)[0])

    def shared_s(self, workload: Workload, grant: Grant, in_use: Mapping[str, int]) -> float:
        """Seconds of an iteration of the same plan while each link is divided by the jobs that use it (`link_name`).
        ValueError where it does not fit."""
        key, allocation = self.key(workload, grant)
        planned = self._plan(key)
        if planned is None:
            raise ValueError(f"{grant} does not fit, expected one that does")
        names = allocation.names
        users = tuple(
            max(1, in_use.get(link_name(names[first], names[second]), 1)) for first, second, _, _ in key[2].links
        )
        if all(count == 1 for count in users):
            return planned.time_s
        if (key, users) not in self._shared:
            thinner = replace(planned.setup.cluster, site_links=links_of(key[2], users))
            slowed = priced(planned.setup, thinner)
            assert slowed is not None
            self._shared[key, users] = slowed.time_s
        return self._shared[key, users]

    def used_sites(self, workload: Workload, grant: Grant) -> tuple[str, ...]:
        """The sites on which the grant's plan has stages; ValueError where it does not fit."""
        key, allocation = self.key(workload, grant)
        planned = self._plan(key)
        if planned is None:
            raise ValueError(f"{grant} does not fit, expected one that does")
        number = {f"s{place}": name for place, name in enumerate(allocation.names)}
        return tuple(sorted(number[name] for name in planned.sites))

    def _plan(self, key: Key) -> Planned | None:
        if key not in self._plans:
            planner, workload, shape = key
            began_s = time.process_time()
            self._plans[key] = self.workshop.plan(planner, workload, self.shapes.cluster_of(shape))
            self.cost_s[key] = time.process_time() - began_s
        return self._plans[key]


def site_truth(prices: SitePrices, cells: CellBook) -> Truth:
    """The truth of jobs over sites: a grant's own planner's plan; without a planner the Cell on one pool."""
    of_cells = cells_truth(cells)

    def truth(job: Job, grant: Grant, placement: Placement | None) -> float | None:
        if not grant.planner:
            return of_cells(job, grant, placement)
        planned = prices.plan(job.workload, grant)
        return None if planned is None else planned.time_s

    return truth


@dataclass(frozen=True, kw_only=True)
class SharedLinks(SharedAmounts):
    """`planner.many_jobs.simulation.settings.Sharing` of links between sites: each is shared evenly by the running jobs
    whose plans have stages at both of its ends, whatever they send; a job's plan stays what it was when it started."""

    prices: SitePrices

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        """The links between every two sites of the job's plan, by name."""
        del placement
        if not grant.planner or len(grant.parts) == 1:
            return {}
        sites = self.prices.used_sites(job.workload, grant)
        return {link_name(*pair): 1 for pair in combinations(sites, 2)}

    def iteration_s(self, job: Job, grant: Grant, placement: Placement, in_use: Mapping[str, int]) -> float:
        """On links divided by who uses them."""
        del placement
        return self.prices.shared_s(job.workload, grant, in_use)


def link_name(first: str, second: str) -> str:
    """A link by the names of its sites, in whichever order."""
    return " - ".join(sorted((first, second)))
