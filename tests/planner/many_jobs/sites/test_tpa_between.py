"""Between sites: orders of the least cut, arrangements worth a look, and the cut of layers beside every cut."""

from __future__ import annotations

import itertools
import math
from random import Random

import numpy as np
import pytest

from planner.many_jobs.sites.cut_layers import cut_layers
from planner.many_jobs.sites.tpa_sites import SiteGraph, Traffic, arrangements, cost_s, ordered


def draw_sites(seed: int, count: int, *, linked: float = 1.0) -> SiteGraph:
    """Sites with links at random, not all of them joined."""
    rng = Random(seed)
    width = [[0.0] * count for _ in range(count)]
    for one, other in itertools.combinations(range(count), 2):
        if rng.random() < linked:
            width[one][other] = width[other][one] = rng.choice([1e8, 5e8, 1e9, 2e9])
    return SiteGraph(
        speed=tuple(float(rng.choice([1, 2, 4])) for _ in range(count)),
        bandwidth_bytes_per_s=tuple(map(tuple, width)),
        latency_s=((1e-3,) * count,) * count,
    )


TRAFFIC = Traffic(message_bytes=1e8, tied_bytes=3e8)


@pytest.mark.parametrize("count", [2, 4, 7])
def test_orders_are_about_as_good_as_the_best_of_all(count: int) -> None:
    ratios = []
    for seed in range(20):
        graph = draw_sites(seed, count)
        parties = [(number,) for number in range(count)]
        best = min(cost_s(graph, order, TRAFFIC) for order in itertools.permutations(parties))
        found = ordered(graph, parties, TRAFFIC)
        assert found is not None
        assert sorted(found) == parties
        ratios.append(cost_s(graph, found, TRAFFIC) / best)
    assert min(ratios) >= 1 - 1e-12
    assert sum(ratio <= 1 + 1e-12 for ratio in ratios) >= (20 if count <= 5 else 15)
    assert max(ratios) <= (1 + 1e-12 if count <= 5 else 1.3)


def test_arrangements_are_different_joined_and_few() -> None:
    for seed, count in itertools.product(range(15), (1, 2, 5, 8)):
        graph = draw_sites(seed, count, linked=0.6)
        found = arrangements(graph, TRAFFIC)
        assert len(set(found)) == len(found) <= 2 * count * count
        for number in range(count):
            assert ((number,),) in found
        for arrangement in found:
            numbers = [number for party in arrangement for number in party]
            assert len(set(numbers)) == len(numbers)
            assert len(arrangement) == 1 or math.isfinite(cost_s(graph, arrangement, TRAFFIC))


def test_parties_are_joined_along_wide_links() -> None:
    wide, thin = 1e10, 1e8
    width = tuple(
        tuple(0.0 if a == b else wide if {a, b} in ({0, 1}, {2, 3}) else thin for b in range(4)) for a in range(4)
    )
    graph = SiteGraph(speed=(1.0,) * 4, bandwidth_bytes_per_s=width, latency_s=((0.0,) * 4,) * 4)
    found = arrangements(graph, Traffic(message_bytes=1e8, tied_bytes=0.0))
    assert any(sorted(one) == [(0, 1), (2, 3)] for one in found)
    assert ((0, 1, 2, 3),) in found


def best_of_all(takes: list[np.ndarray], loads: list[np.ndarray], micro_batches: int) -> float:
    """By every choice of ends."""
    layers, best = takes[0].shape[0] - 1, math.inf
    for inner in itertools.combinations(range(1, layers), len(takes) - 1):
        edges = (0, *inner, layers)
        own = [(one[a, b], two[a, b]) for one, two, (a, b) in zip(takes, loads, itertools.pairwise(edges), strict=True)]
        if all(math.isfinite(load) for _, load in own):
            best = min(best, sum(t for t, _ in own) + (micro_batches - 1) * max(load for _, load in own))
    return best


def test_layers_are_cut_as_by_trying_every_cut() -> None:
    impossible = 0
    for seed in range(120):
        rng = Random(seed)
        layers, stages, micro_batches = rng.randint(3, 9), rng.randint(1, 3), rng.randint(1, 6)
        takes, loads = [], []
        for _ in range(stages):
            own = np.full((layers + 1, layers + 1), np.inf)
            most, speed = rng.choice([2, 4, 9]), rng.uniform(0.5, 2)
            for first, end in itertools.combinations(range(layers + 1), 2):
                if end - first <= most:
                    own[first, end] = speed * (end - first) + rng.random()
            takes.append(own)
            loads.append(own + rng.random())
        found, best = cut_layers(takes, loads, micro_batches), best_of_all(takes, loads, micro_batches)
        if found is None:
            impossible += 1
            assert math.isinf(best)
            continue
        pairs = list(itertools.pairwise((0, *found)))
        assert found[-1] == layers
        total = sum(one[a, b] for one, (a, b) in zip(takes, pairs, strict=True))
        slowest = max(one[a, b] for one, (a, b) in zip(loads, pairs, strict=True))
        assert total + (micro_batches - 1) * slowest == pytest.approx(best)
    assert impossible > 0
