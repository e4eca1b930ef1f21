"""The tree above a site's nodes: as records, in the cluster file, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.cluster import Cluster
from profiles.cluster_description import describe_cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.host_lists import expand_hosts, fold_hosts
from profiles.network import PLAIN, FabricLevel, FabricPart, Network, equal_pods
from profiles.yaml_files import parse_yaml, yaml_text

LEVELS = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes:
      - {count: 6, device: h100, names: "gpu[01-06]"}
      - {count: 2, device: h100, nics: {count: 4, link: ib-ndr400}, names: [spare-a, spare-b]}
    fabric:
      link: ib-ndr400
      levels:
        - name: leaf
          hop_latency_s: 5.0e-7
          parts:
            - {name: left, nodes: "gpu[01-02],spare-a"}
            - {name: middle, nodes: "gpu[04-06]", uplink_bytes_per_s: 6.0e+11}
            - {name: right, nodes: 2}
        - name: pod
          oversubscription: 4
          parts:
            - {name: a, parts: [left, right]}
            - {name: b, parts: 1, oversubscription: 1.5}
"""


def load_text(text: str, tmp_path: Path) -> Cluster:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return load_cluster(str(path))


def test_levels_of_unequal_parts(tmp_path: Path) -> None:
    network = load_text(LEVELS, tmp_path).sites[0].network
    leaf, pod = network.levels
    assert network.hosts == ("gpu01", "gpu02", "gpu03", "gpu04", "gpu05", "gpu06", "spare-a", "spare-b")
    assert [part.name for part in leaf.parts] == ["left", "middle", "right"]
    # gpu03 and spare-b are the next two that no part names.
    assert leaf.part_of == (0, 0, 2, 1, 1, 1, 0, 2)
    # Three nodes of 8 NICs at 50 GB/s over 600 GB/s.
    assert [part.oversubscription for part in leaf.parts] == [1.0, pytest.approx(2.0), 1.0]
    assert (leaf.hop_latency_s, pod.hop_latency_s) == (5e-7, 0.0)
    assert pod.part_of == (0, 1, 0)
    assert [(part.name, part.oversubscription) for part in pod.parts] == [("a", 4.0), ("b", 1.5)]
    assert network.path(2) == (2, 0)
    assert network.path(5) == (1, 1)
    assert network.period is None


def test_described_and_read_again_it_is_the_same(tmp_path: Path) -> None:
    cluster = load_text(LEVELS, tmp_path)
    again = load_text(yaml_text(describe_cluster(cluster)), tmp_path)
    assert again.sites == cluster.sites


