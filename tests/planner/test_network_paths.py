"""`network paths`: every port on one way, what is known before what is guessed, other rules, and wrong words."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner import api
from planner.cli.main import main
from profiles.cluster_file import load_cluster

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{{count: 8, device: h100, names: "gpu[1-8]"}}]
    fabric:
      link: ib-ndr400
      topology: {{kind: clos2, leaves: 2, spines: 2, cables: 4}}
      routing: {routing}
"""
KNOWN = '{kind: ecmp, paths: [{from: gpu1, to: gpu5, ports: "50000-50010,50020", through: [leaf0, spine1, leaf1]}]}'


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(routing: str = KNOWN) -> str:
        (tmp_path / "c.yaml").write_text(CLUSTER.format(routing=routing), encoding="utf-8")
        return str(tmp_path / "c.yaml")

    return written


def ports_of(path: dict[str, Any]) -> list[int]:
    ranges = (piece.partition("-") for piece in path["ports"].split(","))
    return [port for first, _, last in ranges for port in range(int(first), int(last or first) + 1)]


def test_every_port_has_one_way(write: Any) -> None:
    answer = api.network_paths(write(), "gpu1", "gpu5")
    jsonschema.validate(answer, api.answer_schema("network paths"))
    counts = Counter(port for path in answer["paths"] for port in ports_of(path))
    assert counts == Counter(range(49152, 65536))
    assert all(len(ports_of(path)) == path["port_count"] for path in answer["paths"])
    assert answer["equal"] == 4 * 2 * 4
    known = [path for path in answer["paths"] if path["known"]]
    assert sorted(port for path in known for port in ports_of(path)) == [*range(50_000, 50_011), 50_020]
    assert {tuple(path["through"]) for path in known} == {("leaf0", "spine1", "leaf1")}
    assert len({tuple(path["links"]) for path in answer["paths"]}) == 32


def test_other_rules(write: Any) -> None:
    cluster = write("{seed: 5}")
    (straight,) = api.network_paths(cluster, "gpu1", "gpu5", nics=(2, 3))["paths"]
    assert straight["port_count"] == 16384
    spread = api.network_paths(cluster, "0", "7", routing="spray", ports="50000")
    assert len(spread["paths"]) == spread["equal"] == 32
    assert sum(path["share"] for path in spread["paths"]) == pytest.approx(1)
    inside = api.network_paths(cluster, "gpu1", "gpu2")["paths"]
    assert [path["through"] for path in inside] == [["leaf0"]]
    first, second = (
        api.network_paths(cluster, "gpu1", "gpu5", seed=seed, routing="ecmp", hash="crc32", ports="50000-50100")[
            "paths"
        ]
        for seed in (5, 6)
    )
    assert first != second


def test_for_people(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "paths", write(), "gpu1", "gpu5"]) == 0
    said = capsys.readouterr().out
    assert "From NIC 0 of gpu1 to NIC 0 of gpu5: 32 equal ways; ecmp by jenkins, seed 0" in said
    assert "known" in said
    assert "no vendor publishes its own" in said


