"""Ours: as few sites as can be, then as wide as can be, then near. Never worse than SpinSearch in that order.

The first two are exact and cheap. Fewest: of the sites that are joined at all, those with most devices. Widest: sites
are joined by paths of at least w bytes/s just if the forest's links of w and more join them, so the greatest w under
which as few sites have enough is found by halving. Nearest is hard (a tree that spans a choice of sites): sets are
grown from several sites, SpinSearch's own answers are tried, and branch and bound of limited work improves the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from planner.many_jobs.sites.exact import MOST_SITES
from planner.many_jobs.sites.filling import fill
from planner.many_jobs.sites.paths import nearer
from planner.many_jobs.sites.records import Choice
from planner.many_jobs.sites.scoring import LARGE, MANY, narrowest, tree_s
from planner.many_jobs.sites.sets import SiteSets
from planner.many_jobs.sites.spin_search import ANCHORS, first_fit, spin_search
from planner.many_jobs.sites.topology import ScoreName, Topology

WORK = 2_000
"""Sets and parts of sets that branch and bound looks at."""
MOST_TRIED = 64
"""Sites of which branch and bound takes its sets, at most: the nearest ones."""
MOST_GROUPS = 16
"""Groups of equally wide sites that are looked at, at most: the nearest ones."""
SEEDS = 8
"""Sites that sets are grown from, at most."""


def compact_search(
    topology: Topology, free: Sequence[int], wanted: int, local: int | None, *, work: int = WORK
) -> Choice | None:
    """Sites with `wanted` of the `free` devices; None just if no joined sites have so many.

    Among sets of equally many sites and equal bandwidth, the nearest of those looked at; `proved` if no other is
    nearer. Time: O(m log m) where links have changed since, then O(n log n) for the first two, and the work of the
    third.
    """
    if local is not None and free[local] >= wanted:
        return Choice("local", ((local, wanted),), proved=True)
    size = _fewest(topology, free, wanted, local)
    if not size:
        return None
    if size == 1:
        return Choice("one site", ((_nearest(topology, free, wanted, local), wanted),), proved=True)
    groups = _widest_groups(topology, free, wanted, local, size)
    sites, proved = _near(topology, free, wanted, local, groups, size, work)
    return Choice("sites", fill(sites, free, wanted), proved=proved)


def _fewest(topology: Topology, free: Sequence[int], wanted: int, local: int | None) -> int:
    """How many sites are needed at least; 0 if no joined sites have enough."""
    groups = _groups(topology.parts, free, wanted, len(topology), local)
    return min((_count(group, free, wanted) for group in groups), default=0)


def _groups(joined: Sequence[int], free: Sequence[int], wanted: int, size: int, local: int | None) -> list[list[int]]:
    """The sites with free devices by group, most devices first, of groups in which `size` of them have enough."""
    by_group: dict[int, list[int]] = {}
    for site in sorted((s for s, count in enumerate(free) if count), key=lambda site: -free[site]):
        by_group.setdefault(joined[site], []).append(site)
    home = None if local is None else joined[local]
    return [
        sites
        for group, sites in by_group.items()
        if (home is None or home == group) and sum(free[site] for site in sites[:size]) >= wanted
    ]


def _count(sites: Sequence[int], free: Sequence[int], wanted: int) -> int:
    for number, site in enumerate(sites):
        wanted -= free[site]
        if wanted <= 0:
            return number + 1
    raise AssertionError("a group has enough devices by now")


def _nearest(topology: Topology, free: Sequence[int], wanted: int, local: int | None) -> int:
    """The one site with enough that is nearest to the local one; of equally near ones that with least left over."""
    parts = topology.parts
    sites = [s for s, count in enumerate(free) if count >= wanted and (local is None or parts[s] == parts[local])]
    far = [0.0] * len(topology) if local is None else topology.quickest(local)
    return min(sites, key=lambda site: (far[site], free[site], site))


def _widest_groups(
    topology: Topology, free: Sequence[int], wanted: int, local: int | None, size: int
) -> list[list[int]]:
    """Sites by group at the greatest bandwidth at which `size` joined ones have enough; of those reached from
    `local`. A path between sites of one group need not touch the local site."""
    parts = topology.parts
    usable = free if local is None else [count if parts[s] == parts[local] else 0 for s, count in enumerate(free)]
    widths = topology.widths
    low, high = 0, len(widths) - 1
    while low < high:
        middle = (low + high) // 2
        if _groups(topology.joined_by(widths[middle][1]), usable, wanted, size, None):
            high = middle
        else:
            low = middle + 1
    return _groups(topology.joined_by(widths[low][1]), usable, wanted, size, None)


def _near(
    topology: Topology,
    free: Sequence[int],
    wanted: int,
    local: int | None,
    groups: Sequence[list[int]],
    size: int,
    work: int,
) -> tuple[tuple[int, ...], bool]:
    """A near set of `size` sites of one of the groups, and whether none is nearer."""
    large = len(topology) > LARGE
    best: tuple[int, ...] = ()
    best_s, proved = float("inf"), True
    width = narrowest(topology, groups[0][:size])
    most = MOST_GROUPS if not large else 2
    if len(groups) > most:
        far, proved = topology.quickest(groups[0][0] if local is None else local), False
        groups = sorted(groups, key=lambda sites: min(far[site] for site in sites))[:most]
    starts = list(_spun(topology, free, wanted, local, size, width))
    for sites in groups:
        starts += _grown(topology, free, wanted, local, sites, size, 1 if large else max(1, SEEDS // len(groups)))
    for start in starts:
        found_s = tree_s(topology, start, local)
        if not best or found_s < best_s:
            best, best_s = tuple(start), found_s
    if large:
        return best, False
    for sites in groups:
        allowed = _enough(free, sites, wanted, size)
        if len(allowed) > MOST_SITES and size >= MANY:
            proved = False
            continue
        if len(allowed) > MOST_TRIED:
            far, proved = topology.quickest(best[0]), False
            allowed = sorted(allowed, key=lambda site: (far[site], site))[:MOST_TRIED]
        search = SiteSets(topology, free, allowed, local=local, size=size, limit=work // len(groups))
        best = search.best(wanted, best) or best
        proved = proved and search.complete
    return best, proved


def _enough(free: Sequence[int], sites: Sequence[int], wanted: int, size: int) -> list[int]:
    """Those of `sites` that are in some set of `size` with enough: with the most of the others."""
    others = sum(free[site] for site in sites[: size - 1])
    return [site for site in sites if free[site] + others >= wanted] if size > 1 else list(sites)


def _spun(
    topology: Topology, free: Sequence[int], wanted: int, local: int | None, size: int, width: float
) -> Iterator[tuple[int, ...]]:
    """What SpinSearch finds in all its readings, where that is as few sites and as wide."""
    scores: tuple[ScoreName, ...] = ("incident", "from-local") if local is not None else ("incident",)
    readings = [partial(spin_search, score=score, anchor=anchor) for score in scores for anchor in ANCHORS]
    seen = set()
    for method in (*readings, *(partial(first_fit, score=score) for score in scores)):
        choice = method(topology, free, wanted, local)
        if choice is None or len(choice.shares) != size or choice.sites in seen:
            continue
        seen.add(choice.sites)
        if narrowest(topology, choice.sites) == width:
            yield choice.sites


def _grown(
    topology: Topology,
    free: Sequence[int],
    wanted: int,
    local: int | None,
    sites: Sequence[int],
    size: int,
    count: int,
) -> Iterator[tuple[int, ...]]:
    """Sets grown site by site, each time by the nearest that still leaves enough devices, from `count` first sites:
    those nearest to the local one, or, without one, those with most devices."""
    first = _enough(free, sites, wanted, size)
    if local is not None:
        far = topology.quickest(local)
        first.sort(key=lambda site: (far[site], site))
    for start in first[:count]:
        chosen, taken, lacking = [start], {start}, wanted - free[start]
        near = list(topology.quickest(start if local is None else local))
        nearer(topology.neighbours, near, start)
        while len(chosen) < size:
            left = [site for site in sites if site not in taken]
            slots = size - len(chosen) - 1
            least = lacking - sum(free[site] for site in left[:slots])
            added = min(
                (site for site in left if free[site] >= least), key=lambda site: (near[site], -free[site], site)
            )
            chosen.append(added)
            taken.add(added)
            lacking -= free[added]
            nearer(topology.neighbours, near, added)
        yield tuple(chosen)
