"""Over which sites a job runs: SpinSearch, the exact search, ours, and what is said of them."""

from __future__ import annotations

import json
import math
from itertools import product
from random import Random
from typing import get_args

import pytest

from planner.many_jobs.sites.choosing import METHODS, choose_sites, place_on_sites, why_it_loses
from planner.many_jobs.sites.compact import compact_search
from planner.many_jobs.sites.exact import exact_search
from planner.many_jobs.sites.records import Choice, Demand, NoSites, Score, SitePlacement
from planner.many_jobs.sites.scoring import score_sites
from planner.many_jobs.sites.spin_search import AnchorName, first_fit, spin_search
from planner.many_jobs.sites.state import SiteTable
from planner.many_jobs.sites.topology import ScoreName, Topology, make_topology
from profiles.errors import InputError
from tests.oracles.sites_oracle import all_paths, best_key, expand_by_radius
from tests.seeds import seeds
from tests.sites_examples import figure_2, figure_4, make_table, random_free, random_topology

READINGS: tuple[tuple[ScoreName, AnchorName], ...] = tuple(product(get_args(ScoreName), get_args(AnchorName)))


def sites_of(table: SiteTable, choice: Choice | None) -> dict[str, int]:
    assert choice is not None
    return {table.topology.names[site]: count for site, count in choice.shares}


def placed(table: SiteTable, demand: Demand, method: str = "compact") -> SitePlacement:
    found = place_on_sites(table, demand, method=method)
    assert isinstance(found, SitePlacement)
    return found


def refused(table: SiteTable, demand: Demand, method: str = "compact") -> NoSites:
    found = place_on_sites(table, demand, method=method)
    assert isinstance(found, NoSites)
    return found


@pytest.mark.parametrize(("trajectory", "nodes", "distance"), [("abcd", 4, 3), ("ae", 2, 7), ("ag", 2, 1)])
def test_table_1(trajectory: str, nodes: int, distance: float) -> None:
    topology = figure_2().topology
    score = score_sites(topology, [topology.number[name] for name in trajectory], topology.number["a"])
    assert score.sites == nodes
    assert score.distance_s == pytest.approx(distance * 1e-3)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "first-fit"])
def test_the_third_trajectory_of_table_1_is_found(method: str) -> None:
    found = choose_sites(figure_2(), Demand(devices=16, local="a"), method=method)
    assert found is not None
    assert sites_of(figure_2(), found[0]) == {"a": 4, "g": 12}


def test_figure_4() -> None:
    table = figure_4()
    order = table.topology.order("from-local", 0)
    assert [table.topology.names[site] for site in order] == ["a", "b", "c", "d", "e", "g", "f"]
    found = spin_search(table.topology, table.total, 16, 0, score="from-local", anchor="free")
    assert found is not None
    assert found.step == "hop expansion"
    assert sites_of(table, found) == {"a": 4, "g": 8, "b": 4}
    by_bandwidth = spin_search(table.topology, table.total, 16, 0, anchor="bandwidth")
    assert sites_of(table, by_bandwidth) == {"a": 4, "b": 4, "c": 2, "g": 6}


@pytest.mark.parametrize(
    ("devices", "step", "sites"),
    [
        (3, "local", {"a": 3}),
        (8, "one site", {"e": 8}),
        (12, "one site", {"e": 12}),
        (13, "local plus one", {"a": 4, "e": 9}),
        (17, "hop expansion", {"a": 4, "e": 12, "f": 1}),
    ],
)
def test_the_steps_of_section_4_1_4(devices: int, step: str, sites: dict[str, int]) -> None:
    free = {"a": 4, "e": 12, "f": 2, "b": 4}
    table = make_table(free, {("a", "e"): (9e9, 0.1), ("e", "f"): (9e9, 0.1), ("a", "b"): (1e9, 0.001)})
    found = spin_search(table.topology, table.total, devices, 0, anchor="free")
    assert found is not None
    assert (found.step, sites_of(table, found)) == (step, sites)


