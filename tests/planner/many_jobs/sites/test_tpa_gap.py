"""TPA beside the exact search over the same devices, on seeded instances; and sites that differ in names alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bench.clusters.tpa_gap import MODELS, draw_request, make_request
from estimator.pricing.pricing import Pricing
from planner.many_jobs.sites.alike import Alike
from planner.many_jobs.sites.tpa import _Search, plan_across
from planner.many_jobs.sites.tpa_sites import SiteGraph
from planner.one_job.search.best import find_best
from profiles.cluster import Cluster, SiteLink
from profiles.cluster_file import load_cluster
from tests.seeds import some


def joined(shapes: tuple[str, ...], width: float = 1.25e9) -> Cluster:
    """A site of each shape, every two joined."""
    sites = tuple(replace(load_cluster(shape).sites[0], name=f"s{number}") for number, shape in enumerate(shapes))
    links = tuple(
        SiteLink(between=(a.name, b.name), bandwidth_bytes_per_s=width, latency_s=1e-3)
        for a, b in itertools.combinations(sites, 2)
    )
    return Cluster(text="+".join(shapes), sites=sites, site_links=links)


@pytest.mark.parametrize("first", some(range(0, 12, 4), 1))
def test_drawn_instances_are_near_the_exact_search(first: int) -> None:
    gaps = []
    for seed in range(first, first + 4):
        _, request = draw_request(seed)
        found, best = plan_across(request), find_best(request)
        assert found is not None
        assert found.best.time_s >= best.lower_bound * (1 - 1e-9)
        gaps.append(found.best.time_s / best.winner.evaluation.iteration_time_s - 1)
    assert max(gaps) < 0.1
    assert sorted(gaps)[1] < 0.01


def test_uneven_sites_of_several_types() -> None:
    """2, 4 and 1 devices: A100, A100 and H100."""
    request = make_request(MODELS[1], joined(("a100-80gb:1x2", "a100-80gb:1x4", "h100:1x1")), 12)
    found, best = plan_across(request), find_best(request)
    assert found is not None
    assert best.lower_bound * (1 - 1e-9) <= found.best.time_s <= 1.05 * best.winner.evaluation.iteration_time_s
    every = plan_across(request, wanted="all-sites")
    assert every is not None
    assert {device.site for device in every.plan.devices} == {"s0", "s1", "s2"}


def test_both_ways_round_are_looked_at() -> None:
    """The head is where the pipeline ends: on the faster site."""
    found = plan_across(make_request(MODELS[2], joined(("a40:1x1", "h100:1x1"), 1.25e10), 16), wanted="all-sites")
    assert found is not None
    assert {tuple(names for (names,) in one.sites) for one in found.considered if len(one.sites) == 2} == {
        ("s0", "s1"),
        ("s1", "s0"),
    }


def test_what_is_alike_is_planned_alike() -> None:
    """Sites that differ in names alone: the first party stands for the others, on their own devices."""
    request = make_request(MODELS[0], joined(("a100-80gb:1x2", "a100-80gb:1x2", "a100-80gb:1x2", "a100-80gb:1x4")), 16)
    search = _Search(request, "any")
    alike = search.alike
    assert [alike.first_of((number,)) for number in range(4)] == [(0,), (0,), (0,), (3,)]
    assert alike.first_of((1, 2)) == (1, 2)
    assert alike.first_of((0, 2)) == (1, 2)
    assert alike.first_of((0, 3)) == (0, 3)
    moved = alike.moved(search.groups[1].slots[:1], (1, 2), (0, 2))
    assert [(slot.site, slot.node, slot.index) for slot in moved] == [("s0", 0, 0)]


def test_links_tell_parties_apart() -> None:
    request = make_request(MODELS[0], joined(("a100-80gb:1x2",) * 3), 16)
    groups = _Search(request, "any").groups
    graph = SiteGraph(
        speed=(1.0,) * 3,
        bandwidth_bytes_per_s=((0, 1e9, 1e9), (1e9, 0, 2e9), (1e9, 2e9, 0)),
        latency_s=((0.0,) * 3,) * 3,
    )
    alike = Alike(groups=groups, graph=graph, by_name=False, pricing=Pricing())
    assert alike.first_of((0, 1)) == alike.first_of((0, 2)) == (0, 1)
    assert alike.first_of((1, 2)) == (1, 2)
    named = Alike(groups=groups, graph=graph, by_name=True, pricing=Pricing())
    assert named.first_of((0, 1)) == (0, 1)
    assert named.first_of((0, 2)) == (0, 2)


def test_equal_sites_cost_as_much_in_any_order_of_their_names() -> None:
    shapes = ("a100-80gb:1x2", "a100-80gb:1x1", "a100-80gb:1x2")
    times = set()
    for order in itertools.permutations(shapes):
        found = plan_across(make_request(MODELS[1], joined(order), 12), wanted="all-sites")
        assert found is not None
        times.add(round(found.best.time_s, 12))
    assert len(times) == 1