@pytest.mark.parametrize(("pods", "over"), [(1, 1.0), (1, 3.0), (2, 1.0), (3, 4.0), (4, 2.0)])
def test_the_short_form_is_the_same_record_as_levels(tmp_path: Path, pods: int, over: float) -> None:
    short = f"{{link: ib-ndr400, oversubscription: {over}, pods: {pods}}}"
    size, name = (-(-10 // pods), "pod") if pods > 1 else (1, "leaf")
    sizes = [min(size, 10 - first) for first in range(0, 10, size)]
    parts = ", ".join(f"{{nodes: {many}}}" for many in sizes)
    levels = f"{{link: ib-ndr400, levels: [{{name: {name}, oversubscription: {over}, parts: [{parts}]}}]}}"
    text = "schema: cellplan.cluster/1\nsites: [{name: n, nodes: [{count: 10, device: h100}], fabric: %s}]"
    by_pods = load_text(text % short, tmp_path).sites[0].network
    assert by_pods == equal_pods(10, pods=pods, oversubscription=over)
    if (pods, over) == (1, 1.0):
        assert by_pods == PLAIN
    else:
        assert by_pods == load_text(text % levels, tmp_path).sites[0].network
        counted = levels.replace(parts, "{count: 10, nodes: 1}")
        assert (load_text(text % counted, tmp_path).sites[0].network == by_pods) == (pods == 1)


def test_no_pods_are_not_one(tmp_path: Path) -> None:
    text = "schema: cellplan.cluster/1\nsites: [{name: n, nodes: [{count: 4, device: h100}], fabric: {%s}}]"
    for key in ("pods", "oversubscription"):
        with pytest.raises(InputError, match=rf"fabric\.{key}: found 0"):
            load_text(text % f"link: ib-ndr400, {key}: 0", tmp_path)


def test_levels_beyond_any_fabric_are_refused(tmp_path: Path) -> None:
    levels = ", ".join(f"{{name: l{depth}, parts: [{{nodes: 4}}]}}" for depth in range(17))
    text = "schema: cellplan.cluster/1\nsites: [{name: n, nodes: [{count: 4, device: h100}], fabric: {%s}}]"
    with pytest.raises(InputError, match=r"fabric\.levels: found 17 levels of switches .* at most 16"):
        load_text(text % f"link: ib-ndr400, levels: [{levels}]", tmp_path)


@given(st.integers(1, 60).flatmap(lambda nodes: st.tuples(st.just(nodes), st.sets(st.integers(0, nodes - 1)))))
def test_parts_take_the_next_nodes_that_none_has_listed(drawn: tuple[int, set[int]]) -> None:
    nodes, listed = drawn
    parts = [f'{{nodes: "{",".join(str(node) for node in sorted(listed))}"}}'] if listed else []
    parts += [f"{{count: {nodes - len(listed)}, nodes: 1}}"] if len(listed) < nodes else []
    text = (
        f"schema: cellplan.cluster/1\nsites: [{{name: n, nodes: [{{count: {nodes}, device: h100}}],"
        f" fabric: {{link: ib-ndr400, levels: [{{name: leaf, oversubscription: 2, parts: [{', '.join(parts)}]}}]}}}}]"
    )
    with TemporaryDirectory() as folder:
        (leaf,) = load_text(text, Path(folder)).sites[0].network.levels
    others = iter(range(bool(listed), nodes + 1))
    assert leaf.part_of == tuple(0 if node in listed else next(others) for node in range(nodes))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpu[04-06]", "gpu[02,04-06]", r"levels\[0\]\.parts\[1\]\.nodes: found gpu02 a second time"),
        ("gpu[04-06]", "gpu[04-07]", r"parts\[1\]\.nodes: found 'gpu07', expected some of the 8 nodes"),
        ("nodes: 2}", "nodes: 1}", r"levels\[0\]\.parts: found no part with nodes spare-b, expected each"),
        ("nodes: 2}", "nodes: 3}", r"parts\[2\]\.nodes: found 3, expected from 1 to the 2 nodes that no part has"),
        ("nodes: 2}", "parts: 2}", r"parts\[2\]\.nodes: found parts here, expected how many nodes, or which"),
        ("6.0e+11", "0", r"uplink_bytes_per_s: found 0, expected greater than or equal to 1"),
        ("6.0e+11", "6.0e+11, oversubscription: 2", "found oversubscription and uplink_bytes_per_s of one uplink"),
        ("[left, right]", "[left, middle, right]", r"parts\[1\]\.parts: found 1, expected from 1 to the 0 parts of"),
        ("parts: [left, right]", "parts: [left, left]", "found left a second time, expected each of the parts of"),
        ("name: pod", "name: leaf", r"fabric\.levels: found 'leaf' a second time"),
        ("name: middle", "name: left", "fabric.levels: leaf: found 'left' a second time"),
        ("oversubscription: 1.5", "count: 2", r"parts\[1\]\.parts: found 1, expected from 1 to the 0 parts of leaf"),
        ("[spare-a, spare-b]", "[spare-a]", r"nodes\[1\]\.names: found 1 names, expected 2"),
        ("[spare-a, spare-b]", "[spare-a, gpu01]", r"nodes\.names: found 'gpu01' a second time"),
        (", names: [spare-a, spare-b]", "", r"nodes\[1\]\.names: found names of some groups of nodes"),
        ("link: ib-ndr400\n", "link: ib-ndr400\n      pods: 2\n", r"fabric\.pods: found 2, expected nothing beside"),
        ("hop_latency_s: 5", "hop_latency: 5", "found an unknown key 'hop_latency', expected 'hop_latency_s'"),
        ("name: pod", r'name: "p\nSwitchName=x"', r"levels\[1\]\.name: found .*expected a name without control"),
        ("name: middle", r'name: "m\e[31m"', r"parts\[1\]\.name: found .*expected a name without control"),
        ("name: middle", "name: " + "m" * 254, r"parts\[1\]\.name: found 'mmm"),
        ("[spare-a, spare-b]", '[spare-a, ""]', r"nodes\[1\]\.names: found '', expected names of nodes"),
        ("[spare-a, spare-b]", '[spare-a, "$(x)"]', r"nodes\[1\]\.names: found '\$\(x\)'"),
    ],
)
def test_wrong_trees_name_file_line_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in LEVELS
    with pytest.raises(InputError, match=message) as error:
        load_text(LEVELS.replace(old, new, 1), tmp_path)
    path, _, line = error.value.where.partition(", line ")
    assert path == str(tmp_path / "cluster.yaml")
    assert 4 <= int(line) <= LEVELS.count("\n")
    assert (error.value.key or "").startswith("sites[0].")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("gpu[04-06]", "gpu[02,04-06]", 14),
        ("nodes: 2}", "nodes: 3}", 15),
        ("parts: [left, right]", "parts: [left, left]", 19),
        ("[spare-a, spare-b]", "[spare-a]", 6),
        ("hop_latency_s: 5", "hop_latency: 5", 10),
        ("hop_latency_s: 5.0e-7", "hop_latency_s: -1", 11),
        ("name: pod", "name: leaf", 9),
    ],
)
def test_a_wrong_tree_names_the_line_that_its_author_wrote(tmp_path: Path, old: str, new: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"cluster\.yaml, line {line}: sites"):
        load_text(LEVELS.replace(old, new, 1), tmp_path)


