"""Other ways to place a job over sites than the one chosen, planned as it is, and why each loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.many_jobs.placement.ground import Ground, devices_of, plan_on
from planner.many_jobs.placement.placing import PlacedJob
from planner.many_jobs.sites.choosing import choose_sites, why_it_loses
from planner.many_jobs.sites.records import Alternative, Demand, Score, Share
from planner.many_jobs.sites.scoring import score_sites
from planner.many_jobs.sites.state import local_number
from planner.shared.options.search import PlaceOptions

FEW_PRICED = 12
"""Plans that are priced for another way; the one chosen has `planner.many_jobs.sites.tpa.MOST_PRICED`."""
MOST_SINGLE = 3
"""Other single sites that are looked at, those with most devices."""
EQUAL = 5e-3
"""Times closer than this to another count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWay:
    """Another way: what it is, the devices that it takes by site, the score of its sites (None: they are some of those
    chosen), seconds of an iteration (None: no plan, or it was not planned), and why it loses."""

    name: str
    sites: tuple[Share, ...]
    score: Score | None
    iteration_time_s: float | None
    loses: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "name": self.name,
            "sites": [share.to_json() for share in self.sites],
            "score": None if self.score is None else self.score.to_json(),
            "iteration_time_s": self.iteration_time_s,
            "loses": self.loses,
        }


def other_ways(job: PlacedJob, wanted: PlaceOptions) -> tuple[PlannedWay, ...]:
    """Return other ways to place the job, each with why it loses: parts of the chosen sites, which the plan's own
    search has priced; then other sites, `wanted.alternatives` of them planned, beside those that were before the
    choice. A way whose sites are those of one before is left out."""
    ways = list(_of_chosen_sites(job))
    seen = {job.placement.sites}
    planned = 0
    for name, shares, score, reason in _others(job, wanted):
        if shares in seen and shares:
            continue
        seen.add(shares)
        if not shares:
            ways.append(PlannedWay(name=name, sites=(), score=None, iteration_time_s=None, loses=reason))
            continue
        time_s, said = None, f"{reason}; not planned (--alternatives)"
        if shares in job.tried or planned < wanted.alternatives:
            if shares in job.tried:
                time_s = job.tried[shares]
            else:
                planned += 1
                time_s = _time_on(job.ground, shares, wanted)
            said = f"{reason}; no plan fits" if time_s is None else f"{_beside(time_s, job)}; {reason}"
        ways.append(PlannedWay(name=name, sites=shares, score=score, iteration_time_s=time_s, loses=said))
    return tuple(ways)


def _of_chosen_sites(job: PlacedJob) -> Iterator[PlannedWay]:
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
        yield PlannedWay(
            name=name, sites=shares, score=None, iteration_time_s=time_s, loses=f"{_beside(time_s, job)}; {kept}"
        )


Way = tuple[str, tuple[Share, ...], Score | None, str]
"""Name, devices by site, the sites' score, why it loses."""


def _others(job: PlacedJob, wanted: PlaceOptions) -> Iterator[Way]:
    ground, best = job.ground, job.placement.score
    yield from _single_sites(job)
    for alternative in job.placement.alternatives:
        yield _as_way(ground, alternative)
    for name, demand, other in _without(ground):
        choice = choose_sites(other.table, demand, method=wanted.method)
        if choice is None:
            yield name, (), None, "finds no sites"
            continue
        # The sites are scored by the links as they are now, whatever they were chosen by.
        score = score_sites(ground.table.topology, choice[0].sites, local_number(ground.table, ground.demand))
        yield name, other.table.shares(choice[1]), score, why_it_loses(score, best)


def _as_way(ground: Ground, alternative: Alternative) -> Way:
    """What choosing sites says of another way; sites that have too little are planned with what they have."""
    if alternative.name == "local site alone" and ground.demand.local is not None:
        return alternative.name, _all_of(ground, ground.demand.local), None, alternative.loses
    return alternative.name, alternative.sites, alternative.score, alternative.loses


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


def _single_sites(job: PlacedJob) -> Iterator[Way]:
    """Other sites that have enough devices by themselves."""
    ground, table = job.ground, job.ground.table
    demand = ground.demand
    sites: dict[tuple[Share, ...], tuple[int, str]] = {}
    for wanted in demand.type_choices(table.types):
        free = table.free_for(wanted)
        for site, count in enumerate(free):
            if count >= demand.devices:
                held = table.split(((site, demand.devices),), wanted)
                sites.setdefault(table.shares(held), (count, table.topology.names[site]))
    ranked = sorted(sites.items(), key=lambda item: (-item[1][0], item[1][1]))
    shown = 0
    for shares, (_, name) in ranked:
        if shares == job.placement.sites:
            continue
        shown += 1
        if shown > MOST_SINGLE:
            return
        score = score_sites(table.topology, (table.number(name),), local_number(ground.table, ground.demand))
        yield f"{name} alone", shares, score, why_it_loses(score, job.placement.score)


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
