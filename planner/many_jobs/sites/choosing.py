"""Over which sites a job runs: a method by name, its answer as a record, the other ways and why they lose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from planner.many_jobs.sites.compact import compact_search
from planner.many_jobs.sites.exact import exact_search
from planner.many_jobs.sites.paths import joining_links
from planner.many_jobs.sites.records import Alternative, Choice, Demand, NoSites, Score, Share, SitePlacement
from planner.many_jobs.sites.scoring import score_sites
from planner.many_jobs.sites.shortage import explain_shortage
from planner.many_jobs.sites.spin_search import first_fit, spin_search
from planner.many_jobs.sites.state import Held, SiteTable, local_number
from planner.many_jobs.sites.topology import Topology
from profiles.errors import InputError

Search = Callable[[Topology, Sequence[int], int, int | None], Choice | None]
"""From topology, free devices of each site, devices wanted and the local site to sites with counts."""

METHODS: dict[str, Search] = {
    "compact": compact_search,
    "exact": exact_search,
    "spin-search": spin_search,
    "spin-search-free": partial(spin_search, anchor="free"),
    "spin-search-from-local": partial(spin_search, score="from-local"),
    "spin-search-from-local-free": partial(spin_search, score="from-local", anchor="free"),
    "first-fit": first_fit,
}
"""`spin-search` has equation 5's anchor and equation 2's score; `-free` the anchor of section 4.1.4, `-from-local`
the score of equation 3. `first-fit` is the literal reading of sections 4.1.2 and 4.1.3."""

DEFAULT = "compact"


def choose_sites(table: SiteTable, demand: Demand, *, method: str = DEFAULT) -> tuple[Choice, Held, Score] | None:
    """Return the sites by `method`, with the devices by type and the score; None if it finds none. Nothing is taken
    yet.

    With `one_type` each type is tried, and the best score wins, of equal ones the type named first. InputError for a
    site or method that there is not.
    """
    search, local = _method(method), local_number(table, demand)
    types = [name for name in demand.types or table.types if name in table.types]
    if not types:
        return None
    tries = [(name,) for name in types] if demand.one_type else [tuple(types) if demand.types else ()]
    best: tuple[Choice, Held, Score] | None = None
    for wanted in tries:
        choice = search(table.topology, table.free_for(wanted), demand.devices, local)
        if choice is None:
            continue
        score = score_sites(table.topology, choice.sites, local)
        if best is None or score.key < best[2].key:
            best = choice, table.split(choice.shares, wanted), score
    return best


def place_on_sites(table: SiteTable, demand: Demand, *, method: str = DEFAULT) -> SitePlacement | NoSites:
    """Return where a job's devices are, with the other ways and why they lose; or why there is no place.

    Nothing is taken. InputError for a site or method that there is not.
    """
    chosen = choose_sites(table, demand, method=method)
    if chosen is None:
        return _no_place(table, demand, method)
    choice, held, score = chosen
    names = table.topology.names
    links = joining_links(table.topology.forest_neighbours, choice.sites)
    placement = SitePlacement(
        method=method,
        step=choice.step,
        sites=table.shares(held),
        links=tuple((names[first], names[second]) for first, second in links),
        score=score,
        proved=choice.proved,
    )
    return replace(placement, alternatives=tuple(_alternatives(table, demand, placement)))


def why_it_loses(other: Score, best: Score) -> str:
    """Return a sentence: in what `other` is behind `best`, in the order of `Score.key`; or that it is not."""
    if not other.bandwidth_bytes_per_s and best.bandwidth_bytes_per_s:
        return f"{other.sites} sites that no path joins"
    if other.key < best.key:
        return f"better: {_figures(other)} against {_figures(best)}"
    if other.sites != best.sites:
        return f"{other.sites} sites, {other.sites - best.sites} more"
    narrow, wide = other.bandwidth_bytes_per_s, best.bandwidth_bytes_per_s
    if narrow != wide:
        return f"as many sites, but {narrow / 1e9:.3g} GB/s between them, {1 - narrow / wide:.0%} less"
    if other.distance_s != best.distance_s:
        if math.isinf(other.distance_s):
            return "as many sites and as wide, but no path joins them to the local site"
        far, near = other.distance_s * 1e3, best.distance_s * 1e3
        return f"as many sites and as wide, but {far:.4g} ms of latency, {far - near:.3g} ms more"
    return "equal in sites, bandwidth and latency"


def _alternatives(table: SiteTable, demand: Demand, placement: SitePlacement) -> Iterator[Alternative]:
    """Sites alone that nearly suffice, then what the other methods find, each set of sites once."""
    yield from _single_sites(table, demand)
    seen = {placement.sites}
    for name in METHODS:
        if name in (placement.method, "exact"):
            continue
        other = choose_sites(table, demand, method=name)
        if other is None:
            yield Alternative(name=name, sites=(), score=None, loses="finds no sites")
            continue
        shares = table.shares(other[1])
        if shares in seen:
            continue
        seen.add(shares)
        yield Alternative(name=name, sites=shares, score=other[2], loses=why_it_loses(other[2], placement.score))


def sufficient_sites(
    table: SiteTable, demand: Demand, types: Sequence[Sequence[str]]
) -> Iterator[tuple[int, str, tuple[Share, ...], Score]]:
    """Return the sites that have enough devices of each of these sets of types by themselves: free devices, name, what
    the site would give, and its score."""
    local = local_number(table, demand)
    for wanted in types:
        for site, count in enumerate(table.free_for(wanted)):
            if count >= demand.devices:
                shares = table.shares(table.split(((site, demand.devices),), wanted))
                yield count, table.topology.names[site], shares, score_sites(table.topology, (site,), local)


def _single_sites(table: SiteTable, demand: Demand) -> Iterator[Alternative]:
    """The local site, and the one with most devices, where they were passed over for lack of devices."""
    rows = [table.free_for(types) for types in demand.type_choices(table.types)]
    free = [max(column) for column in zip(*rows, strict=True)]
    local = local_number(table, demand)
    most = max(range(len(free)), key=lambda site: free[site])
    for name, site in (("local site alone", local), ("most devices on one site", most)):
        if site is None or free[site] >= demand.devices or (name != "local site alone" and site == local):
            continue
        where = table.topology.names[site]
        lacks = f"{where} has {free[site]} of {demand.devices} devices free"
        yield Alternative(name=name, sites=(), score=None, loses=lacks)


def _no_place(table: SiteTable, demand: Demand, method: str) -> NoSites:
    if method != DEFAULT:
        other = choose_sites(table, demand)
        if other is not None:
            names = ", ".join(table.topology.names[site] for site in other[0].sites)
            reason = f"{method} finds no sites with {demand.devices} devices, though there are"
            return NoSites(reason=reason, changes=(f"the method {DEFAULT}, which finds {names}",))
    return explain_shortage(table, demand)


def _method(name: str) -> Search:
    if name not in METHODS:
        raise InputError(where="sites", key="method", found=repr(name), expected="one of " + ", ".join(METHODS))
    return METHODS[name]


def _figures(score: Score) -> str:
    return f"{score.sites} sites, {score.bandwidth_bytes_per_s / 1e9:.3g} GB/s, {score.distance_s * 1e3:.4g} ms"
