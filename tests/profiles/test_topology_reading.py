"""Trees of switches as cluster managers write them, read and written."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner import api
from planner.cli.main import main
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.topology_reading import read_topology
from profiles.topology_tree import HostTree
from profiles.topology_writing import kueue_topology, topology_conf

LINGJUN = Path(__file__).parents[3] / "shared/data/traces/lingjun_topo.csv"

CONF = """# two pods
SwitchName=s1 Nodes=gpu[1-2] LinkSpeed=100
switchname=s2 nodes=gpu3,gpu[4-5]   # a leaf of three
SwitchName=s3 Nodes=gpu6
SwitchName=pod1 Switches=s[1-2]
SwitchName=pod2 \\
  Switches=s3
SwitchName=core Switches=pod[1-2]
"""
SHOWN = """SwitchName=s1 Level=0 LinkSpeed=1 Nodes=gpu[1-2]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=gpu[3-5] Switches=(null)
SwitchName=s3 Level=0 LinkSpeed=1 Nodes=gpu6
SwitchName=pod1 Level=1 LinkSpeed=1 Nodes=gpu[1-5] Switches=s[1-2]
SwitchName=pod2 Level=1 LinkSpeed=1 Nodes=gpu6 Switches=s3
SwitchName=core Level=2 LinkSpeed=1 Nodes=gpu[1-6] Switches=pod[1-2]
"""
YAML = """- topology: flat
  flat: true
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - {switch: core, children: "pod[1-2]"}
      - {switch: pod1, children: "s[1-2]"}
      - {switch: pod2, children: s3}
      - {switch: s1, nodes: "gpu[1-2]"}
      - {switch: s2, nodes: "gpu[3-5]"}
      - {switch: s3, nodes: gpu6}
