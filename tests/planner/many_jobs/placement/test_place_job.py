"""`place`: sites, devices and plan of a job, what the plan file keeps, other ways, and what cannot be placed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from planner import api
from planner.many_jobs.sites import choosing
from planner.shared.options.place import SitesMethod
from profiles.errors import InputError, NothingFits
from tests.planner.many_jobs.placement.place_examples import a100, three_sites, write_cluster

MODEL = "gpt2-1.3b"

METHODS = get_args(SitesMethod)


def place(cluster: str, devices: int, **words: Any) -> dict[str, Any]:
    """A small job of few other ways."""
    return api.place(MODEL, cluster=cluster, devices=devices, **{"global_batch": 16, "alternatives": 0, **words})


def counts(result: dict[str, Any]) -> dict[str, int]:
    """Devices by site."""
    return {site["name"]: len(site["devices"]) for site in result["sites"]}


def test_one_site_where_one_suffices(tmp_path: Path) -> None:
    found = place(three_sites(tmp_path), 10)
    assert counts(found) == {"north": 10}
    assert found["links"] == found["routes"] == []
    assert found["score"]["between_sites_s"] == 0
    assert found["score"]["sites"] == 1


def test_several_sites_with_exact_devices(tmp_path: Path) -> None:
    found = place(three_sites(tmp_path), 20, all_sites=True)
    assert counts(found) == {"north": 12, "south": 8}
    places = [(site["name"], one["node"], one["index"]) for site in found["sites"] for one in site["devices"]]
    assert len(set(places)) == 20
    # North has 12 of its 16 devices free: the first ones.
    assert max(node * 8 + index for site, node, index in places if site == "north") == 11
    ranks = [one["rank"] for site in found["sites"] for one in site["devices"] if one["rank"] is not None]
    assert sorted(ranks) == list(range(len(found["plan"]["devices"])))
    assert {one["site"] for one in found["plan"]["devices"]} == {"north", "south"}
    assert [link["between"] for link in found["links"]] == [["north", "south"]]
    assert 0 < found["score"]["between_sites_s"] < found["score"]["iteration_time_s"]
    assert found["score"]["bandwidth_bytes_per_s"] == 1.25e9
    assert found["score"]["basis"] == {"compute": "modelled", "communication": "modelled", "links": "file"}


def test_without_thin_links_nothing_is_between_sites(tmp_path: Path) -> None:
    """What is said to be between sites goes down as the links get wide."""
    shares = []
    for width in (1e8, 1e9, 1e14):
        path = write_cluster(tmp_path, {"a": [a100(4)], "b": [a100(4)]}, [("a", "b", width, 0.0)])
        shares.append(place(path, 8, all_sites=True)["score"]["between_sites_share"])
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.01


@pytest.mark.parametrize("devices", [12, 16, 24])
def test_the_plan_file_is_estimated_as_placed(tmp_path: Path, devices: int) -> None:
    path = tmp_path / "plan.json"
    found = place(three_sites(tmp_path), devices, output=path)
    again = api.estimate(plan=path)
    assert again["estimate"]["iteration_time_s"] == pytest.approx(found["score"]["iteration_time_s"], rel=1e-9)
    assert json.loads(path.read_text()) == found["plan"]


def test_sites_without_a_link_of_their_own_are_joined_over_others(tmp_path: Path) -> None:
    path, plan = three_sites(tmp_path), tmp_path / "plan.json"
    found = place(path, 26, all_sites=True, output=plan)
    (route,) = found["routes"]
    assert route["sites"] == ["north", "south", "west"]
    assert route["bandwidth_bytes_per_s"] == 6.25e8
    assert route["latency_s"] == pytest.approx(7e-3)
    assert any("no link of their own" in sentence for sentence in found["plan"]["assumptions"])
    again = api.estimate(plan=plan)
    assert again["estimate"]["iteration_time_s"] == pytest.approx(found["score"]["iteration_time_s"], rel=1e-9)


def test_thin_links_leave_granted_sites_idle_and_it_is_said(tmp_path: Path) -> None:
    path = write_cluster(tmp_path, {"a": [a100(4)], "b": [a100(2)]}, [("a", "b", 1e6, 0.1)])
    found = place(path, 6)
    assert counts(found) == {"a": 4, "b": 2}
    assert found["score"]["sites_used"] == ["a"]
    assert found["score"]["idle_devices"] == 2
    other = next(way for way in found["alternatives"] if way["name"] == "all chosen sites")
    assert other["iteration_time_s"] > found["score"]["iteration_time_s"]
    assert "slower" in other["loses"]
    forced = place(path, 6, all_sites=True)
    assert sorted(forced["score"]["sites_used"]) == ["a", "b"]
    assert forced["score"]["iteration_time_s"] >= found["score"]["iteration_time_s"]


def test_other_ways_are_planned_and_say_why_they_lose(tmp_path: Path) -> None:
    found = place(three_sites(tmp_path), 8, local="west", alternatives=8)
    # West has 6: the nearest site with 8 is south.
    assert counts(found) == {"south": 8}
    ways = {way["name"]: way for way in found["alternatives"]}
    assert {"local site alone", "north alone"} <= set(ways)
    assert ways["local site alone"]["sites"] == [{"name": "west", "devices": {"a40": 6}}]
    assert "west has 6 of 8 devices free" in ways["local site alone"]["loses"]
    assert all(way["loses"] for way in found["alternatives"])
    assert all(way["iteration_time_s"] for way in found["alternatives"] if way["sites"])
    seen = [json.dumps(way["sites"]) for way in found["alternatives"] if way["sites"]]
    assert len(set(seen)) == len(seen)
    few = place(three_sites(tmp_path), 8, local="west")
    assert all(way["iteration_time_s"] is None for way in few["alternatives"])
    assert any("not planned" in way["loses"] for way in few["alternatives"])


def test_without_what_was_asked_for(tmp_path: Path) -> None:
    found = place(three_sites(tmp_path), 7, types=("a100-80gb",), one_type=True, local="north", alternatives=8)
    assert counts(found) == {"north": 7}
    found = place(three_sites(tmp_path), 6, types=("a40",), alternatives=8)
    assert counts(found) == {"west": 6}
    assert {one["device"] for one in found["plan"]["devices"]} == {"a40"}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_places(tmp_path: Path, method: str) -> None:
    found = place(three_sites(tmp_path), 18, method=method, local="south")
    assert sum(counts(found).values()) == 18
    assert found["method"] == method


def test_methods_are_those_that_there_are() -> None:
    assert tuple(sorted(METHODS)) == tuple(sorted(choosing.METHODS))
    assert METHODS[0] == choosing.DEFAULT


def test_answers_repeat_whatever_is_equal(tmp_path: Path) -> None:
    sites = {name: [a100(2)] for name in "abcdef"}
    links = [(a, b, 1e9, 1e-3) for a in "abcdef" for b in "abcdef" if a < b]
    path = write_cluster(tmp_path, sites, links)
    one, other = (place(path, 5, alternatives=2) for _ in range(2))
    one.pop("timing"), other.pop("timing")
    assert one == other


def test_a_cluster_of_one_site_is_placed_too() -> None:
    found = place("a100-80gb:2x8", 12)
    assert counts(found) == {"site": 12}


def test_what_is_free_counts(tmp_path: Path) -> None:
    nodes = tmp_path / "sinfo.txt"
    nodes.write_text(
        "NODELIST GRES GRES_USED STATE\nn1 gpu:a100-80gb:8 gpu:a100-80gb:5 mixed\nn2 gpu:a100-80gb:8 (null) idle\n"
    )
    found = place("a100-80gb:2x8", 10, free=str(nodes))
    assert counts(found) == {"site": 10}
    with pytest.raises(NothingFits, match="12 devices wanted, 11 free"):
        place("a100-80gb:2x8", 12, free=str(nodes))


def test_too_few_devices(tmp_path: Path) -> None:
    with pytest.raises(NothingFits, match=r"27 devices wanted, 26 free on all sites; 1 more free device"):
        place(three_sites(tmp_path), 27)


def test_sites_that_nothing_joins(tmp_path: Path) -> None:
    path = write_cluster(tmp_path, {"a": [a100(4)], "b": [a100(4)]})
    assert counts(place(path, 4)) == {"a": 4}
    with pytest.raises(NothingFits, match=r"at most 4 on sites that links join; 1 link that joins these: a; b"):
        place(path, 5)


def test_first_fit_takes_sites_that_nothing_joins_and_the_plan_uses_one(tmp_path: Path) -> None:
    path = write_cluster(tmp_path, {"a": [a100(4)], "b": [a100(2)]})
    with pytest.raises(NothingFits):
        place(path, 6, method="first-fit")


def test_a_model_that_does_not_fit_says_how_many_devices_would_do(tmp_path: Path) -> None:
    path = write_cluster(tmp_path, {"a": [a100(1)], "b": [a100(8)]}, [("a", "b", 1e9, 1e-3)])
    with pytest.raises(NothingFits, match=r"no plan fits; .*--devices (\d+) would do, on b") as caught:
        api.place("llama3-8b", cluster=path, devices=1, global_batch=8, seq_len=2048, no_offload=True)
    enough = int(str(caught.value).split("--devices ")[1].split()[0])
    found = api.place(
        "llama3-8b", cluster=path, devices=enough, global_batch=8, seq_len=2048, no_offload=True, alternatives=0
    )
    assert len(found["plan"]["devices"]) <= enough
    with pytest.raises(NothingFits, match="nor does one on more of the 9 devices"):
        api.place("gpt3-175b", cluster=path, devices=2, global_batch=8, no_offload=True)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ({"local": "east"}, "found 'east', expected one of north, south, west"),
        ({"method": "best"}, "--method: found 'best'"),
        ({"types": ("h100",)}, "--types: found h100, expected some of a100-80gb, a40"),
        ({"types": ("a40", "a40")}, "each type once"),
        ({"schedule": ("gpipe",)}, "--schedule: found gpipe, expected 1f1b"),
        ({"half_life": 0.0}, "--half-life"),
        ({"alternatives": -1}, "--alternatives"),
        ({"fix": ("tp=0",)}, "--fix"),
    ],
)
def test_wrong_input_is_named(tmp_path: Path, words: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        place(three_sites(tmp_path), 4, **words)


@pytest.mark.parametrize("name", ["search", "objective", "limit", "profile_budget", "stages", "formula"])
def test_what_only_a_search_has_is_no_option(tmp_path: Path, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        place(three_sites(tmp_path), 4, **{name: None})


def test_devices_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--devices: found nothing.*--plan"):
        api.place(MODEL, cluster=three_sites(tmp_path))
    with pytest.raises(InputError, match="--devices: found 0"):
        place(three_sites(tmp_path), 0)


def test_exact_is_for_few_sites(tmp_path: Path) -> None:
    sites = {f"s{number}": [a100(1)] for number in range(21)}
    path = write_cluster(tmp_path, sites, [("s0", f"s{n}", 1e9, 1e-3) for n in range(1, 21)])
    with pytest.raises(InputError, match="exact, of 21 sites"):
        place(path, 2, method="exact")
