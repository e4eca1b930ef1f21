"""`network probe`: traces of other tools, the cluster file that knows the ways, and probes that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import api
from planner.cli.main import main
from planner.shared import network_probe
from planner.shared.network_probe import scattered_ports
from profiles.cluster_file import load_cluster
from profiles.errors import MachineError

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 8, device: h100, names: "gpu[1-8]"}]
    fabric:
      link: ib-ndr400
      topology: {kind: clos2, leaves: 2, spines: 2, cables: 4}
      routing:
        kind: ecmp
        addresses: {10.0.3.2: spine1}
        paths: [{from: gpu1, to: gpu5, ports: "1-65535", through: [leaf0, spine0, leaf1]}]
  - name: south
    nodes: [{count: 1, device: h100, names: [far]}]
links_between_sites: [{between: [north, south], bandwidth_bytes_per_s: 1.25e+9, latency_s: 5.0e-3}]
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CLUSTER, encoding="utf-8")
    return "c.yaml"


def traces(*spines: str, first: int = 50_000) -> str:
    return "".join(
        f"+ traceroute -U --sport={port} -p 4791 gpu5\n"
        "traceroute to gpu5 (10.0.9.2), 30 hops max, 60 byte packets\n"
        f" 1  leaf0.dc (10.0.1.2)  0.2 ms\n 2  {spine}  0.4 ms\n"
        " 3  leaf1.dc (10.0.5.2)  0.5 ms\n 4  gpu5 (10.0.9.2)  0.6 ms\n"
        for port, spine in enumerate(spines, start=first)
    )


def test_what_was_found_wins_over_what_was_guessed(cluster: str) -> None:
    Path("log.txt").write_text(traces("spine0 (10.0.2.2)", "10.0.3.2", "10.0.3.2"), encoding="utf-8")
    answer = api.network_probe(cluster, "gpu5", source="gpu1", read=("log.txt",), output=Path("out.yaml"))
    jsonschema.validate(answer, api.answer_schema("network probe"))
    assert (answer["equal"], answer["seen"], answer["asked"], answer["stopped"]) == (2, 2, 3, "all seen")
    assert answer["expected_ports"] == pytest.approx(3)
    assert {path["through"][1]: path["ports"] for path in answer["paths"]} == {
        "spine0": "50000",
        "spine1": "50001-50002",
    }
    known = load_cluster("out.yaml").sites[0].network.routing
    assert known is not None
    assert [path.ports for path in known.paths] == [((50_000, 50_000),), ((50_001, 50_002),)]
    paths = api.network_paths("out.yaml", "gpu1", "gpu5", ports="50001")["paths"]
    assert [(path["through"][1], path["known"]) for path in paths] == [("north/spine1", True)]
    again = api.network_probe("out.yaml", "gpu5", source="gpu2", read=("log.txt",), output=Path("both.yaml"))
    assert again["seen"] == 2
    both = load_cluster("both.yaml").sites[0].network.routing
    assert both is not None
    assert len(both.paths) == 4


def test_for_people(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("log.txt").write_text(traces(*["10.0.3.2"] * 8), encoding="utf-8")
    assert main(["network", "probe", cluster, "gpu5", "--source", "gpu1", "--read", "log.txt"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 equal ways seen" in said
    assert "measured: 8 ports read, nothing new" in said
    assert "by chance it takes 3.0 in the mean" in said
    assert "not seen: leaf0 spine0 leaf1" in said


@pytest.mark.parametrize(
    ("words", "text", "key", "part"),
    [
        (["gpu9", "--source", "gpu1"], "", "HOST", "one of the cluster's 9 nodes"),
        (["gpu5", "--source", "nosuch"], "", "HOST", "one of the cluster's 9 nodes"),
        (["gpu5", "--source", "gpu5"], "", "HOST", "two nodes"),
        (["far", "--source", "gpu1"], "", "HOST", "two nodes of one site"),
        (["gpu5", "--source", "gpu1", "--nics", "8,0"], "", "--nics", "one of its 8"),
        (["gpu5", "--source", "gpu1"], "10.0.7.7", "hops", "fabric.routing.addresses"),
        (["gpu6", "--source", "gpu5"], "", "hops", "on a shortest way"),
        (["gpu5", "--source", "gpu1", "--read", "log.txt"], "", "--read", "each once"),
        (["gpu5", "--source", "gpu1", "--read", "0=log.txt"], "", "--read", "PORT=FILE"),
        (["gpu5", "--source", "gpu1", "--read", "nosuch.txt"], "", None, ""),
        (["gpu5", "--source", "gpu1", "--confidence", "1"], "", "--confidence", "between 0 and 1"),
        (["gpu5", "--source", "gpu1", "--destination-port", "0"], "", "--destination-port", "1 to 65535"),
    ],
)
def test_probes_that_cannot_be(
    words: list[str], text: str, key: str | None, part: str, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("log.txt").write_text(traces(text or "spine0 (10.0.2.2)"), encoding="utf-8")
    assert main(["network", "probe", cluster, *words, "--read", "log.txt", "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert failure["key"] == key
    assert part in (failure["expected"] or "")


@pytest.mark.parametrize("option", ["--address", "--source-address"])
def test_addresses_that_are_none(option: str, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpu5", "--source", "gpu1", "--address", "127.0.0.1", option, "999.1.1.1"]
    assert main(["network", "probe", cluster, *words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["failure"]["key"] == option


def test_a_torus_has_no_ways_that_ports_choose(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    torus = CLUSTER.split("      routing:")[0].replace(
        "{kind: clos2, leaves: 2, spines: 2, cables: 4}", "{kind: torus, dimensions: [2, 4]}"
    )
    Path("c.yaml").write_text(torus, encoding="utf-8")
    Path("log.txt").write_text(traces("spine0 (10.0.2.2)"), encoding="utf-8")
    assert main(["network", "probe", cluster, "gpu5", "--source", "gpu1", "--read", "log.txt", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["failure"]["found"] == "a torus"


def test_a_machine_that_is_no_node_says_where_packets_come_from(
    cluster: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_probe, "own_host", lambda: "laptop")
    Path("log.txt").write_text(traces("spine0 (10.0.2.2)"), encoding="utf-8")
    assert main(["network", "probe", cluster, "gpu5", "--read", "log.txt", "--json"]) == 2
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert failure["key"] == "--source"
    assert "laptop" in failure["found"]
    monkeypatch.setattr(network_probe, "own_host", lambda: "gpu1")
    assert main(["network", "probe", cluster, "gpu5", "--read", "log.txt"]) == 0


def test_where_nobody_answers_the_machine_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from estimator.network.probing.hops import Trace
    from estimator.network.probing.sockets import Probing

    asked: list[int] = []

    def nobody(_: Probing, port: int) -> Trace | None:
        asked.append(port)
        return None if port % 2 else Trace(port=port, hops=(), arrived=False)

    monkeypatch.setattr(network_probe, "trace", nobody)
    with pytest.raises(MachineError, match="nobody on the way"):
        list(network_probe.sent_traces(Probing(address="192.0.2.1"), range(50_000, 50_100)))
    assert len(asked) == 19


def test_addresses_of_the_cluster_file_come_before_names(cluster: str) -> None:
    Path(cluster).write_text(CLUSTER.replace("10.0.3.2: spine1", "10.0.3.2: spine1, 192.0.2.5: gpu5"), encoding="utf-8")
    assert network_probe.destination_address(load_cluster(cluster), "gpu5") == "192.0.2.5"


@given(st.integers(1, 65535), st.integers(0, 3000), st.integers(1, 4000))
def test_ports_are_tried_each_once_and_neighbours_far_apart(first: int, more: int, most: int) -> None:
    last = min(65535, first + more)
    ports = scattered_ports(first, last, most)
    assert len(set(ports)) == len(ports) == min(most, last - first + 1)
    assert first <= min(ports) <= max(ports) <= last
    if last - first >= 16 and len(ports) >= 8:
        assert max(ports[:8]) - min(ports[:8]) >= (last - first) / 2