def test_what_a_tree_says_of_ways() -> None:
    leaves = FabricLevel(
        name="leaf",
        parts=(FabricPart(name="a"), FabricPart(name="b", oversubscription=2.0), FabricPart(name="c")),
        part_of=(0, 0, 1, 1, 2),
        hop_latency_s=1e-6,
    )
    pods = FabricLevel(
        name="pod", parts=(FabricPart(name="x", oversubscription=3.0), FabricPart(name="y")), part_of=(0, 0, 1)
    )
    network = Network(levels=(leaves, pods))
    assert network.is_shared
    assert network.thinned({0, 4}, (0,)) == 1.0
    own = equal_pods(7, oversubscription=2.0)
    assert not own.is_shared
    assert (own.thinned({0}, (0,)), own.thinned({0, 4}, (0,))) == (1.0, 2.0)
    assert [network.hops_s(nodes) for nodes in ({0, 1}, {0, 2}, {0, 4})] == [0.0, 2e-6, 2e-6]
    assert network.crossing_key(0, 1) == (None, None)
    assert network.crossing_key(0, 3) == ((0, 1), None)
    assert equal_pods(7, pods=3).period == 3
    assert equal_pods(7, oversubscription=2.0).period == PLAIN.period == 1


@given(st.lists(st.from_regex(r"[a-c]{1,2}-?0{0,2}[0-9]{1,2}", fullmatch=True) | st.sampled_from(["x", "login"])))
def test_host_lists_fold_and_expand(names: list[str]) -> None:
    assert (expand_hosts(fold_hosts(names), "here", "names") if names else ()) == tuple(names)


def test_a_tree_has_as_many_nodes_as_its_site() -> None:
    cluster = load_cluster("h100:4x8")
    data: dict[str, Any] = parse_yaml(yaml_text(describe_cluster(cluster)), where="here")
    assert data["sites"][0]["fabric"] == {"link": "ib-ndr400", "oversubscription": 1.0, "pods": 1}
    with pytest.raises(InputError, match="found 5 nodes in all of its parts, expected the site's 4"):
        equal_pods(5, pods=2).check(4)


def test_spread_tables_in_the_file(tmp_path: Path) -> None:
    named = load_text(LEVELS.replace("name: pod", "name: pod\n          spread: arnold-h800"), tmp_path)
    table = named.sites[0].network.levels[1].spread
    assert table is not None
    assert [table.share(parts) for parts in (1, 4, 9)] == [1.0, 0.83, 0.83]
    assert [table.share(parts, message=True) for parts in (1, 4)] == [1.0, 0.3]
    assert "the paper's, the number of pods (4) and all between (a straight line) is ours" in table.source
    assert load_text(yaml_text(describe_cluster(named)), tmp_path).sites == named.sites
    for spread, message in (
        ("arnold", r"levels\[1\]\.spread: found 'arnold', expected arnold-h800, or collective and message"),
        ("{collective: [1, 0.5, 0.6], message: [1]}", r"spread\.collective: found \[1.0, 0.5, 0.6\], expected shares"),
        (
            "{collective: [1, 0], message: [1]}",
            r"spread\.collective\[1\]: found 0, expected greater than or equal to 0\.000001",
        ),
    ):
        with pytest.raises(InputError, match=message):
            load_text(LEVELS.replace("name: pod", f"name: pod\n          spread: {spread}"), tmp_path)


def test_which_nodes_are_taken_counts_only_where_something_is_held_back() -> None:
    pods = equal_pods(8, pods=2)
    thin = equal_pods(8, pods=2, oversubscription=2.0)
    late = Network(levels=(replace(pods.levels[0], hop_latency_s=1e-6),))
    trees = (PLAIN, equal_pods(8, oversubscription=2.0), pods, thin, late)
    assert [(tree.is_flat, tree.is_shared) for tree in trees] == [
        (True, False),
        (True, False),
        (True, False),
        (False, True),
        (False, False),
    ]