@pytest.mark.parametrize(
    ("words", "key", "expected"),
    [
        (["gpu1", "gpu9"], "HOST", "one of the cluster's 8 nodes"),
        (["gpu1", "gpu1"], "HOST", "two nodes"),
        (["gpu1", "gpu2", "--nics", "0,8"], "--nics", "one of its 8"),
        (["gpu1", "gpu2", "--nics", "0"], "--nics", "two numbers"),
        (["gpu1", "gpu2", "--ports", "9-5"], "--ports", "FIRST-LAST"),
        (["gpu1", "gpu2", "--ports", "0-5"], "--ports", "FIRST-LAST"),
        (["gpu1", "gpu2", "--routing", "dimension-order"], "--routing", "it has switches"),
    ],
)
def test_wrong_words(words: list[str], key: str, expected: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "paths", write(), *words, "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert failure["key"] == key
    assert expected in failure["expected"]


@pytest.mark.parametrize(
    ("routing", "key", "expected"),
    [
        ("{kind: nosuch}", "fabric.routing.kind", "ecmp"),
        ("{kind: dimension-order}", "fabric.routing.kind", "it has switches"),
        ("{hash: md5}", "fabric.routing.hash", "jenkins"),
        ("{seed: -1}", "fabric.routing.seed", "0"),
        ("{addresses: {10.0.0.1: leaf7}}", "fabric.routing.addresses.10.0.0.1", "a node or a switch"),
        ("{paths: [{from: gpu0, to: gpu2, ports: '1', through: [leaf0]}]}", "fabric.routing.paths[0].from", "8 nodes"),
        ("{paths: [{from: gpu1, to: gpu1, ports: '1', through: [leaf0]}]}", "fabric.routing.paths[0].to", "another"),
        ("{paths: [{from: gpu1, to: gpu2, ports: '1', through: [leaf9]}]}", "paths[0].through", "4 switches"),
        ("{paths: [{from: gpu1, to: gpu2, ports: '9-1', through: [leaf0]}]}", "paths[0].ports", "UDP ports"),
        ("{paths: [{from: gpu1, to: gpu2, ports: [0], through: [leaf0]}]}", "paths[0].ports", "UDP ports"),
        (
            "{paths: [{from: gpu1, to: gpu5, ports: 5-90, through: [leaf0, spine0, leaf1]},"
            " {from: gpu1, to: gpu5, ports: '6', through: [leaf0, spine0, leaf1]},"
            " {from: gpu1, to: gpu5, ports: '9,80', through: [leaf0, spine1, leaf1]}]}",
            "paths[2].ports",
            "one way of a port",
        ),
        ("{addresses: {10.0.0.300: leaf0}}", "fabric.routing.addresses", "IPv4"),
        ("{paths: [{from: gpu1, to: gpu2, nics: [0, 8], ports: '1', through: [leaf0]}]}", "paths[0].nics", "one of"),
    ],
)
def test_wrong_routing(routing: str, key: str, expected: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "show", write(routing), "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert key in failure["key"]
    assert expected in failure["expected"]
    assert "line" in failure["where"]


def test_a_known_way_without_a_cable_is_refused(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = write('{paths: [{from: gpu1, to: gpu5, ports: "50000", through: [leaf0, leaf1]}]}')
    assert main(["network", "paths", cluster, "gpu1", "gpu5", "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert "no cable from leaf0 to leaf1" in failure["found"]


def test_nodes_that_nothing_joins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rails = CLUSTER.replace("{{kind: clos2, leaves: 2, spines: 2, cables: 4}}", "{{kind: rail, nodes_per_pod: 8}}")
    (tmp_path / "c.yaml").write_text(rails.format(routing="{}"), encoding="utf-8")
    assert main(["network", "paths", str(tmp_path / "c.yaml"), "gpu1", "gpu2", "--nics", "0,1", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, api.answer_schema("network paths"))
    assert answer["paths"] == []
    assert "nothing joins leaf0 and leaf1" in answer["failure"]["message"]


def test_pcie_and_routing_are_written_back(write: Any, tmp_path: Path) -> None:
    cluster = write(KNOWN.replace("kind: ecmp", "kind: ecmp, hash: crc16, seed: 9, addresses: {10.0.0.1: leaf0}"))
    text = Path(cluster).read_text(encoding="utf-8")
    pcie = (
        "{count: 8, device: h100, pcie: [{devices: 2, nics: [0, 1]}, {devices: 2, nics: 2, count: 3, link: pcie4-x16}]"
    )
    Path(cluster).write_text(text.replace("{count: 8, device: h100", pcie), encoding="utf-8")
    again = tmp_path / "again.yaml"
    api.network_show(cluster, output=again)
    assert load_cluster(str(again)).sites == load_cluster(cluster).sites
    assert [switch.nics for switch in load_cluster(cluster).sites[0].nodes[0].pcie] == [(0, 1), (2, 3), (4, 5), (6, 7)]


@pytest.mark.parametrize(
    ("pcie", "key", "expected"),
    [
        ("[{devices: 4, nics: 8}]", "pcie.devices", "each of the node's 8"),
        ("[{devices: 9, nics: 8}]", "pcie.devices", "at most 8"),
        ("[{devices: [0, 1, 2, 3, 4, 5, 6, 7, 7], nics: 8}]", "pcie.devices", "each under one"),
        ("[{devices: 8, nics: [0, 1, 2, 3, 4, 5, 6, 8]}]", "pcie.nics", "0 to 7"),
        ("[{devices: [0], nics: 1, count: 8}]", "pcie.count", "1 beside lists"),
        ("[{devices: 8, nics: 8, link: nosuch}]", "pcie[0].link", ""),
        ("[{gpus: 8}]", "pcie[0]", "devices"),
    ],
)
def test_wrong_pcie(pcie: str, key: str, expected: str, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = write()
    text = Path(cluster).read_text(encoding="utf-8")
    Path(cluster).write_text(text.replace("device: h100", f"device: h100, pcie: {pcie}"), encoding="utf-8")
    assert main(["network", "show", cluster, "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert f"sites[0].nodes[0].{key}" in failure["key"]
    assert expected in failure["expected"]
