"""Choices of sites that the order of choosing cannot tell apart, and what traffic makes of links: whose plan is best?

The order is fewest sites, widest paths, least latency (`planner.many_jobs.sites.choosing`). It knows neither how fast
devices are nor what fits on them, and a widest path may lead over other sites where traffic takes the sites' own thin
link.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from estimator.communication.groups import routes_of
from planner.many_jobs.placement.ground import Ground
from planner.many_jobs.sites.choosing import sufficient_sites
from planner.many_jobs.sites.filling import fill
from planner.many_jobs.sites.paths import joining_links
from planner.many_jobs.sites.records import Share, SitePlacement
from planner.many_jobs.sites.scoring import score_sites
from planner.many_jobs.sites.state import local_number

MOST_EQUAL = 6
"""Single sites of different kinds that are planned on, those with the fastest devices first."""
MOST_SETS, MOST_ROUTED = 3000, 2
"""Of so many sets of sites at most, the widest by the links that traffic takes."""


def equal_choices(ground: Ground, placement: SitePlacement) -> tuple[SitePlacement, ...]:
    """`placement`, and others that are as good in the order of choosing, or better by the links that traffic takes;
    each kind of site once."""
    choices = {_kind(ground, placement.sites): placement}
    several = placement.score.sites > 1
    for other in _routed(ground, placement) if several else _single(ground, placement):
        choices.setdefault(_kind(ground, other.sites), other)
        if len(choices) > MOST_EQUAL:
            break
    return tuple(choices.values())


def _single(ground: Ground, placement: SitePlacement) -> Iterator[SitePlacement]:
    """Sites that have enough by themselves, with devices of one type or as they come, and the same score."""
    table, demand = ground.table, ground.demand
    names = tuple(demand.types or table.types)
    types = [(name,) for name in names] + ([] if demand.one_type else [names])
    ranked = [
        (-_speed(ground, shares), name, shares, score)
        for _, name, shares, score in sufficient_sites(table, demand, types)
        if score.key <= placement.score.key
    ]
    for _, _, shares, score in sorted(ranked, key=lambda entry: entry[:2]):
        yield replace(placement, sites=shares, links=(), score=score, step="fastest of equal sites")


def _routed(ground: Ground, placement: SitePlacement) -> Iterator[SitePlacement]:
    """As few sites, those around which a ring is widest by the links that traffic takes; of few such sets."""
    table, demand, local = ground.table, ground.demand, local_number(ground.table, ground.demand)
    topology, routes = table.topology, routes_of(ground.cluster)
    for types in demand.type_choices(table.types):
        free = table.free_for(types)
        sites = [number for number, count in enumerate(free) if count]
        if math.comb(len(sites), placement.score.sites) > MOST_SETS:
            continue
        ranked = []
        for some in itertools.combinations(sites, placement.score.sites):
            if sum(free[number] for number in some) < demand.devices:
                continue
            ring = routes.best_ring([topology.names[number] for number in some])
            if ring is not None:
                ranked.append((-ring.bandwidth_bytes_per_s, ring.latency_s, some))
        for _, _, some in sorted(ranked)[:MOST_ROUTED]:
            links = joining_links(topology.forest_neighbours, some)
            yield replace(
                placement,
                sites=table.shares(table.split(fill(some, free, demand.devices), types)),
                links=tuple((topology.names[first], topology.names[second]) for first, second in links),
                score=score_sites(topology, some, local),
                step="sites, by the links that traffic takes",
                proved=False,
            )


def _speed(ground: Ground, shares: tuple[Share, ...]) -> float:
    devices = {group.device.name: group.device for site in ground.cluster.sites for group in site.nodes}
    dtype = ground.request.spaces[0].evaluator.recipe.dtype
    return sum(count * (devices[name].peak(dtype) or 0.0) for share in shares for name, count in share.devices)


def _kind(ground: Ground, shares: tuple[Share, ...]) -> object:
    """What the plan on one site depends on; several sites are a kind of their own."""
    if len(shares) > 1:
        return tuple(sorted((share.site, share.devices) for share in shares))
    site = ground.cluster.site(shares[0].site)
    return shares[0].devices, tuple(replace(group, free=None) for group in site.nodes), site.fabric_link
