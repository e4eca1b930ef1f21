"""What plans take over sites: equal shapes, the planners beside the estimator, links that jobs share."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from planner.api import simulate as simulate_by_name
from planner.many_jobs.jobs.records import Grant, Workload
from planner.many_jobs.policies.spiderflow import SpiderFlow
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from planner.many_jobs.scheduling.sites.genetic import deal_pieces, piece_graph
from planner.many_jobs.scheduling.sites.planners import PLANNERS, Workshop
from planner.many_jobs.scheduling.sites.shapes import Shapes
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.simulation.site_prices import SharedLinks, SitePrices, link_name, site_truth
from planner.many_jobs.sites.tpa import plan_across
from profiles.cluster import Cluster, SiteLink
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from tests.scheduling_examples import make_job

GBIT = 1.25e8
SMALL = Workload(model="bert-large", global_batch=16)
LARGE = Workload(model="gpt2-1.3b", global_batch=16)


def sites_of(*shapes: str, gbit: float = 5.0, prefix: str = "s") -> Cluster:
    """A site of each shape, every two joined."""
    parts = [load_cluster(shape).sites[0] for shape in shapes]
    sites = tuple(replace(site, name=f"{prefix}{number}") for number, site in enumerate(parts))
    links = tuple(
        SiteLink(between=(a.name, b.name), bandwidth_bytes_per_s=gbit * GBIT, latency_s=1e-3)
        for a, b in itertools.combinations(sites, 2)
    )
    return Cluster(text="sites", sites=sites, site_links=links)


def parts_of(cluster: Cluster, *counts: int) -> tuple[tuple[str, int], ...]:
    """So many devices of each pool."""
    return tuple((name, count) for name, count in zip(pools_of(cluster), counts, strict=False) if count)


def test_equal_allocations_have_one_shape() -> None:
    cluster = sites_of("a40:2x2", "a40:4x2", "a40:2x4", "a40:1x2")
    shapes = Shapes(cluster)
    assert shapes.of(parts_of(cluster, 2, 1)).shape == shapes.of(parts_of(cluster, 1, 0, 0, 2)).shape
    assert shapes.of(parts_of(cluster, 2, 1)).shape != shapes.of(parts_of(cluster, 2, 0, 1)).shape
    assert shapes.of(parts_of(cluster, 2)).shape != shapes.of(parts_of(cluster, 1)).shape


@given(seed=st.integers(0, 10**6))
def test_renaming_and_reordering_sites_changes_no_shape(seed: int) -> None:
    """As far as devices and links tell the sites apart: ties may be kept twice, and are then priced twice."""
    rng = Random(seed)
    one = sites_of("a40:2x2", "a40:2x4", "a40:4x2")
    links = tuple(
        replace(link, bandwidth_bytes_per_s=gbit * GBIT)
        for link, gbit in zip(one.site_links, rng.sample((1, 2, 5, 10), 3), strict=True)
    )
    one = replace(one, site_links=links)
    order = rng.sample(range(3), 3)
    sites = tuple(replace(one.sites[place], name=f"t{place}") for place in order)
    names = {f"s{place}": f"t{place}" for place in range(3)}
    renamed = tuple(replace(link, between=(names[link.between[0]], names[link.between[1]])) for link in links)
    other = Cluster(text="renamed", sites=sites, site_links=renamed)
    counts = [rng.randint(1, 4) for _ in range(3)]
    here = Shapes(one).of([(f"s{place}/a40", counts[place]) for place in range(3)])
    there = Shapes(other).of([(f"t{place}/a40", counts[place]) for place in order])
    assert here.shape == there.shape
    assert [names[name] for name in here.names] == list(there.names)


@pytest.mark.parametrize("planner", sorted(PLANNERS))
@pytest.mark.parametrize("counts", [(2, 0, 0), (2, 2, 0), (1, 2, 1)])
def test_a_price_is_the_estimators_word_on_a_plan_of_those_devices(planner: str, counts: tuple[int, ...]) -> None:
    cluster = sites_of("a40:1x2", "a40:1x2", "a40:1x1")
    prices = SitePrices(cluster)
    grant = Grant(parts=parts_of(cluster, *counts), planner=planner)
    found = prices.plan(SMALL, grant)
    assert found is not None
    again = evaluate(found.setup)
    assert isinstance(again, Evaluation)
    assert found.time_s == again.iteration_time_s
    assert again.out_of_memory is None
    slots = [slot for stage in found.setup.stages for slot in stage.slots]
    assert len(set(slots)) == len(slots) <= sum(counts)
    assert set(slots) <= set(found.setup.cluster.free_slots)
    if planner in ("even", "uniform", "genetic"):
        assert len(slots) == sum(counts)


@pytest.mark.parametrize("gbit", [1.0, 15.0])
def test_who_sees_links_is_never_slower(gbit: float) -> None:
    """Every plan of "even" is one that "uniform" could choose; TPA has it among its own, and "ilp" all of these."""
    cluster = sites_of("a40:1x2", "a40:1x2", gbit=gbit)
    workshop = Workshop()
    times = {}
    for planner in PLANNERS:
        found = workshop.plan(planner, LARGE, cluster)
        assert found is not None
        times[planner] = found.time_s
    assert times["uniform"] <= times["even"] * (1 + 1e-9)
    assert times["tpa"] <= times["even"] * (1 + 1e-9)
    assert times["ilp"] <= min(times["uniform"], times["tpa"]) * (1 + 1e-9)


def test_tpa_is_what_plan_across_says_or_better() -> None:
    cluster = sites_of("a40:1x2", "a40:1x1")
    workshop = Workshop()
    across = plan_across(workshop.request(LARGE, cluster))
    found = workshop.plan("tpa", LARGE, cluster)
    assert across is not None
    assert found is not None
    assert found.time_s <= across.best.time_s * (1 + 1e-9)


def test_sites_that_nothing_joins() -> None:
    cluster = replace(sites_of("a40:1x2", "a40:1x2"), site_links=())
    workshop = Workshop()
    assert workshop.plan("even", SMALL, cluster) is None
    assert workshop.plan("uniform", SMALL, cluster) is None
    assert workshop.plan("genetic", SMALL, cluster) is None
    alone = workshop.plan("tpa", SMALL, cluster)
    assert alone is not None
    assert len(alone.sites) == 1


def test_what_does_not_fit_has_no_price() -> None:
    cluster = sites_of("a10:1x1", "a10:1x1")
    large = Workload(model="opt-13b", global_batch=8)
    prices = SitePrices(cluster)
    for planner in PLANNERS:
        assert prices.plan(large, Grant(parts=parts_of(cluster, 1, 1), planner=planner)) is None
    with pytest.raises(ValueError, match="does not fit"):
        prices.used_sites(large, Grant(parts=parts_of(cluster, 1, 1), planner="even"))
    with pytest.raises(InputError):
        prices.plan(large, Grant(parts=parts_of(cluster, 1, 1), planner="nobody"))


def test_a_link_shared_by_two_is_a_link_of_half_the_width() -> None:
    thick, thin = sites_of("a40:1x2", "a40:1x2", gbit=10.0), sites_of("a40:1x2", "a40:1x2", gbit=5.0)
    grant = Grant(parts=parts_of(thick, 2, 2), planner="even")
    one, other = SitePrices(thick), SitePrices(thin)
    name = link_name("s1", "s0")
    half, alone = one.shared_s(SMALL, grant, {name: 2}), one.shared_s(SMALL, grant, {name: 1})
    planned = other.plan(SMALL, grant)
    assert planned is not None
    assert half == planned.time_s
    assert alone < half


def test_jobs_of_one_site_share_nothing() -> None:
    cluster = sites_of("a40:1x2", "a40:1x2")
    sharing = SharedLinks(prices=SitePrices(cluster))
    job = make_job("x", pool="s0/a40", devices=2)
    assert sharing.uses(job, Grant(parts=parts_of(cluster, 2), planner="tpa"), {}) == {}
    assert sharing.uses(job, Grant(parts=parts_of(cluster, 2)), {}) == {}


def test_the_truth_without_a_planner_is_the_cells() -> None:
    cluster = sites_of("a40:1x2", "a40:1x2")
    cells = EstimatedCells(cluster=cluster, pools=pools_of(cluster))
    truth = site_truth(SitePrices(cluster), cells)
    job = replace(make_job("x", pool="s0/a40", devices=2), workload=SMALL)
    best = cells.best(SMALL, "s0/a40", 2)
    assert best is not None
    assert truth(job, Grant(parts=(("s0/a40", 2),)), None) == best.iteration_time_s
    assert truth(job, Grant(parts=parts_of(cluster, 1, 1)), None) is None
    assert truth(job, Grant(parts=parts_of(cluster, 1, 1), planner="even"), None) is not None


def test_two_jobs_run_over_sites_as_the_estimator_says() -> None:
    """A job on both sites of the cluster ends after its iterations at the price of its plan."""
    cluster = sites_of("a40:1x2", "a40:1x2", gbit=15.0)
    prices, pools = SitePrices(cluster), pools_of(cluster)
    cells = EstimatedCells(cluster=cluster, pools=pools)
    job = replace(make_job("x", pool="s0/a40", devices=4, iterations=100.0), workload=LARGE)
    settings = Settings(
        truth=site_truth(prices, cells), sharing=SharedLinks(prices=prices), site_links=cluster.site_links
    )
    result = simulate([job], pools, cells, SpiderFlow(trim=False), settings=settings)
    planned = prices.plan(LARGE, Grant(parts=parts_of(cluster, 2, 2), planner="tpa"))
    assert planned is not None
    assert result.table.end_s[0] == pytest.approx(100 * planned.time_s)


@given(seed=st.integers(0, 10**6))
def test_pieces_are_dealt_within_what_sites_have(seed: int) -> None:
    rng = Random(seed)
    stages, replicas = rng.randint(1, 4), rng.randint(1, 4)
    graph = piece_graph(replicas, stages, message=rng.randint(1, 9), gradient=rng.randint(1, 9))
    capacities = [rng.randint(0, 6) for _ in range(rng.randint(1, 4))]
    found = deal_pieces(graph, capacities)
    if sum(capacities) < stages * replicas:
        assert found is None
        return
    assert found is not None
    assert len(found) == stages * replicas
    assert all(found.count(site) <= capacity for site, capacity in enumerate(capacities))


def test_a_graph_of_pieces() -> None:
    """Two stages of three replicas: three messages and two rings of three."""
    graph = piece_graph(3, 2, message=5, gradient=7)
    assert (graph.nodes, len(graph.edges)) == (6, 9)
    assert sorted(graph.traffic.tolist()) == [5] * 3 + [7] * 6
    assert piece_graph(2, 1, message=5, gradient=7).traffic.tolist() == [14]
    assert len(piece_graph(1, 1, message=5, gradient=7).edges) == 0


def test_simulate_takes_a_cluster_of_several_sites(tmp_path: Path) -> None:
    site = "{name: %s, nodes: [{count: 1, device: a40, devices: 2}]}"
    place = tmp_path / "sites.yaml"
    place.write_text(
        "schema: cellplan.cluster/1\n"
        f"sites: [{site % 'north'}, {site % 'south'}]\n"
        "links_between_sites: [{between: [north, south], bandwidth_bytes_per_s: 1.25e+9, latency_s: 1.0e-3}]\n",
        encoding="utf-8",
    )
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "job_id,submit_time_s,duration_s,gpus,model,global_batch\n1,0,600,1,bert-large,16\n2,0,600,2,bert-large,16\n",
        encoding="utf-8",
    )
    found = simulate_by_name(trace, cluster=str(place), policy="spiderflow")
    assert found.result.summary.finished == 2
    assert any("over sites" in note for note in found.notes)
