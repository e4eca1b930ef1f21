"""Other ways to place a job over sites than the one chosen, planned as it is, and why each loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.many_jobs.placement.ground import Ground, devices_of, plan_on
from planner.many_jobs.placement.placing import PlacedJob
from planner.many_jobs.sites.choosing import choose_sites, sufficient_sites, why_it_loses
from planner.many_jobs.sites.records import Alternative, Demand, Share
from planner.many_jobs.sites.scoring import score_sites
from planner.many_jobs.sites.state import local_number
from planner.shared.options.place import PlaceOptions

FEW_PRICED = 12
"""Plans that are priced for another way; the one chosen has `planner.many_jobs.sites.tpa.MOST_PRICED`."""
MOST_SINGLE = 3
"""Other single sites that are looked at, those with most devices."""
EQUAL = 5e-3
"""Times closer than this to another count as equal."""


def other_ways(job: PlacedJob, wanted: PlaceOptions) -> tuple[Alternative, ...]:
    """Return other ways to place the job, each with why it loses: parts of the chosen sites, which the plan's own
    search has priced; then other sites, `wanted.alternatives` of them planned, beside those that were before the
    choice. A way whose sites are those of one before is left out."""
    ways = list(_of_chosen_sites(job))
    seen = {job.placement.sites}
    planned = 0
    for way in _others(job, wanted):
        if not way.sites:
            ways.append(replace(way, score=None))
            continue
        if way.sites in seen:
            continue
        seen.add(way.sites)
        time_s, said = None, f"{way.loses}; not planned (--alternatives)"
        if way.sites in job.tried or planned < wanted.alternatives:
            if way.sites in job.tried:
                time_s = job.tried[way.sites]
            else:
                planned += 1
                time_s = _time_on(job.ground, way.sites, wanted)
            said = f"{way.loses}; no plan fits" if time_s is None else f"{_beside(time_s, job)}; {way.loses}"
        ways.append(replace(way, iteration_time_s=time_s, loses=said))
    return tuple(ways)


def _of_chosen_sites(job: PlacedJob) -> Iterator[Alternative]:
    """The best plan found on each part of the sites that the job was given, all of them included."""
    chosen = {share.site: share for share in job.placement.sites}
    best: dict[frozenset[str], float] = {}
    for way in job.across.considered:
        sites = frozenset(name for party in way.sites for name in party)
        if way.iteration_time_s is not None:
            best[sites] = min(way.iteration_time_s, best.get(sites, way.iteration_time_s))
    used = frozenset(job.sites_used)
    for sites, time_s in sorted(best.items(), key=lambda item: (item[1], sorted(item[0]))):
        if sites == used:
            continue
        shares = tuple(share for share in job.placement.sites if share.site in sites)
        devices = sum(share.count for share in shares)
        name = "all chosen sites" if len(sites) == len(chosen) else f"{' and '.join(s.site for s in shares)} alone"
        kept = (
            "the plan leaves idle what only slows it"
            if len(sites) > len(used)
            else f"{devices} device{'s' * (devices > 1)}"
        )
        yield Alternative(
            name=name, sites=shares, score=None, iteration_time_s=time_s, loses=f"{_beside(time_s, job)}; {kept}"
        )


def _others(job: PlacedJob, wanted: PlaceOptions) -> Iterator[Alternative]:
    ground, best = job.ground, job.placement.score
    yield from _single_sites(job)
    for way in job.placement.alternatives:
        # Sites that have too little are planned with what they have.
        local = ground.demand.local if way.name == "local site alone" else None
        yield way if local is None else replace(way, sites=_all_of(ground, local), score=None)
    for name, demand, other in _without(ground):
        choice = choose_sites(other.table, demand, method=wanted.sites_method)
        if choice is None:
            yield Alternative(name=name, sites=(), score=None, loses="finds no sites")
            continue
        # The sites are scored by the links as they are now, whatever they were chosen by.
        score = score_sites(ground.table.topology, choice[0].sites, local_number(ground.table, ground.demand))
        shares = other.table.shares(choice[1])
        yield Alternative(name=name, sites=shares, score=score, loses=why_it_loses(score, best))


def _all_of(ground: Ground, site: str) -> tuple[Share, ...]:
    """All free devices of a site that the job can use, at most as many as it wants."""
    table, left = ground.table, ground.demand.devices
    devices: list[tuple[str, int]] = []
    number = table.number(site)
    for name, row in zip(table.types, table.free, strict=True):
        count = min(left, row[number]) if not ground.demand.types or name in ground.demand.types else 0
        if ground.demand.one_type and devices:
            break
        if count:
            devices.append((name, count))
            left -= count
    return (Share(site=site, devices=tuple(devices)),) if devices else ()


def _single_sites(job: PlacedJob) -> Iterator[Alternative]:
    """Other sites that have enough devices by themselves."""
    table, demand = job.ground.table, job.ground.demand
    ways = {
        shares: (-count, name, score)
        for count, name, shares, score in sufficient_sites(table, demand, demand.type_choices(table.types))
        if shares != job.placement.sites
    }
    for shares, (_, name, score) in sorted(ways.items(), key=lambda way: way[1][:2])[:MOST_SINGLE]:
        loses = why_it_loses(score, job.placement.score)
        yield Alternative(name=f"{name} alone", sites=shares, score=score, loses=loses)


def _without(ground: Ground) -> Iterator[tuple[str, Demand, Ground]]:
    """The choice of sites without each thing that was asked for, or measured."""
    demand = ground.demand
    if demand.local is not None:
        yield f"without --local {demand.local}", replace(demand, local=None), ground
    if demand.types:
        yield f"without --types {','.join(demand.types)}", replace(demand, types=()), ground
    if demand.one_type:
        yield "without --one-type", replace(demand, one_type=False), ground
    if ground.measured:
        filed = replace(ground, table=ground.table.with_topology(ground.filed))
        yield "by the cluster file's links", demand, filed


def _time_on(ground: Ground, shares: tuple[Share, ...], wanted: PlaceOptions) -> float | None:
    across = plan_on(ground, devices_of(ground, shares), all_sites=wanted.all_sites, most=FEW_PRICED)
    return None if across is None else across.best.time_s


def _beside(time_s: float, job: PlacedJob) -> str:
    """Another time beside the job's.

    45.1 s, 12% slower
    """
    more = time_s / job.across.best.time_s - 1
    if abs(more) < EQUAL:
        return "as fast"
    return f"{abs(more):.1%} {'slower' if more > 0 else 'faster'}"
