"""Titan's problem with its bandwidth constraint on drawn small clusters: our search beside HiGHS."""

from __future__ import annotations

import time
from collections import Counter
from random import Random

from bench.machines.exact_nimp import within_bandwidth
from estimator.communication.phases import Algorithm, bytes_across, collective_phases
from planner.many_jobs.placers.records import Available
from planner.many_jobs.placers.within_bandwidth import Reading, Seating, Traffic, seat_within
from profiles.records import dataclass

SIZE = 4
MOST_RANKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallCluster:
    """Free devices of nodes of four, a job of so many ranks, and what of the network is left."""

    free: tuple[int, ...]
    ranks: int
    traffic: Traffic
    available: Available


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What came of some clusters: how many of each outcome, the traffic above the least where the numbers of nodes are
    the exact ones (mean and most), and seconds of CPU."""

    outcomes: Counter[str]
    above_mean: float
    above_most: float
    search_s: float
    exact_s: float


def draw_cluster(rng: Random) -> SmallCluster:
    """Return three to six nodes, some of them idle, with NICs of drawn rates, in two parts every other time."""
    nodes = rng.randint(3, 6)
    while True:
        free = tuple(rng.choice((0, 1, 1, 2, 3, 4)) for _ in range(nodes))
        if sum(free) >= 2:
            break
    ranks = rng.randint(2, min(MOST_RANKS, sum(free)))
    algorithm: Algorithm = rng.choice(("halving-doubling", "ring", "tree"))
    phases = collective_phases(algorithm, "all_reduce", ranks)
    parts = [node % 2 for node in range(nodes)]
    uplinks = [(parts, [rng.uniform(0.5, 6), rng.uniform(0.5, 6)])] if rng.random() < 0.5 else []
    available = Available(nics_bytes_per_s=[rng.uniform(0.5, 5) for _ in range(nodes)], uplinks=uplinks)
    return SmallCluster(free=free, ranks=ranks, traffic=Traffic(phases=phases, allowed_s=1.0), available=available)


def measure_gap(reading: Reading, clusters: int, seed: int) -> Gap:
    """Return what the search gives on so many drawn clusters beside HiGHS."""
    rng, outcomes, above = Random(seed), Counter[str](), []
    search_s = exact_s = 0.0
    for _ in range(clusters):
        drawn = draw_cluster(rng)
        began_s = time.process_time()
        told = seat_within(drawn.free, SIZE, drawn.traffic, drawn.available, reading, drawn.ranks)
        search_s += time.process_time() - began_s
        began_s = time.process_time()
        exact = within_bandwidth(drawn.free, SIZE, drawn.ranks, drawn.traffic, drawn.available, reading)
        exact_s += time.process_time() - began_s
        if not isinstance(told, Seating) or exact is None:
            both = not isinstance(told, Seating) and exact is None
            outcomes["no way, and told so" if both else "only one finds a way"] += 1
            continue
        nodes = set(told.nodes)
        idle = sum(drawn.free[node] == SIZE for node in nodes)
        if (idle, len(nodes)) != exact[:2]:
            outcomes["more nodes than need be"] += 1
            continue
        sent = bytes_across(drawn.traffic.phases, told.nodes)
        above.append(max(0.0, sent - exact[2]) / exact[2] if exact[2] > 1e-6 else 0.0)
        outcomes["the exact answer" if above[-1] < 1e-5 else "the exact nodes, more traffic"] += 1
    return Gap(
        outcomes=outcomes,
        above_mean=sum(above) / len(above) if above else 0.0,
        above_most=max(above, default=0.0),
        search_s=search_s,
        exact_s=exact_s,
    )
