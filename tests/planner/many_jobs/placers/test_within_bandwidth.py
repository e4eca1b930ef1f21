"""NIMP with its bandwidth constraint: beside HiGHS over which rank sits where, and its two readings."""

from __future__ import annotations

from random import Random

import pytest

from bench.machines.exact_nimp import within_bandwidth
from estimator.communication.phases import Algorithm, bytes_across, collective_phases
from planner.many_jobs.placers.records import Available
from planner.many_jobs.placers.within_bandwidth import (
    NoSeating,
    Reading,
    Seating,
    Traffic,
    seat_within,
    worst_share,
)
from tests.seeds import seeds


def draw(seed: int) -> tuple[list[int], int, int, Traffic, Available]:
    """Three to five nodes of four, some of them idle, thin NICs, every other time two parts with thin uplinks."""
    rng = Random(seed)
    nodes = rng.randint(3, 5)
    free = [rng.choice((0, 1, 2, 3, 4)) for _ in range(nodes)]
    free[0] = free[0] or 2
    ranks = rng.randint(2, max(2, min(6, sum(free)))) if sum(free) > 2 else sum(free)
    algorithm: Algorithm = rng.choice(("halving-doubling", "ring", "tree"))
    phases = collective_phases(algorithm, "all_reduce", ranks)
    uplinks = [([node % 2 for node in range(nodes)], [rng.uniform(0.5, 6), rng.uniform(0.5, 6)])] if seed % 2 else []
    available = Available(nics_bytes_per_s=[rng.uniform(0.5, 5) for _ in range(nodes)], uplinks=uplinks)
    return free, 4, ranks, Traffic(phases=phases, allowed_s=1.0), available


@pytest.mark.parametrize("reading", ["pairs", "links"])
@pytest.mark.parametrize("seed", seeds(60))
def test_beside_highs(seed: int, reading: Reading) -> None:
    """What it says is best, or cannot be, is; what it gives is within the constraint and on free devices."""
    free, size, ranks, traffic, available = draw(seed)
    told = seat_within(free, size, traffic, available, reading, ranks)
    exact = within_bandwidth(free, size, ranks, traffic, available, reading)
    assert told.proved
    if isinstance(told, NoSeating):
        assert exact is None
        return
    assert exact is not None
    assert worst_share(told.nodes, traffic, available, reading) <= 1 + 1e-6
    assert all(count <= free[node] for node, count in told.counts)
    assert sum(count for _, count in told.counts) == ranks
    idle = sum(free[node] == size for node in set(told.nodes))
    across = bytes_across(traffic.phases, told.nodes)
    assert (idle, len(set(told.nodes))) == exact[:2]
    assert across == pytest.approx(exact[2], abs=1e-5)


def test_inside_a_node_nothing_binds() -> None:
    phases = collective_phases("ring", "all_reduce", 4)
    told = seat_within(
        [2, 4], 4, Traffic(phases=phases, allowed_s=1e-9), Available(nics_bytes_per_s=[1e-9, 1e-9]), "links", 4
    )
    assert told == Seating(nodes=(1, 1, 1, 1), proved=True)


def test_pairs_are_within_where_the_nic_that_they_share_is_not() -> None:
    """Three ranks of a tree that all send to the first: each pair passes 1 byte/s, the NIC three."""
    phases = collective_phases("halving-doubling", "all_reduce", 4)
    traffic = Traffic(phases=phases, allowed_s=1.5)
    free, available = [1, 1, 2], Available(nics_bytes_per_s=[1.0, 1.0, 1.0])
    assert isinstance(seat_within(free, 4, traffic, available, "pairs", 4), Seating)
    told = seat_within(free, 4, traffic, available, "links", 4)
    assert told == NoSeating(proved=True)
    wider = Available(nics_bytes_per_s=[1.0, 1.0, 2.0])
    assert isinstance(seat_within(free, 4, traffic, wider, "links", 4), Seating)


def test_more_time_never_needs_more_idle_nodes() -> None:
    for seed in range(30):
        free, size, ranks, traffic, available = draw(seed)
        opened = []
        for times in (1.0, 2.0, 8.0):
            longer = Traffic(phases=traffic.phases, allowed_s=times)
            told = seat_within(free, size, longer, available, "links", ranks)
            opened.append(
                sum(free[node] == size for node in set(told.nodes)) if isinstance(told, Seating) else len(free) + 1
            )
        assert opened == sorted(opened, reverse=True)


def test_a_large_job_is_placed_within_its_work() -> None:
    """Of 64 ranks on hundreds of nodes what is found is within the constraint."""
    rng = Random(1)
    free = [rng.choice((0, 1, 2, 3, 5, 8)) for _ in range(300)]
    phases = collective_phases("halving-doubling", "all_reduce", 64)
    traffic = Traffic(phases=phases, allowed_s=1.0)
    available = Available(nics_bytes_per_s=[rng.choice((10.0, 20.0, 30.0)) for _ in free])
    told = seat_within(free, 8, traffic, available, "links", 64)
    assert isinstance(told, Seating)
    assert worst_share(told.nodes, traffic, available, "links") <= 1 + 1e-6
