"""Graphs of sites for tests. SpiderFlow's figures 2 and 4 are not in its text; what is missing is completed by us."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from planner.many_jobs.sites.state import SiteTable
from planner.many_jobs.sites.topology import Topology, make_topology


def figure_2() -> SiteTable:
    """Table 1's sites: a, b, c, d with 4 devices and e, g with 12, and the latencies of its three trajectories (as ms).
    Ours: f and its links, the link of d and e, and bandwidths (10 GB/s over the latency)."""
    far_ms = {"ab": 1, "bc": 1, "cd": 1, "ae": 7, "ag": 1, "de": 6, "ef": 2, "fg": 6}
    free = {"a": 4, "b": 4, "c": 4, "d": 4, "e": 12, "f": 2, "g": 12}
    return make_table(free, {(ends[0], ends[1]): (1e10 / ms, ms * 1e-3) for ends, ms in far_ms.items()})


def figure_4() -> SiteTable:
    """Section 4.1.4's sites: a with 4 devices, g with 8, the most, b to e in falling order of bandwidth from a, and b
    with the 4 that lack. Ours: the free devices of c to f, all bandwidths and latencies."""
    free = {"a": 4, "b": 4, "c": 2, "d": 2, "e": 3, "f": 1, "g": 8}
    wide = {"ab": 10e9, "bc": 8e9, "cd": 6e9, "de": 4e9, "bg": 3.5e9, "ag": 3e9, "fg": 1e9}
    return make_table(free, {(ends[0], ends[1]): (width, 1e-3) for ends, width in wide.items()})


def random_topology(rng: Random, count: int) -> Topology:
    """Sites of which some are not joined; many equal figures, some links of bandwidth 0."""
    density = rng.choice((0.15, 0.4, 0.9))
    links = [
        (a, b, rng.choice((0.0, 1e9, 1e9, 2e9, rng.uniform(1e8, 1e10))), rng.choice((0.01, 0.02, rng.uniform(0, 0.1))))
        for b in range(count)
        for a in range(b)
        if rng.random() < density
    ]
    return make_topology([f"s{number}" for number in range(count)], links)


def random_free(rng: Random, count: int) -> list[int]:
    """Free devices, also none and many equal ones."""
    return [rng.choice((0, 1, 2, 4, 8, 8, rng.randint(0, 16))) for _ in range(count)]


def make_table(
    free: Mapping[str, Mapping[str, int] | int],
    links: Mapping[tuple[str, str], tuple[float, float]],
    *,
    device: str = "device",
) -> SiteTable:
    """A table by names: each site's free devices (a number: of the type `device`), each link's (bytes/s, s).

    >>> table = make_table({"north": 8, "south": {"a100-80gb": 4}}, {("north", "south"): (1.25e9, 5e-3)})
    >>> table.types, table.total
    (('device', 'a100-80gb'), [8, 4])
    """
    by_site = {name: {device: devices} if isinstance(devices, int) else dict(devices) for name, devices in free.items()}
    types = tuple(dict.fromkeys(kind for devices in by_site.values() for kind in devices))
    number = {name: position for position, name in enumerate(by_site)}
    topology = make_topology(tuple(by_site), [(number[a], number[b], *figures) for (a, b), figures in links.items()])
    return SiteTable(topology, types, [[devices.get(kind, 0) for devices in by_site.values()] for kind in types])
