"""The zone for an announced job: against every set of nodes, and by properties."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.many_jobs.scheduling.node_choice import FreeNodes, fewest_nodes
from planner.many_jobs.scheduling.zone_choice import (
    Stop,
    ZoneRequest,
    cheapest_zone,
    least_spread_zone,
    zone_cost,
)
from planner.many_jobs.simulation.placing import PoolNodes
from tests.oracles.zone_oracle import cheapest_of_all

INSTANCES = 200


def draw_request(rng: Random) -> ZoneRequest:
    """Up to eleven nodes in up to three pods, some shared by jobs that would be stopped."""
    count = rng.randrange(4, 12)
    cuts = sorted(rng.choices(range(count + 1), k=rng.randrange(3)))
    edges = [0, *cuts, count]
    pods = tuple(tuple(range(first, last)) for first, last in pairwise(edges) if first < last)
    columns = rng.choice((1, 1, 2))
    rows = rng.randrange(1, count // columns + 1)
    stops = tuple(
        Stop(
            nodes=frozenset(rng.sample(range(count), rng.randrange(1, 4))),
            cost=rng.choice((1.0, 5.0, 20.0)),
        )
        for _ in range(rng.randrange(5))
    )
    return ZoneRequest(
        rows=rows,
        columns=columns,
        pods=pods,
        idle={node: rng.choice((0.0, 0.5, 2.0, 8.0)) for node in range(count)},
        stops=stops,
        alpha=rng.choice((0.0, 0.3, 0.5, 1.0)),
        pod_cost=rng.choice((0.0, 1.0, 10.0)),
    )


def test_as_cheap_as_every_set_of_nodes() -> None:
    """Equal to the cheapest of all sets nearly always, and else close; never below it."""
    equal, excess, total = 0, 0.0, 0.0
    for seed in range(INSTANCES):
        request = draw_request(Random(seed))
        zone = cheapest_zone(request)
        assert len(zone) == len(set(zone)) == request.wanted
        cost = zone_cost(request, zone)
        nodes = tuple(node for pod in request.pods for node in pod)
        least = cheapest_of_all(nodes, request.wanted, lambda chosen, request=request: zone_cost(request, chosen))  # type: ignore[misc]
        assert cost >= least - 1e-9
        equal += cost <= least + 1e-9
        excess += cost - least
        total += least
    assert equal >= 0.93 * INSTANCES
    assert excess <= 0.02 * total


def test_the_papers_zone_has_the_least_spread_and_takes_free_nodes_first() -> None:
    request = ZoneRequest(rows=4, columns=1, pods=((0, 1, 2), (3, 4, 5, 6, 7)), idle=dict.fromkeys(range(8), 1.0))
    assert set(least_spread_zone(request, busy={3, 4})) == {3, 5, 6, 7}
    assert set(least_spread_zone(request, busy=set())) == {3, 4, 5, 6}


def test_ranks_run_pod_by_pod_in_columns() -> None:
    """Two stages of two nodes each; the pod of two holds a stage under alpha 1."""
    request = ZoneRequest(
        rows=2, columns=2, pods=((0, 1), (2, 3)), idle=dict.fromkeys(range(4), 0.0), alpha=1.0, method="spread"
    )
    zone = least_spread_zone(request, busy=())
    assert {frozenset(zone[:2]), frozenset(zone[2:])} == {frozenset({0, 1}), frozenset({2, 3})}


def test_too_few_nodes_are_refused() -> None:
    request = ZoneRequest(rows=3, columns=1, pods=((0, 1),), idle={0: 0.0, 1: 0.0})
    assert not request.fits
    for choose in (cheapest_zone, lambda request: least_spread_zone(request, ())):
        with pytest.raises(ValueError, match="3 nodes wanted of 2"):
            choose(request)


def test_a_job_is_spared_where_other_nodes_cost_less() -> None:
    stops = (Stop(nodes=frozenset({0, 1, 2}), cost=10.0),)
    request = ZoneRequest(
        rows=3, columns=1, pods=((0, 1, 2, 3, 4, 5),), idle={0: 0, 1: 0, 2: 0, 3: 3, 4: 3, 5: 3}, stops=stops
    )
    assert set(cheapest_zone(request)) == {3, 4, 5}
    assert zone_cost(request, {3, 4, 5}) == 9.0
    assert zone_cost(request, {0, 3, 4}) == 16.0


@given(
    counts=st.lists(st.integers(0, 8), min_size=1, max_size=12), wanted=st.integers(1, 60), seed=st.integers(0, 10**6)
)
def test_nodes_are_chosen_as_the_simulator_does(counts: list[int], wanted: int, seed: int) -> None:
    """What is free is taken by one rule, whether a policy names nodes or not."""
    pool = PoolNodes(len(counts), 8)
    for node, count in enumerate(counts):
        if count < 8:
            pool.hold(((node, (1 << (8 - count)) - 1),))
    cut = Random(seed).randrange(len(counts) + 1)
    chosen = fewest_nodes((FreeNodes(counts, range(cut)), FreeNodes(counts, range(cut, len(counts)))), wanted)
    if sum(counts) < wanted:
        assert chosen is None
        return
    assert chosen == tuple((node, mask.bit_count()) for node, mask in pool.take(wanted))