"""
TABLE = """host,pod,leaf
gpu1,pod1,s1
gpu3,pod1,s2
gpu6,pod2,s3
gpu2,pod1,s1
gpu4,pod1,s2
gpu5,pod1,s2
"""
LEAVES = {"gpu1": "s1", "gpu2": "s1", "gpu3": "s2", "gpu4": "s2", "gpu5": "s2", "gpu6": "s3"}
PODS = {"s1": "pod1", "s2": "pod1", "s3": "pod2"}


def kubectl(**labels: str) -> dict[str, Any]:
    nodes = [
        {"kind": "Node", "metadata": {"name": host, "labels": {labels["rack"]: leaf, labels["block"]: PODS[leaf]}}}
        for host, leaf in LEAVES.items()
    ]
    return {"kind": "List", "items": [*nodes, {"kind": "Node", "metadata": {"name": "control", "labels": {"a": "b"}}}]}


def read(text: str, tmp_path: Path, name: str = "tree") -> HostTree:
    path = tmp_path / name
    path.write_text(text)
    return read_topology(path)


def by_name(tree: HostTree) -> dict[str, tuple[str, ...]]:
    return {host: place[:2] for host, place in tree.places.items()}


WANTED = {host: (leaf, PODS[leaf]) for host, leaf in LEAVES.items()}


HOSTS_LAST = "\n".join(",".join([*line.split(",")[1:], line.split(",")[0]]) for line in TABLE.splitlines())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (CONF, "topology.conf"),
        (SHOWN, "shown.txt"),
        (YAML, "topology.yaml"),
        (TABLE, "hosts.csv"),
        (HOSTS_LAST, "hosts.csv"),
    ],
)
def test_each_form_is_the_same_tree(tmp_path: Path, text: str, name: str) -> None:
    tree = read(text, tmp_path, name)
    assert by_name(tree) == WANTED
    assert list(tree.places) == sorted(LEAVES)
    network = tree.network(tuple(tree.places))
    assert [[part.name for part in level.parts] for level in network.levels] == [["s1", "s2", "s3"], ["pod1", "pod2"]]
    assert [level.name for level in network.levels] == ["leaf", "pod"]
    assert any("uplinks" in note for note in tree.notes)


def test_labels_of_kubernetes(tmp_path: Path) -> None:
    known = kubectl(rack="cloud.provider.com/topology-rack", block="cloud.provider.com/topology-block")
    tree = read(json.dumps(known), tmp_path)
    assert (by_name(tree), tree.levels) == (WANTED, ("rack", "block"))
    assert "nodes without a label of a level, which are left out: 1" in tree.notes
    own = kubectl(rack="example.com/rack", block="example.com/hall")
    with pytest.raises(InputError, match="found 7 nodes without a label of a level, expected a Topology of Kueue"):
        read(json.dumps(own), tmp_path)
    levels = [{"nodeLabel": f"example.com/{name}"} for name in ("hall", "rack")]
    kueue = {"kind": "Topology", "spec": {"levels": [*levels, {"nodeLabel": "kubernetes.io/hostname"}]}}
    tree = read(json.dumps({**own, "items": [*own["items"], kueue]}), tmp_path)
    assert (by_name(tree), tree.levels) == (WANTED, ("rack", "hall"))
    known["items"][2]["metadata"]["labels"]["cloud.provider.com/topology-block"] = ["b"]
    with pytest.raises(InputError, match=r"node gpu3: label cloud.*block: found \['b'\], expected text"):
        read(json.dumps(known), tmp_path)
    del known["items"][2]["metadata"]["labels"]["cloud.provider.com/topology-block"]
    with pytest.raises(InputError, match="node gpu3: found no label cloud"):
        read(json.dumps(known), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpu6", "gpu[5-6]", r"line 4: SwitchName s3: found node gpu5, which is under s2 already"),
        ("Nodes=gpu6", "Switches=core", r"line 8: SwitchName core: found a loop: core under s3 under pod2 under core"),
        ("s[1-2]\n", "s1\n", r"line 8: SwitchName core: found no switch above it, as there is none above s2"),
        ("pod[1-2]\n", "pod[1-3]\n", r"line 8: SwitchName core: found a switch pod3 below it, expected switches that"),
        ("  Switches=s3", "  Switches=s[2-3]", r"line 7: SwitchName pod2: found s2, which is under pod1 already"),
        ("SwitchName=s3", "SwitchName=s1", r"line 4: SwitchName s1: found its description a second time"),
        ("Nodes=gpu6", "Nodes=gpu6 Switches=s2", r"line 4: SwitchName s3: found nodes and switches below one switch"),
        ("Nodes=gpu6", "Nodes=", r"line 4: SwitchName s3: found nothing below it"),
        ("Nodes=gpu6", "Blocks=gpu6", r"line 4: Blocks: found 'Blocks=gpu6', expected SwitchName, Nodes"),
        ("gpu[1-2]", "gpu[1-", r"line 2: Nodes: found 'gpu\[1-', expected node names"),
        ("SwitchName=core Switches=pod[1-2]\n", "", r"line 7: SwitchName pod2: found no switch above it"),
    ],
)
def test_wrong_switches_name_the_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CONF
    with pytest.raises(InputError, match=message) as error:
        read(CONF.replace(old, new, 1), tmp_path)
    assert str(error.value).startswith(str(tmp_path / "tree"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", TABLE + "gpu1,pod2,s3\n", r"line 8: host: found gpu1 a second time, expected each host in one row"),
        ("t.csv", TABLE + "gpu9,pod2\n", r"line 8: leaf: found 2 values, expected one for each of host, pod, leaf"),
        ("t.csv", TABLE + "gpu9,,s3\n", r"line 8: pod: found 2 values"),
        ("t.csv", "host\ngpu1\n", "expected Slurm's topology.conf"),
        ("t.csv", "host,pod,leaf\n", "found no host"),
        ("t.csv", "host,a,b,c\nx,1,1,1\ny,1,2,1\n", "found a with 1 parts, b with 2 parts, c with 1 parts"),
        ("t.yaml", YAML.replace("pod2, children: s3", "pod2, children: s2"), "found s2, which is under pod1 already"),
        (
            "t.yaml",
            YAML.replace("{switch: s3, nodes: gpu6}", "{switch: s3, node: gpu6}"),
            r"switches\[5\]: found 'node'",
        ),
        ("t.yaml", YAML.replace("tree:", "block:"), "found 0 topologies with a tree"),
        ("t.yaml", "switches: []", "found dict, expected a list"),
        ("t.json", "{}", "JSON of something else"),
        ("t.txt", "", "found no switch"),
        ("t.conf", "".join(f"SwitchName=s{i} Nodes=n[1-49999]\n" for i in range(30)), "found more than 50,000 nodes"),
        (
            "t.conf",
            "SwitchName=s0 Nodes=n0\n" + "".join(f"SwitchName=s{i} Switches=s{i - 1}\n" for i in range(1, 3000)),
            "line 1: SwitchName s0: found 17 levels of switches above a node, expected at most 16",
        ),
        ("t.csv", f"host,{','.join(f'l{i}' for i in range(17))}\nn0{',x' * 17}\n", "found 17 levels"),
        ("t.csv", "host,leaf\nn1,s1\nn2," + "x" * 200_000 + "\n", "line 3: found field larger than field limit"),
        ("t.csv", "host,leaf\n" + "n,s\n" * 50_001, "found 50,001 nodes in a list, expected at most 50,000"),
        ("t.csv", "host,leaf\nn1,s\x1b1\n", r"switch: found 's\\x1b1', expected a name without control characters"),
        ("t.csv", "host,leaf\na;b,s1\n", "node: found 'a;b', expected names of nodes"),
        ("t.conf", CONF + "SwitchName=s9 Nodes=gpu9 \\\n", "last line: found a backslash at its end"),
        ("t.conf", "SwitchName=s1 Nodes=gpu[1-[2-3]]\n", "line 1: Nodes: found 'gpu"),
        ("t.yaml", YAML + "#" * 2**21, "bytes in a YAML file, expected at most 2,097,152"),
        ("t.json", '{"items": 5}', "items: found int, expected a list of nodes"),
        ("t.json", '{"items": null}', "items: found NoneType"),
        ("t.json", '{"items": [{"kind": "Topology", "spec": {"levels": 5}}]}', "spec.levels: found 5"),
        ("t.json", '{"items": [{"kind": "Topology", "spec": {"levels": [5]}}]}', "each level's own nodeLabel"),
    ],
)
def test_other_wrong_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text, tmp_path, name)


def test_a_leaf_counts_inside_its_pod(tmp_path: Path) -> None:
    tree = read("host,pod,leaf\na,p1,l\nb,p2,l\nc,p1,m\nd,p2,l\n", tmp_path, "t.csv")
    assert [place[0] for place in tree.places.values()] == ["p1/l", "m", "p2/l", "p2/l"]
    assert list(tree.places) == ["a", "c", "b", "d"]


def test_nodes_nearer_to_the_top(tmp_path: Path) -> None:
    conf = "SwitchName=leaf Nodes=a[1-2]\nSwitchName=pod Switches=leaf\nSwitchName=near Nodes=b\n"
    network = read(conf + "SwitchName=top Switches=pod,near\n", tmp_path).network(("a1", "b", "a2"))
    assert [[part.name for part in level.parts] for level in network.levels] == [["leaf", "near"], ["pod", "near"]]
    assert [level.part_of for level in network.levels] == [(0, 1, 0), (0, 1)]


@pytest.mark.skipif(not LINGJUN.is_file(), reason="the published traces are not beside the project")
def test_lingjun() -> None:
    tree = read_topology(LINGJUN)
    network = tree.network(tuple(tree.places))
    assert len(network.hosts) == 847
    leaf, pod = network.levels
    sizes = [network.part_of_node[1].count(part) for part in range(len(pod.parts))]
    assert (len(leaf.parts), dict(zip([part.name for part in pod.parts], sizes, strict=True))) == (
        119,
        {"P10": 362, "P12": 306, "P8": 179},
    )


CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: n
    nodes: [{count: 5, device: h100%s}]
    fabric: {link: ib-ndr400%s}
"""


