"""Free nodes at their own places in the tree of a cluster that names its nodes; the names in the plan."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from planner import api
from planner.one_job.free_devices.reading import cluster_with_free
from planner.shared.plan_file import load_plan
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError

TREE = "host,pod,leaf\n" + "".join(
    f"n{number:02},{'ab'[number % 2]},{'ab'[number % 2]}{number % 3}\n" for number in range(12)
)


def named(tmp_path: Path) -> Cluster:
    (tmp_path / "tree.csv").write_text(TREE)
    return load_cluster(f"a100-80gb:12x8@{tmp_path / 'tree.csv'}")


def sinfo(tmp_path: Path, free: dict[str, int], device: str = "a100_80gb") -> Path:
    rows = [f"{name} gpu:{device}:8 gpu:{device}:{8 - count} mixed" for name, count in free.items()]
    path = tmp_path / "sinfo.txt"
    path.write_text("NODELIST GRES GRES_USED STATE\n" + "\n".join(rows) + "\n")
    return path


def free_by_host(cluster: Cluster) -> dict[str, int]:
    counts: dict[str, int] = {}
    for slot in cluster.free_slots:
        host = cluster.site(slot.site).network.hosts[slot.node]
        counts[host] = counts.get(host, 0) + 1
    return counts


def places(cluster: Cluster) -> dict[str, list[str]]:
    network = cluster.sites[0].network
    return {
        host: [level.parts[part].name for level, part in zip(network.levels, network.path(node), strict=True)]
        for node, host in enumerate(network.hosts)
    }


def test_each_node_is_free_at_its_own_place(tmp_path: Path) -> None:
    cluster = named(tmp_path)
    rng = random.Random(3)
    for _ in range(20):
        names = rng.sample(list(cluster.sites[0].network.hosts), rng.randint(1, 12))
        free = {name: rng.choice([0, 3, 8, 8]) for name in names}
        if not any(free.values()):
            continue
        restricted = cluster_with_free(cluster, sinfo(tmp_path, free))
        assert free_by_host(restricted) == {name: count for name, count in free.items() if count}
        assert places(restricted) == places(cluster)


def test_nodes_that_the_tree_lacks_or_has_otherwise(tmp_path: Path) -> None:
    cluster = named(tmp_path)
    with pytest.raises(InputError, match=r"sinfo\.txt: node x: found a node of another name, expected one of the 12"):
        cluster_with_free(cluster, sinfo(tmp_path, {"n01": 8, "x": 8}))
    lenient = cluster_with_free(cluster, sinfo(tmp_path, {"n01": 8, "x": 8}), lenient=True)
    assert free_by_host(lenient) == {"n01": 8}
    assert any("does not have are left out: x" in note for note in lenient.notes)
    mixed = load_cluster("h100:1x8+a100-80gb:11x8@" + str(tmp_path / "tree.csv"))
    first = mixed.sites[0].network.hosts[0]
    with pytest.raises(InputError, match=f"node {first}: found 8 a100_80gb, expected 8 h100 at most"):
        cluster_with_free(mixed, sinfo(tmp_path, {first: 8}))


def test_a_plan_names_its_hosts_and_finds_them_again(tmp_path: Path) -> None:
    cluster = named(tmp_path)
    free = sinfo(tmp_path, {"n07": 8, "n05": 8, "n01": 8})
    path = tmp_path / "plan.json"
    api.plan("gpt2-1.3b", cluster=cluster.text, free=free, devices=16, output=path, tp=8)
    plan = load_plan(path)
    hosts = {device.host for device in plan.devices}
    assert hosts == {"n01", "n07"}
    again = api.estimate(plan=path)
    assert again["estimate"]["iteration_time_s"] == plan.estimate.iteration_time_s
    assert not any("it has not those of the plan" in text for text in again["estimate"].get("assumptions", []))
    text = path.read_text()
    assert '"host": "n07"' in text
    without = tmp_path / "old.json"
    without.write_text(text.replace(', "host": "n07"', "").replace(', "host": "n01"', ""))
    assert {device.host for device in load_plan(without).devices} == {None}
    api.plan("gpt-tiny", cluster="a100-80gb:1x2", output=tmp_path / "plain.json")
    assert '"host":' not in (tmp_path / "plain.json").read_text()


def test_devices_of_whole_nodes_come_before_those_of_nodes_that_are_partly_free(tmp_path: Path) -> None:
    """Ranks in order then make groups that a node holds, as long as there are whole nodes."""
    cluster = named(tmp_path)
    rng = random.Random(4)
    for _ in range(20):
        hosts = list(cluster.sites[0].network.hosts)
        free = {name: rng.choice([0, 3, 5, 8, 8]) for name in hosts}
        slots = cluster_with_free(cluster, sinfo(tmp_path, free | {hosts[0]: 8})).free_slots
        whole = sum(count == 8 for count in (free | {hosts[0]: 8}).values())
        for first in range(0, 8 * whole, 8):
            assert len({slot.node for slot in slots[first : first + 8]}) == 1
        rest = [slot.node for slot in slots[8 * whole :]]
        counts = [rest.count(node) for node in dict.fromkeys(rest)]
        assert counts == sorted(counts, reverse=True)
