"""How groups of sites are joined: routes between two of them, and the ring that a collective takes through several.

Between two sites traffic takes the link that joins them, however thin; where there is none, the way over the fewest
other sites, of these the widest: as addresses are routed, which know nothing of bandwidth. A ring visits the sites in
the order of its ranks; a link that several of its steps pass in one direction is shared by them. `best_ring` is the
order for whoever may choose it.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from heapq import heappop, heappush

from profiles.cluster import SiteLink
from profiles.records import dataclass

MOST_TRIED = 7
"""Up to so many sites every order is tried."""
MOST_IMPROVED = 16
"""Of more than so many no order is improved."""
STARTS = 8
"""So many orders are begun with, of more sites than `MOST_TRIED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRing:
    """`bandwidth_bytes_per_s` out of each site when all steps are busy, and the greatest latency of a step; `thinnest`
    is the link that decides, `seconds_per_byte` the sum over all links that are passed."""

    order: tuple[str, ...]
    bandwidth_bytes_per_s: float
    latency_s: float
    thinnest: SiteLink
    seconds_per_byte: float


@dataclass(frozen=True)
class SiteRoutes:
    """The routes of a cluster's sites. The only state is caches."""

    links: tuple[SiteLink, ...]

    def route(self, origin: str, target: str) -> tuple[SiteLink, ...] | None:
        """Return the links from one site to the other; None where nothing joins them."""
        way = self._from(origin).get(target)
        return None if way is None else way[2]

    def ring(self, order: tuple[str, ...]) -> SiteRing | None:
        """The ring through two sites or more in this order; None where nothing joins two of them."""
        if order not in self._rings:
            joined = all(self.route(order[0], other) is not None for other in order[1:])
            self._rings[order] = self._measure(order) if joined else None
        return self._rings[order]

    def best_ring(self, sites: Sequence[str]) -> SiteRing | None:
        """Return the ring with most bandwidth, then least latency, through these sites: of few the best of all orders,
        of more than `MOST_TRIED` a good one. None where not all are joined."""
        names = tuple(sorted(set(sites)))
        if len(names) < 2 or any(self.route(names[0], other) is None for other in names[1:]):
            return None
        rings = [self._measure(order) for order in self._orders(names)]
        if MOST_TRIED < len(names) <= MOST_IMPROVED:
            rings = [self._improved(ring) for ring in rings]
        return min(rings, key=_rank)

    @cached_property
    def _rings(self) -> dict[tuple[str, ...], SiteRing | None]:
        return {}

    @cached_property
    def _known(self) -> dict[str, dict[str, tuple[int, float, tuple[SiteLink, ...]]]]:
        return {}

    @cached_property
    def _neighbours(self) -> dict[str, list[tuple[str, SiteLink]]]:
        neighbours: defaultdict[str, list[tuple[str, SiteLink]]] = defaultdict(list)
        for link in self.links:
            first, second = link.between
            neighbours[first].append((second, link))
            neighbours[second].append((first, link))
        return {site: sorted(pairs, key=lambda pair: pair[0]) for site, pairs in neighbours.items()}

    def _from(self, source: str) -> dict[str, tuple[int, float, tuple[SiteLink, ...]]]:
        """Of every site that `source` reaches: links on the way, the thinnest one's bandwidth, the way."""
        if source not in self._known:
            reached: dict[str, tuple[int, float, tuple[SiteLink, ...]]] = {}
            queue: list[tuple[int, float, str, tuple[SiteLink, ...]]] = [(0, -float("inf"), source, ())]
            while queue:
                hops, width, site, way = heappop(queue)
                if site in reached:
                    continue
                reached[site] = (hops, -width, way)
                for other, link in self._neighbours.get(site, ()):
                    if other not in reached:
                        wide = max(width, -link.bandwidth_bytes_per_s)
                        heappush(queue, (hops + 1, wide, other, _Way((*way, link))))
            self._known[source] = reached
        return self._known[source]

    def _orders(self, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """All orders of few sites; of many the walk around the widest tree that joins them, and from several sites the
        widest way on, again and again."""
        first, *rest = names
        if len(names) <= MOST_TRIED:
            for order in itertools.permutations(rest):
                if len(order) < 2 or order[0] < order[-1]:
                    yield (first, *order)
            return
        yield self._around_tree(names)
        for start in names[:: max(1, len(names) // STARTS)]:
            walk, left = [start], set(names) - {start}
            while left:
                walk.append(min(left, key=lambda site: (self._width(walk[-1], site), site)))
                left.remove(walk[-1])
            yield tuple(walk)

    def _width(self, origin: str, target: str) -> tuple[float, int]:
        """The widest first, then the shortest."""
        way = self.route(origin, target) or ()
        return -min(link.bandwidth_bytes_per_s for link in way), len(way)

    def _around_tree(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """In the order in which a walk around the widest spanning tree of routes, of the shorter ones, meets the
        sites."""
        tree_of = {name: name for name in names}
        branches: defaultdict[str, list[str]] = defaultdict(list)
        for origin, target in sorted(itertools.combinations(names, 2), key=lambda pair: self._width(*pair)):
            if tree_of[origin] != tree_of[target]:
                branches[origin].append(target)
                branches[target].append(origin)
                old, new = tree_of[origin], tree_of[target]
                tree_of = {name: new if tree == old else tree for name, tree in tree_of.items()}
        met: dict[str, None] = {}
        ahead = [names[0]]
        while ahead:
            site = ahead.pop()
            if site not in met:
                met[site] = None
                ahead += reversed(branches[site])
        return tuple(met)

    def _improved(self, ring: SiteRing) -> SiteRing:
        """By reversing parts of the order, as long as that helps: the narrowest link, or else all of them."""
        before = None
        while ring is not before:
            before = ring
            for first, last in itertools.combinations(range(1, len(ring.order)), 2):
                order = ring.order
                turned = self._measure((*order[:first], *order[first : last + 1][::-1], *order[last + 1 :]))
                if (_rank(turned)[0], turned.seconds_per_byte) < (_rank(ring)[0], ring.seconds_per_byte):
                    ring = turned
        return ring

    def _measure(self, order: tuple[str, ...]) -> SiteRing:
        uses: Counter[tuple[str, SiteLink]] = Counter()
        latency_s = 0.0
        steps = zip(order, (*order[1:], order[0]), strict=True)
        for origin, target in steps:
            way, site = self.route(origin, target) or (), origin
            latency_s = max(latency_s, sum(link.latency_s for link in way))
            for link in way:
                uses[site, link] += 1
                site = link.between[1] if link.between[0] == site else link.between[0]
        (_, thinnest), count = min(uses.items(), key=lambda use: (use[0][1].bandwidth_bytes_per_s / use[1], use[0][0]))
        return SiteRing(
            order=order,
            bandwidth_bytes_per_s=thinnest.bandwidth_bytes_per_s / count,
            latency_s=latency_s,
            thinnest=thinnest,
            seconds_per_byte=sum(count / link.bandwidth_bytes_per_s for (_, link), count in uses.items()),
        )


class _Way(tuple[SiteLink, ...]):
    """A way in a queue: equal ones by what counts are taken in the order of the sites' names, never compared."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return False


def _rank(ring: SiteRing) -> tuple[float, float]:
    return -ring.bandwidth_bytes_per_s, ring.latency_s