def beside(tmp_path: Path, text: str, tree: str = CONF) -> Cluster:
    (tmp_path / "topology.conf").write_text(tree)
    (tmp_path / "c.yaml").write_text(text)
    return load_cluster(f"{tmp_path / 'c.yaml'}@{tmp_path / 'topology.conf'}")


def test_a_tree_beside_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(CONF)
    cluster = load_cluster(f"h100:6x8@{tmp_path / 't'}")
    assert cluster.sites[0].network == read_topology(tmp_path / "t").network(tuple(LEAVES))
    assert cluster.text == f"h100:6x8@{tmp_path / 't'}"
    with pytest.raises(InputError, match="found 6 nodes, expected the 4 of h100:4x8, or names of its nodes"):
        load_cluster(f"h100:4x8@{tmp_path / 't'}")
    named = beside(tmp_path, CLUSTER % (', names: "gpu[2-6]"', "")).sites[0].network
    assert [part.name for part in named.levels[0].parts] == ["s1", "s2", "s3"]
    assert named.hosts == ("gpu2", "gpu3", "gpu4", "gpu5", "gpu6")
    rules = ", levels: [{name: pod, oversubscription: 4}]"
    thin = beside(tmp_path, CLUSTER % (', names: "gpu[2-6]"', rules)).sites[0].network
    assert thin.hosts == named.hosts
    assert [part.oversubscription for level in thin.levels for part in level.parts] == [1, 1, 1, 4, 4]
    assert replace(thin, levels=named.levels) == named


