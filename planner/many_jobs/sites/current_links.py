"""The links between sites as they are now, as the cluster that a plan is made on: measured ones in place of the file's;
and the ways over other sites where two of a job's sites have no link of their own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from estimator.communication.groups import routes_of
from planner.many_jobs.sites.topology import Topology
from profiles.cluster import Cluster, SiteLink
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way that the estimator takes between two sites that no link joins directly: the sites it passes, both ends
    among them; bytes/s of its thinnest link, and the sum of latencies."""

    sites: tuple[str, ...]
    bandwidth_bytes_per_s: float
    latency_s: float


def with_topology(cluster: Cluster, topology: Topology) -> Cluster:
    """Return the cluster with the links of `topology` between its sites; links of 0 bytes/s are left out."""
    names = topology.names
    links = tuple(
        SiteLink(between=(names[a], names[b]), bandwidth_bytes_per_s=width, latency_s=far)
        for a, b, width, far in topology.edges
    )
    return replace(cluster, site_links=links)


def routes_between(cluster: Cluster, sites: Sequence[str]) -> tuple[Route, ...]:
    """Return the ways between every two of `sites` that others join, but no link of their own."""
    routes, ways = routes_of(cluster), []
    for start, end in itertools.combinations(sites, 2):
        way = routes.route(start, end)
        if way is None or len(way) < 2:
            continue
        passed = [start]
        for link in way:
            passed.append(link.between[1] if link.between[0] == passed[-1] else link.between[0])
        ways.append(
            Route(
                sites=tuple(passed),
                bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s for link in way),
                latency_s=sum(link.latency_s for link in way),
            )
        )
    return tuple(ways)