@pytest.mark.parametrize("seed", seeds(200))
def test_hop_expansion_is_that_of_the_equations(seed: int) -> None:
    rng = Random(seed)
    topology = random_topology(rng, rng.randint(1, 10))
    free, paths = random_free(rng, len(topology)), all_paths(topology)
    wanted, local = rng.randint(1, max(1, sum(free))), rng.choice((None, rng.randrange(len(topology))))
    for score, anchor in READINGS:
        found = spin_search(topology, free, wanted, local, score=score, anchor=anchor)
        if found is not None and found.step != "hop expansion":
            continue
        able = [site for site in range(len(topology)) if local is None or paths[0][local][site] > 0]
        scores = [sum(edge[2] for edge in topology.edges if site in edge[:2]) for site in range(len(topology))]
        if score == "from-local" and local is not None:
            scores = paths[0][local]
        own = local if local is not None and free[local] else None
        if anchor == "bandwidth":
            start = max(able, key=lambda site: (scores[site], -site))
        else:
            left = [site for site in able if site != own]
            start = max(left, key=lambda site: (free[site], scores[site], -site), default=-1)
        rest = wanted - (free[own] if own is not None else 0)
        expected = None if start < 0 else expand_by_radius(paths, free, rest, start, scores, own)
        shares = None if found is None else list(found.shares)[own is not None :]
        assert shares == expected


@pytest.mark.parametrize("seed", seeds(300))
def test_read_literally_hop_expansion_never_places(seed: int) -> None:
    rng = Random(seed)
    topology = random_topology(rng, rng.randint(1, 10))
    free = random_free(rng, len(topology))
    wanted = rng.randint(1, sum(free) + 4)
    for score, _ in READINGS:
        found = first_fit(topology, free, wanted, 0, score=score)
        assert (found is None) == (wanted > sum(free))
        assert found is None or found.step == "first fit"


def test_bandwidth_order_breaks_the_bound_on_sites() -> None:
    """Two sites of 8 on thin links would do; 16 sites of 1 on wide links are taken: 16 > 11/9 * 2 + 1."""
    small = [(a, b, 10e9, 1e-3) for a, b in zip(range(16), [*range(1, 16), 0], strict=True)]
    topology = make_topology([str(site) for site in range(18)], [*small, (0, 16, 1e9, 1e-3), (16, 17, 1e9, 1e-3)])
    free = [1] * 16 + [8, 8]
    bound = 11 / 9 * 2 + 1
    exact = compact_search(topology, free, 16, None)
    assert exact is not None
    assert exact.sites == (16, 17)
    literal, spun = first_fit(topology, free, 16, None), spin_search(topology, free, 16, None)
    assert literal is not None
    assert spun is not None
    assert len(literal.shares) == 16 > bound
    assert len(spun.shares) > bound


def key_of(topology: Topology, choice: Choice | None, local: int | None) -> tuple[float, float, float]:
    """No sites, and sites that no path joins, are worse than all else."""
    if choice is None:
        return math.inf, 0.0, 0.0
    score = score_sites(topology, choice.sites, local)
    return score.key if score.bandwidth_bytes_per_s and score.distance_s < math.inf else (math.inf, 0.0, 0.0)


