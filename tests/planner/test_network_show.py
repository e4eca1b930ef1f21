"""`network show`: figures of a cluster's network, the cluster file back, and wrong words."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from planner import api
from planner.cli.main import main
from profiles.cluster_file import load_cluster

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 16, device: h100, names: "gpu[01-16]"}]
    fabric: {link: ib-ndr400, topology: {kind: clos2, leaves: 4, spines: 4, cables: 4}}
  - name: south
    nodes: [{count: 2, device: h100}]
    fabric: {link: ib-ndr400}
links_between_sites: [{between: [north, south], bandwidth_bytes_per_s: 1.25e+9, latency_s: 5.0e-3}]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    (tmp_path / "c.yaml").write_text(CLUSTER, encoding="utf-8")
    return str(tmp_path / "c.yaml")


def test_figures(cluster: str) -> None:
    shown = api.network_show(cluster, between=("gpu01", "gpu02"))
    jsonschema.validate(shown, api.answer_schema("network show"))
    north, south = shown["sites"]
    assert (north["topology"], north["nodes"], north["devices"], north["hosts"]) == ("clos2", 16, 128, "gpu[01-16]")
    assert [tier["oversubscription"] for tier in north["tiers"]] == [2.0, None]
    assert north["levels"] == [{"name": "leaf", "parts": 4, "oversubscription": 2.0}]
    assert north["ways"] == {"between": ["gpu01", "gpu02"], "equal": 1, "cables": 2}
    assert north["halves_bytes_per_s"] == north["nic_bytes_per_s"] / 4
    assert (south["topology"], south["levels"]) == ("one switch", [])
    assert shown["links_between_sites"][0]["between"] == ["north", "south"]


def test_for_people(cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "show", cluster, "-o", str(tmp_path / "again.yaml")]) == 0
    said = capsys.readouterr().out
    assert "from gpu01 to gpu16: 64 equal ways of 4 cables" in said
    assert "4 of leaf (oversubscription 2)" in said
    assert "50% of what its NICs send" in said
    assert load_cluster(str(tmp_path / "again.yaml")).sites == load_cluster(cluster).sites


@pytest.mark.parametrize("between", ["gpu01", "gpu01,gpu02,gpu03", "gpu01,nosuch", "0,16", "gpu01,\u0663"])
def test_wrong_nodes(cluster: str, between: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "show", cluster, "--between", between, "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert "two" in failure["expected"]
