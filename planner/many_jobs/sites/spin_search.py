"""SpinSearch, as SpiderFlow describes it (section 4.1): sites in order of bandwidth, then hop by hop from an anchor.

The text gives two readings, and both are here by name. `spin_search` follows section 4.1.4: local, one site, the local
site plus one, hop expansion. `first_fit` takes sections 4.1.2 and 4.1.3 literally: first fit over all sites by
bandwidth, which takes what each has, so it fails only where all sites together have too little, and the hop expansion
behind it never places anything. Neither keeps to (11/9) OPT + 1 sites (section 4.1.5): that bound is of first fit by
decreasing size, not bandwidth. What is better than both is in `planner.many_jobs.sites.compact`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal, get_args

from planner.many_jobs.sites.filling import Shares, fill_in_order
from planner.many_jobs.sites.records import Choice
from planner.many_jobs.sites.topology import ScoreName, Topology

AnchorName = Literal["bandwidth", "free"]
"""Where hop expansion starts: the site of the highest bandwidth score (equation 5), or, as section 4.1.4 does it, of
the most free devices, equal ones in order of bandwidth."""
ANCHORS: tuple[AnchorName, ...] = get_args(AnchorName)


def spin_search(
    topology: Topology,
    free: Sequence[int],
    wanted: int,
    local: int | None,
    *,
    score: ScoreName = "incident",
    anchor: AnchorName = "bandwidth",
) -> Choice | None:
    """Sites with `wanted` of the `free` devices in the order of section 4.1.4; None if it finds none.

    Sites that no link joins to `local` are not considered. Without a local site the first and third step fall away,
    and sites that are not joined to the anchor are not found. What the local site has is taken before hop expansion,
    as in the paper's example. Time: O(n log n), and O(m + n log n) where links have changed since (equation 8).
    """
    if local is not None and free[local] >= wanted:
        return Choice("local", ((local, wanted),))
    order = topology.order(score, local)
    for site in order:
        if free[site] >= wanted:
            return Choice("one site", ((site, wanted),))
    rest, at_home = wanted, tuple[tuple[int, int], ...]()
    if local is not None and free[local]:
        rest, at_home = wanted - free[local], ((local, free[local]),)
        for site in order:
            if free[site] >= rest and site != local:
                return Choice("local plus one", (*at_home, (site, rest)))
    others = _expand(topology, free, rest, local if at_home else None, order, local, score, anchor)
    return None if others is None else Choice("hop expansion", (*at_home, *others))


def first_fit(
    topology: Topology,
    free: Sequence[int],
    wanted: int,
    local: int | None,
    *,
    score: ScoreName = "incident",
) -> Choice | None:
    """Return the sites by sections 4.1.2 and 4.1.3 to the letter: all by bandwidth, each giving min(free, rest)
    (equation 4), joined by links or not; None if they have too little, as hop expansion then has as well."""
    scores = topology.scores(score, local)
    order = sorted(range(len(topology)), key=lambda site: -scores[site])
    shares = fill_in_order(order, free, wanted)
    return None if shares is None else Choice("first fit", shares)


def _expand(
    topology: Topology,
    free: Sequence[int],
    wanted: int,
    without: int | None,
    order: Sequence[int],
    local: int | None,
    score: ScoreName,
    anchor: AnchorName,
) -> Shares | None:
    """Hop expansion (section 4.1.3). First fit succeeds on C(r) (equation 6) just if the devices in it are enough, so
    the least such r is known from sums by layers, and C(r) is sorted once."""
    if anchor == "free":
        start = max((site for site in order if site != without), key=lambda site: free[site], default=None)
    else:
        start = order[0]
    if start is None:
        return None
    layers = topology.hops(start)
    held = radius = 0
    while held < wanted:
        if radius == len(layers):
            return None
        held += sum(free[site] for site in layers[radius] if site != without)
        radius += 1
    near = [site for site in chain.from_iterable(layers[:radius]) if free[site] and site != without]
    widest, scores = topology.widest(start), topology.scores(score, local)
    near.sort(key=lambda site: (-widest[site], -free[site], -scores[site], site))
    return fill_in_order(near, free, wanted)