@pytest.mark.parametrize(
    ("names", "fabric", "message"),
    [
        (', names: "gpu[5-9]"', "", "topology.conf: found no node gpu7, and 2 more, expected all nodes that"),
        ("", ", pods: 5", "topology.conf: found a second tree, expected none in"),
        (
            "",
            ", levels: [{name: pod, parts: [{nodes: 5}]}]",
            "levels: found parts, beside those of .*, expected one tree",
        ),
        (
            ', names: "gpu[1-5]"',
            ", levels: [{name: rack}]",
            "levels: found 'rack', expected some of leaf, pod, the levels",
        ),
        (
            ', names: "gpu[1-5]"',
            ", levels: [{name: core}]",
            r"of leaf, pod, .* \(its core is one switch above everything",
        ),
    ],
)
def test_trees_that_do_not_fit_the_cluster(tmp_path: Path, names: str, fabric: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        beside(tmp_path, CLUSTER % (names, fabric))


def test_levels_without_parts_need_a_tree(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER % ("", ", levels: [{name: pod}]"))
    with pytest.raises(InputError, match=r"levels\[0\]\.parts: found nothing, expected parts, or --topology FILE"):
        load_cluster(str(tmp_path / "c.yaml"))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    cluster = beside(tmp_path, CLUSTER % (', names: "gpu[2-6]"', ""))
    site = cluster.sites[0]
    again = read(topology_conf(site), tmp_path).network(site.network.hosts)
    assert again == site.network
    text = kueue_topology(site)
    labels = [line.split()[-1] for line in text.splitlines() if "nodeLabel" in line]
    assert labels == ["cellplan.io/topology-pod", "cellplan.io/topology-leaf", "kubernetes.io/hostname"]
    assert "# kubectl label node gpu2 cellplan.io/topology-leaf=s1 cellplan.io/topology-pod=pod1\n" in text
    with pytest.raises(InputError, match="found no tree above the nodes, expected levels and names"):
        topology_conf(load_cluster("h100:4x8").sites[0])


def test_random_trees_survive_each_form(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(30):
        hosts = [f"n{number}" for number in rng.sample(range(100), rng.randint(2, 12))]
        leaf = {host: f"l{rng.randrange(5)}" for host in hosts}
        pod = {name: f"p{rng.randrange(3)}" for name in sorted(set(leaf.values()))}
        if len(set(pod.values())) == 1:
            continue
        rows = [f"{host},{leaf[host]},{pod[leaf[host]]}" for host in hosts]
        names = sorted(set(leaf.values())), sorted(set(pod.values()))
        tree = read("host,leaf,pod\n" + "\n".join(rows) + "\n", tmp_path, "t.csv")
        if len(names[0]) == len(names[1]):
            continue
        nodes = {name: ",".join(host for host in hosts if leaf[host] == name) for name in names[0]}
        below = {name: ",".join(one for one in names[0] if pod[one] == name) for name in names[1]}
        lines = [f"SwitchName={name} Switches={below[name]}" for name in names[1]]
        lines += [f"SwitchName={name} Nodes={nodes[name]}" for name in names[0]]
        rng.shuffle(lines)
        text = "\n".join([*lines, f"SwitchName=top Switches={','.join(names[1])}"])
        assert by_name(read(text, tmp_path)) == by_name(tree)


@pytest.mark.parametrize("to", ["topology.conf", "kueue"])
def test_a_command_writes_the_tree_for_a_cluster_manager(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tree.csv").write_text("host,pod,leaf\nn1,p0,l0\nn2,p0,l1\nn3,p1,l2\n", encoding="utf-8")
    words = ["hardware", "topology", "--cluster", "h100:3x8", "--topology", str(tmp_path / "tree.csv"), "--to", to]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, api.answer_schema("hardware topology"))
    assert answer["levels"] == [{"name": "leaf", "parts": 3}, {"name": "pod", "parts": 2}]
    assert main(words) == 0
    assert capsys.readouterr().out == answer["text"]
    written = tmp_path / "written"
    assert main([*words, "-o", str(written)]) == 0
    assert written.read_text(encoding="utf-8") == answer["text"]


def test_a_tree_of_as_many_leaves_as_nodes_is_read_again(tmp_path: Path) -> None:
    rows = "".join(f"n{host},l{host},p{host % 7}\n" for host in range(3000))
    tree = read("host,leaf,pod\n" + rows, tmp_path, "t.csv")
    network = tree.network(tuple(tree.places))
    assert [len(level.parts) for level in network.levels] == [3000, 7]
    cluster = load_cluster("h100:3000x8")
    text = topology_conf(replace(cluster.sites[0], network=network))
    again = read(text, tmp_path, "t.conf")
    assert again.network(tuple(tree.places)).levels[1].part_of == network.levels[1].part_of


def test_what_cannot_be_written_for_a_cluster_manager_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([], "found no tree above the nodes"),
        (["--site", "north"], "--site: found 'north', expected one of site"),
        (["--labels", "a"], "--labels: found --to topology.conf, expected --to kueue"),
        (["--labels", "a,a", "--to", "kueue"], "--labels: found 'a,a', expected keys of labels"),
        (["--labels", "a b", "--to", "kueue"], "--labels: found 'a b', expected keys of labels"),
        (["--labels", "x" * 64, "--to", "kueue"], "expected keys of labels"),
    ):
        assert main(["hardware", "topology", "--cluster", "h100:3x8", *words]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