@pytest.mark.parametrize("block", seeds(20))
def test_exact_and_compact_against_all_sets(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        rng = Random(seed)
        topology = random_topology(rng, rng.randint(1, 8))
        free = random_free(rng, len(topology))
        wanted, local = rng.randint(1, sum(free) + 1), rng.choice((None, rng.randrange(len(topology))))
        best = best_key(all_paths(topology), free, wanted, local)
        for search in (exact_search, compact_search):
            found = search(topology, free, wanted, local)
            assert (found is None) == (best is None)
            if found is None or best is None:
                continue
            assert sum(count for _, count in found.shares) == wanted
            assert all(0 < count <= free[site] for site, count in found.shares)
            assert found.proved
            assert key_of(topology, found, local) == pytest.approx(best)


@pytest.mark.parametrize("block", seeds(20))
def test_compact_is_never_worse_than_spin_search(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        rng = Random(seed)
        topology = random_topology(rng, rng.randint(1, 24))
        free = random_free(rng, len(topology))
        wanted, local = rng.randint(1, sum(free) + 1), rng.choice((None, rng.randrange(len(topology))))
        ours = compact_search(topology, free, wanted, local, work=rng.choice((0, 10, 2000)))
        key = key_of(topology, ours, local)
        for score, anchor in READINGS:
            spun = spin_search(topology, free, wanted, local, score=score, anchor=anchor)
            for other in (spun, first_fit(topology, free, wanted, local, score=score)):
                assert key <= key_of(topology, other, local), (seed, score, anchor)
        if ours is not None:
            assert sum(count for _, count in ours.shares) == wanted
            assert all(0 < count <= free[site] for site, count in ours.shares)


@pytest.mark.parametrize("seed", seeds(30))
def test_names_and_order_of_sites_change_no_score(seed: int) -> None:
    rng = Random(seed)
    topology = random_topology(rng, 8)
    free = random_free(rng, 8)
    wanted, local = rng.randint(1, max(1, sum(free))), rng.randrange(8)
    to = rng.sample(range(8), 8)
    moved = make_topology([f"m{site}" for site in range(8)], [(to[a], to[b], w, s) for a, b, w, s in topology.edges])
    moved_free = [free[to.index(site)] for site in range(8)]
    for search in (exact_search, compact_search):
        one, two = search(topology, free, wanted, local), search(moved, moved_free, wanted, to[local])
        assert key_of(topology, one, local) == pytest.approx(key_of(moved, two, to[local]))
        assert search(topology, free, wanted, local) == one


@pytest.mark.parametrize("method", METHODS)
def test_degenerate_graphs(method: str) -> None:
    one = make_table({"x": 4}, {})
    assert placed(one, Demand(devices=4, local="x"), method).sites[0].site == "x"
    assert placed(one, Demand(devices=1), method).links == ()
    refused(one, Demand(devices=5, local="x"), method)
    nothing = make_table({"x": 0, "y": 0}, {("x", "y"): (1e9, 0.1)})
    refused(nothing, Demand(devices=1), method)
    pairs = [(a, b) for a in "wxyz" for b in "wxyz" if a < b]
    equal = make_table(dict.fromkeys("wxyz", 4), dict.fromkeys(pairs, (1e9, 0.1)))
    assert [share.site for share in placed(equal, Demand(devices=8), method).sites] == ["w", "x"]
    if method == "first-fit":
        return
    for links in ({}, {("x", "y"): (0.0, 0.1)}):
        apart = make_table({"x": 4, "y": 4}, links)
        assert "joined to x" in refused(apart, Demand(devices=6, local="x"), method).reason
        assert "links join" in refused(apart, Demand(devices=6), method).reason
        assert placed(apart, Demand(devices=4, local="y"), method).sites[0].site == "y"


def test_what_cannot_be_placed_and_the_smallest_change() -> None:
    table = make_table(
        {"x": {"a40": 3}, "y": {"a40": 1, "a10": 4}, "z": {"a40": 8}, "u": {"a40": 2}}, {("x", "y"): (1e9, 0.1)}
    )
    few = refused(table, Demand(devices=20))
    assert few.reason == "20 devices wanted, 18 free on all sites"
    assert few.changes == ("12 more free devices on x or y", "a job of at most 8 devices") or few.changes == (
        "12 more free devices on z",
        "a job of at most 8 devices",
    )
    apart = refused(table, Demand(devices=10))
    assert apart.reason == "10 devices wanted, 18 free on all sites, but at most 8 on sites that links join"
    assert apart.changes[0] == "1 link that joins these: x or y; z"
    assert refused(table, Demand(devices=17)).changes[0] == "2 links that join these: x or y; z; u"
    unknown = refused(table, Demand(devices=1, types=("h100",)))
    assert unknown.reason == "no site has h100"
    assert unknown.changes == ("ask for one of: a40 (14 free), a10 (4 free)",)
    other = refused(table, Demand(devices=5, types=("a10",)))
    assert other.changes == (
        "1 more free device of a10 on x or y",
        "a job of at most 4 devices of a10",
        "devices of a40 instead",
    )
    near = refused(table, Demand(devices=5, types=("a40",), local="x"))
    assert near.reason == "5 a40 devices wanted, 14 free on all sites, but only 4 on sites that are joined to x"
    assert near.changes[-1] == "devices of any type, not only a40"
    mixed = refused(table, Demand(devices=6, one_type=True, local="y"))
    assert mixed.changes[-1] == "devices of several types in one job"
    assert near.infeasible.lacking == "devices"
    with pytest.raises(InputError, match="'w'"):
        place_on_sites(table, Demand(devices=1, local="w"))
    with pytest.raises(InputError, match="method"):
        place_on_sites(table, Demand(devices=1), method="magic")
    with pytest.raises(ValueError, match="0 devices"):
        Demand(devices=0)


@pytest.mark.parametrize("seed", seeds(60))
def test_the_changes_named_are_enough_and_no_less_is(seed: int) -> None:
    rng = Random(seed)
    topology = random_topology(rng, rng.randint(1, 8))
    free = random_free(rng, len(topology))
    table, local = SiteTable(topology, ["a40"], [free]), rng.choice((None, *topology.names))
    wanted = rng.randint(1, sum(free) + 5)
    found = place_on_sites(table, Demand(devices=wanted, local=local))
    if isinstance(found, SitePlacement):
        return
    most = max(int(change.split("at most ")[1].split()[0]) if "at most" in change else 0 for change in found.changes)
    if most:
        assert isinstance(place_on_sites(table, Demand(devices=most, local=local)), SitePlacement)
    assert isinstance(place_on_sites(table, Demand(devices=most + 1, local=local)), NoSites)
    more = next(change for change in found.changes if "more free" in change)
    where = more.rpartition(" on ")[2].split(" or ")[0]
    row = list(free)
    for count, holds in ((int(more.split()[0]), True), (int(more.split()[0]) - 1, False)):
        row[topology.number[where]] = free[topology.number[where]] + count
        again = place_on_sites(SiteTable(topology, ["a40"], [row]), Demand(devices=wanted, local=local))
        assert isinstance(again, SitePlacement) == holds


def test_types() -> None:
    table = make_table({"x": {"a40": 2, "a10": 2}, "y": {"a10": 4}}, {("x", "y"): (1e9, 0.1)})
    assert [share.devices for share in placed(table, Demand(devices=4, local="x")).sites] == [(("a40", 2), ("a10", 2))]
    same = placed(table, Demand(devices=4, local="x", one_type=True))
    assert [(share.site, share.devices) for share in same.sites] == [("y", (("a10", 4),))]
    few = placed(table, Demand(devices=3, types=("a10",), local="x"))
    assert [share.site for share in few.sites] == ["y"]


def test_the_record_says_links_alternatives_and_why_they_lose() -> None:
    found = placed(figure_4(), Demand(devices=16, local="a"))
    assert ({share.site: share.count for share in found.sites}, found.score.sites) == ({"a": 4, "b": 4, "g": 8}, 3)
    assert found.links == (("a", "b"), ("b", "g"))
    assert found.proved
    said = {one.name: one.loses for one in found.alternatives}
    assert said["local site alone"] == "a has 4 of 16 devices free"
    assert said["most devices on one site"] == "g has 8 of 16 devices free"
    assert said["spin-search"] == "4 sites, 1 more"
    ways = json.loads(json.dumps([way.to_json() for way in found.alternatives], allow_nan=False))
    assert [way["name"] for way in ways] == list(said)
    assert found.sites[2].to_json() == {"name": "g", "devices": {"device": 8}}
    alone = placed(figure_4(), Demand(devices=4, local="a"))
    assert alone.score.to_json() == {"sites": 1, "bandwidth_bytes_per_s": None, "distance_s": 0.0}


def test_why_it_loses() -> None:
    best = Score(sites=2, bandwidth_bytes_per_s=2e9, distance_s=0.01)
    assert why_it_loses(Score(sites=3, bandwidth_bytes_per_s=9e9, distance_s=0.0), best) == "3 sites, 1 more"
    narrow = why_it_loses(Score(sites=2, bandwidth_bytes_per_s=1e9, distance_s=0.0), best)
    assert narrow == "as many sites, but 1 GB/s between them, 50% less"
    far = why_it_loses(Score(sites=2, bandwidth_bytes_per_s=2e9, distance_s=0.012), best)
    assert far == "as many sites and as wide, but 12 ms of latency, 2 ms more"
    assert why_it_loses(Score(sites=1, bandwidth_bytes_per_s=0.0, distance_s=0.0), best) == "1 sites that no path joins"
    assert why_it_loses(best, best) == "equal in sites, bandwidth and latency"
    assert why_it_loses(Score(sites=1, bandwidth_bytes_per_s=1.0, distance_s=0.0), best).startswith("better")
