"""Seeded graphs of sites: places on a map, joined to their nearest, with capacities as wide-area links have them."""

from __future__ import annotations

import math
from random import Random

from planner.many_jobs.sites.state import SiteTable
from planner.many_jobs.sites.topology import Topology, make_topology

WIDTHS = tuple(gigabits * 1e9 / 8 for gigabits in (1, 2.5, 5, 10, 15))
"""Bytes/s: the paper's 1 to 15 Gb/s between sites."""
SECONDS_PER_UNIT = 0.04
"""One way over the whole map, of side 1."""


def random_graph(rng: Random, count: int, *, degree: int = 4) -> Topology:
    """Sites at random in a square; each joined to its `degree` / 2 nearest among those before it (of large graphs: of a
    sample of them), so that all are joined. Latency grows with distance, bandwidth is one of five."""
    places = [(rng.random(), rng.random()) for _ in range(count)]
    links = []
    for site in range(1, count):
        before = range(site) if site < 200 else rng.sample(range(site), 200)
        near = sorted((math.dist(places[site], places[other]), other) for other in before)
        for far, other in near[: max(1, degree // 2)]:
            links.append((other, site, rng.choice(WIDTHS), 1e-3 + SECONDS_PER_UNIT * far))
    return make_topology([f"site{number}" for number in range(count)], links)


def random_table(rng: Random, count: int, *, most: int = 56) -> SiteTable:
    """A table of such a graph with 0 to `most` free devices a site."""
    return SiteTable(random_graph(rng, count), ["a100-80gb"], [[rng.randint(0, most) for _ in range(count)]])
