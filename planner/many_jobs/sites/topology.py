"""The graph of sites: links with bandwidth and latency as arrays, and what is computed from them, each once.

Nothing here knows which devices are free, so a placement changes nothing of it; a measurement gives a new topology.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.sites.paths import Edge, Groups, hops_from, quickest_from, widest_forest, widest_from
from profiles.records import dataclass

ScoreName = Literal["incident", "from-local"]
"""How sites are ranked by bandwidth: the sum of a site's links (SpiderFlow, equation 2), or the widest path from the
job's own site (equation 3)."""

Key = TypeVar("Key")
Figures = TypeVar("Figures")

MOST_KEPT = 2_000_000
"""Figures kept of each kind of path; a large graph keeps those of few sites."""


@dataclass(kw_only=True, eq=False)
class Topology:
    """Sites by number, and the links between them: `ends` (links x 2), bytes/s and s of each. A link of 0 bytes/s is
    down: no path uses it. These never change; paths are kept once they were asked for, up to `MOST_KEPT` figures."""

    names: tuple[str, ...]
    ends: NDArray[np.int64]
    bandwidth_bytes_per_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    _widest: dict[int, list[float]] = field(default_factory=dict, init=False, repr=False)
    _quickest: dict[int, list[float]] = field(default_factory=dict, init=False, repr=False)
    _hops: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict, init=False, repr=False)
    _orders: dict[int | None, list[int]] = field(default_factory=dict, init=False, repr=False)
    _joined: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        count, links = len(self.names), len(self.ends)
        if self.ends.shape != (links, 2) or len(self.bandwidth_bytes_per_s) != links or len(self.latency_s) != links:
            shapes = f"{self.ends.shape}, {self.bandwidth_bytes_per_s.shape}, {self.latency_s.shape}"
            raise ValueError(f"topology: shapes {shapes}, expected ends of (links, 2) and one figure for each link")
        if len(set(self.names)) != count:
            raise ValueError("topology: two sites of one name")
        if links and (self.ends.min() < 0 or self.ends.max() >= count or (self.ends[:, 0] == self.ends[:, 1]).any()):
            raise ValueError(f"topology: each link joins two of the sites 0 to {count - 1}")
        if len({(min(pair), max(pair)) for pair in self.ends.tolist()}) != links:
            raise ValueError("topology: two links between the same sites")
        for figures in (self.bandwidth_bytes_per_s, self.latency_s):
            if not np.isfinite(figures).all() or (figures < 0).any():
                raise ValueError("topology: bandwidths and latencies are finite and at least 0")

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def number(self) -> dict[str, int]:
        """Each site's number by its name."""
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The links that are up."""
        rows = zip(self.ends.tolist(), self.bandwidth_bytes_per_s.tolist(), self.latency_s.tolist(), strict=True)
        return tuple((first, second, bandwidth, latency) for (first, second), bandwidth, latency in rows if bandwidth)

    @cached_property
    def neighbours(self) -> list[list[tuple[int, float, float]]]:
        """By site: (other site, bytes/s, s) of each link that is up, in order of sites."""
        return _neighbours(len(self), self.edges)

    @cached_property
    def forest(self) -> tuple[Edge, ...]:
        """Links whose paths are the widest, widest link first."""
        return widest_forest(len(self), self.edges)

    @cached_property
    def forest_neighbours(self) -> list[list[tuple[int, float, float]]]:
        """As `neighbours`, of the forest alone."""
        return _neighbours(len(self), self.forest)

    @cached_property
    def parts(self) -> list[int]:
        """A number for each site, equal for those that links join."""
        return self.joined_by(len(self.forest))

    @cached_property
    def widths(self) -> tuple[tuple[float, int], ...]:
        """The bandwidths in the forest, most first, each with how many links have at least so much."""
        ends: dict[float, int] = {edge[2]: position + 1 for position, edge in enumerate(self.forest)}
        return tuple(ends.items())

    @cached_property
    def incident_bytes_per_s(self) -> list[float]:
        """Each site's sum of link bandwidths (SpiderFlow, equation 2)."""
        return [math.fsum(bandwidth for _, bandwidth, _ in links) for links in self.neighbours]

    def widest(self, source: int) -> list[float]:
        """Bytes/s of the widest path from `source` to each site; infinite to itself, 0 where there is none."""
        return self._widest.get(source) or self._keep(
            self._widest, source, lambda: widest_from(self.forest_neighbours, source)
        )

    def quickest(self, source: int) -> list[float]:
        """Seconds of the path of least latency from `source` to each site; infinite where there is none."""
        return self._quickest.get(source) or self._keep(
            self._quickest, source, lambda: quickest_from(self.neighbours, source)
        )

    def hops(self, source: int) -> tuple[tuple[int, ...], ...]:
        """The sites at 0, 1, 2 ... hops from `source`."""
        return self._hops.get(source) or self._keep(self._hops, source, lambda: hops_from(self.neighbours, source))

    def scores(self, score: ScoreName, local: int | None) -> list[float]:
        """B of each site, bytes/s: equation 2, or equation 3 from `local` (without one, equation 2)."""
        return self.incident_bytes_per_s if score == "incident" or local is None else self.widest(local)

    def order(self, score: ScoreName, local: int | None) -> list[int]:
        """The sites that can be reached from `local` (without one, all), most B first, equal ones by number."""

        def ordered() -> list[int]:
            scores, parts = self.scores(score, local), self.parts
            sites = [site for site in range(len(self)) if local is None or parts[site] == parts[local]]
            return sorted(sites, key=lambda site: -scores[site])

        key = local if score == "from-local" else -1 - local if local is not None else None
        return self._orders.get(key) or self._keep(self._orders, key, ordered)

    def joined_by(self, links: int) -> list[int]:
        """A number for each site, equal for those that the forest's `links` widest links join."""

        def joined() -> list[int]:
            groups = Groups(len(self))
            for first, second, _, _ in self.forest[:links]:
                groups.merge(first, second)
            return [groups.find(site) for site in range(len(self))]

        return self._joined.get(links) or self._keep(self._joined, links, joined)

    def _keep(self, kept: dict[Key, Figures], key: Key, make: Callable[[], Figures]) -> Figures:
        """What is kept under a key, made where it is not; where there would be too much, all else is forgotten."""
        if key not in kept:
            if (len(kept) + 1) * len(self) > max(MOST_KEPT, len(self)):
                kept.clear()
            kept[key] = make()
        return kept[key]


def make_topology(names: Sequence[str], links: Sequence[Edge]) -> Topology:
    """Return a topology of these sites and links (two sites' numbers, bytes/s, s)."""
    return Topology(
        names=tuple(names),
        ends=np.array([link[:2] for link in links], dtype=np.int64).reshape(-1, 2),
        bandwidth_bytes_per_s=np.array([link[2] for link in links], dtype=np.float64),
        latency_s=np.array([link[3] for link in links], dtype=np.float64),
    )


def _neighbours(count: int, edges: Sequence[Edge]) -> list[list[tuple[int, float, float]]]:
    neighbours: list[list[tuple[int, float, float]]] = [[] for _ in range(count)]
    for first, second, bandwidth, latency in edges:
        neighbours[first].append((second, bandwidth, latency))
        neighbours[second].append((first, bandwidth, latency))
    for links in neighbours:
        links.sort()
    return neighbours
