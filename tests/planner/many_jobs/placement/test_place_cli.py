"""`cellplan place` as a command: what it prints, its JSON, its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.many_jobs.sites.devices import give_devices
from planner.many_jobs.sites.records import Share
from profiles.cluster_file import load_cluster
from tests.documents import checked
from tests.planner.many_jobs.placement.place_examples import a100, three_sites, write_cluster

WORDS = ["--devices", "18", "--global-batch", "64", "--alternatives", "1"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["place", "gpt2-1.3b", *words])
    return status, *capsys.readouterr()


def test_it_prints_sites_devices_links_plan_and_other_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    status, out, _ = run(capsys, "--cluster", three_sites(tmp_path), *WORDS, "-o", str(plan))
    assert status == 0
    for said in (
        "18 devices on 2 sites",
        "node 0: 0-7; node 1: 0-3",
        "north - south: 1.25 GB/s, 2 ms (cluster file)",
        "compute modelled",
        "other ways:",
        f"written to {plan}",
    ):
        assert said in " ".join(out.split())
    assert main(["estimate", "--plan", str(plan)]) == 0


def test_json_has_the_shape_of_the_design(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--cluster", three_sites(tmp_path), *WORDS, "--json")
    value = checked("place", json.loads(out))
    assert status == 0
    assert {"sites", "plan", "score", "alternatives"} <= set(value)
    assert all({"name", "devices"} <= set(site) for site in value["sites"])
    assert value["plan"]["schema"] == "cellplan.plan/1"


@pytest.mark.parametrize(
    ("words", "status", "what"),
    [
        (["--devices", "18", "--local", "east"], 2, "one of north, south, west"),
        (["--devices", "x"], 2, "whole number"),
        ([], 2, "--devices"),
        (["--devices", "18", "--method", "magic"], 2, "invalid choice"),
        (["--devices", "18", "--objective", "cost"], 2, "unrecognized arguments"),
        (["--devices", "18", "--comm", "nowhere.json"], 2, "nowhere.json"),
        (["--devices", "27"], 3, "27 devices wanted, 26 free"),
    ],
)
def test_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, what: str
) -> None:
    found, _, err = run(capsys, "--cluster", three_sites(tmp_path), *words)
    assert found == status
    assert what in err


def test_a_cluster_file_with_wrong_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_cluster(tmp_path, {"a": [a100(2)], "b": [a100(2)]}, [("a", "b", 0.0, 1e-3)])
    status, _, err = run(capsys, "--cluster", path, "--devices", "3")
    assert status == 2
    assert "bandwidth_bytes_per_s" in err


def test_devices_of_a_site_are_near_each_other(tmp_path: Path) -> None:
    """Islands of two in nodes of four, the first three of eight devices taken: four are a node, two an island."""
    group = "count: 2, device: a100-80gb, devices: 4, island: {link: nvswitch3, size: 2}"
    cluster = load_cluster(write_cluster(tmp_path, {"a": [group], "b": [f"{group}, free: 5"]}))

    def given(site: str, count: int) -> list[tuple[int, int]] | None:
        found = give_devices(cluster, [Share(site=site, devices=(("a100-80gb", count),))])
        return None if found is None else [(slot.node, slot.index) for slot in found]

    assert given("a", 4) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert given("b", 2) == [(0, 0), (0, 1)]
    # The lone device of the second node is what breaks nothing.
    assert given("b", 1) == [(1, 0)]
    assert given("b", 3) == [(0, 0), (0, 1), (0, 2)]
    assert given("b", 6) is None
    both = give_devices(cluster, [Share(site=site, devices=(("a100-80gb", 3),)) for site in "ab"])
    assert both is not None
    assert len(set(both)) == 6
