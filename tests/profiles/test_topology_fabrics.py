"""What ibnetdiscover and Volcano's HyperNodes say of a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.topology_reading import read_topology
from profiles.wiring import Wired

LEAVES, SPINES = ("S-00a0", "S-00a1"), ("S-00b0",)


def ibnetdiscover(*, leaves: int = 2, nodes: int = 2, adapters: int = 2, cables: int = 2, speed: str = "4xNDR") -> str:
    """Output as the tool has it: leaves under one spine, adapters called mlx5_0, ...; a leaf's nodes in a row."""
    blocks: dict[str, list[str]] = {"S-00b0": []}
    adapter_blocks = []
    for leaf in range(leaves):
        own = blocks.setdefault(f"S-00a{leaf}", [])
        for node in range(leaf * nodes, (leaf + 1) * nodes):
            for adapter in range(adapters):
                guid, port = f"H-{node:02d}{adapter:02d}", len(own) + 1
                own.append(f'[{port}]\t"{guid}"[1](abc1) \t\t# "gpu{node + 1} mlx5_{adapter}" lid 7 {speed}')
                adapter_blocks.append(
                    "vendid=0x2c9\ndevid=0x1021\nsysimgguid=0x1\ncaguid=0x1\n"
                    f'Ca\t1 "{guid}"\t\t# "gpu{node + 1} mlx5_{adapter}"\n'
                    f'[1](abc1) \t"S-00a{leaf}"[{port}]\t\t# lid 7 lmc 0 "MF0;leaf{leaf}:MQM9700/U1" lid 1 {speed}'
                )
        for _ in range(cables):
            port, there = len(own) + 1, len(blocks["S-00b0"]) + 1
            own.append(f'[{port}]\t"S-00b0"[{there}]\t\t# "MF0;spine:MQM9700/U1" lid 3 {speed}')
            blocks["S-00b0"].append(f'[{there}]\t"S-00a{leaf}"[{port}]\t\t# "MF0;leaf{leaf}:MQM9700/U1" lid 2 {speed}')
    heads = {"S-00b0": "spine"} | {f"S-00a{leaf}": f"leaf{leaf}" for leaf in range(leaves)}
    switch_blocks = [
        "vendid=0x2c9\nswitchguid=0x1(1)\n"
        f'Switch\t64 "{guid}"\t\t# "MF0;{heads[guid]}:MQM9700/U1" enhanced port 0 lid 1 lmc 0\n' + "\n".join(lines)
        for guid, lines in blocks.items()
    ]
    return "#\n# Topology file: generated on a day\n#\n\n" + "\n\n".join(switch_blocks + adapter_blocks) + "\n"


def write(folder: Path, text: str, name: str = "topology.txt") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_subnet(tmp_path: Path) -> None:
    tree = read_topology(Path(write(tmp_path, ibnetdiscover())))
    assert tuple(tree.places) == ("gpu1", "gpu2", "gpu3", "gpu4")
    assert isinstance(tree.wiring, Wired)
    assert {switch.name for switch in tree.wiring.switches} == {"leaf0", "leaf1", "spine"}
    assert {(cable.count, cable.bytes_per_s) for cable in tree.wiring.cables} == {(2, 50e9)}
    (leaf,) = tree.network(("gpu4", "gpu1", "gpu2")).levels
    assert leaf.part_of == (0, 1, 1)
    assert [(part.name, part.oversubscription) for part in leaf.parts] == [("leaf1", 1.0), ("leaf0", 2.0)]
    assert tree.network(("gpu1", "gpu2")).levels == ()


@pytest.mark.parametrize(
    ("speed", "bytes_per_s"), [("4xEDR", 12.5e9), ("4xHDR", 25e9), ("2xHDR", 12.5e9), ("4xXDR", 100e9)]
)
def test_speeds(speed: str, bytes_per_s: float, tmp_path: Path) -> None:
    wiring = read_topology(Path(write(tmp_path, ibnetdiscover(speed=speed)))).wiring
    assert wiring is not None
    assert {cable.bytes_per_s for cable in wiring.cables} == {bytes_per_s}


def test_beside_a_cluster(tmp_path: Path) -> None:
    file = write(tmp_path, ibnetdiscover(adapters=8, cables=4))
    start = "schema: cellplan.cluster/1\nsites: [{name: a, nodes: [{count: 4, device: h100, names: 'gpu[1-4]'}], "
    cluster = write(tmp_path, start + "fabric: {link: ib-ndr400}}]", "c.yaml")
    network = load_cluster(f"{cluster}@{file}").sites[0].network
    assert [[part.oversubscription for part in level.parts] for level in network.levels] == [[4.0, 4.0]]
    ruled = "fabric: {link: ib-ndr400, levels: [{name: leaf, oversubscription: 2}]}"
    cluster = write(tmp_path, start + ruled + "}]", "d.yaml")
    with pytest.raises(InputError, match="rules for levels"):
        load_cluster(f"{cluster}@{file}")


WHOLE = ibnetdiscover()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WHOLE[: WHOLE.index("Ca\t1")], "cut short"),
        (WHOLE[: WHOLE.rindex("[1](abc1)")], "no such cable at its other end"),
        (WHOLE[: WHOLE.rindex("lid")], "no speed"),
        (WHOLE.replace("4xNDR", "4xODR", 1), "4xODR"),
        (WHOLE.replace("4xNDR", "4xEDR", 1), "another speed"),
        (WHOLE.replace('"H-0000"[1]', '"H-0100"[1]', 1), "another cable there"),
        (WHOLE + WHOLE, "a second time"),
        (WHOLE.replace("gpu1 mlx5_0", "; rm -rf", 2), "'; rm -rf'"),
        (WHOLE + "and so on\n", "'and so on'"),
        ('Switch\t64 "S-1"\t# "a"\n', "1 switches and 0 hosts"),
    ],
)
def test_no_subnet(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"topology\.txt") as raised:
        read_topology(Path(write(tmp_path, text)))
    assert said in str(raised.value)


def hyper(name: str, *members: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "HyperNode", "metadata": {"name": name}, "spec": {"tier": 1, "members": list(members)}}


def exact(kind: str, *names: str) -> list[dict[str, Any]]:
    return [{"type": kind, "selector": {"exactMatch": {"name": name}}} for name in names]


NODES = [
    {"kind": "Node", "metadata": {"name": f"node-{number}", "labels": {"rack": "r0" if number < 2 else "r1"}}}
    for number in range(4)
]
TOP = hyper("top", *exact("HyperNode", "s0", "s1"))


def read_items(tmp_path: Path, *items: dict[str, Any]) -> Any:
    return read_topology(Path(write(tmp_path, json.dumps({"kind": "List", "items": list(items)}), "hypernodes.json")))


@pytest.mark.parametrize(
    ("members", "others"),
    [
        ([exact("Node", "node-0", "node-1"), exact("Node", "node-2", "node-3")], []),
        (
            [
                [{"type": "Node", "selector": {"regexMatch": {"pattern": "^node-[01]$"}}}],
                [{"type": "Node", "selector": {"labelMatch": {"matchLabels": {"rack": "r1"}}}}],
            ],
            NODES,
        ),
    ],
)
def test_hypernodes(members: list[list[dict[str, Any]]], others: list[dict[str, Any]], tmp_path: Path) -> None:
    tree = read_items(tmp_path, TOP, hyper("s0", *members[0]), hyper("s1", *members[1]), *others)
    (leaf,) = tree.network(("node-0", "node-1", "node-2", "node-3")).levels
    assert leaf.part_of == (0, 0, 1, 1)
    assert [part.name for part in leaf.parts] == ["s0", "s1"]


def selecting(selector: Any, kind: str = "Node") -> dict[str, Any]:
    return hyper("s0", {"type": kind, "selector": selector})


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([hyper("s0", *exact("Pod", "x"))], "Node or HyperNode"),
        ([hyper("s0", {"type": {}, "selector": {}})], "Node or HyperNode"),
        ([selecting(None)], "one of exactMatch"),
        ([selecting({"exactMatch": {"name": "a"}, "regexMatch": {"pattern": "b"}})], "exactMatch, regexMatch"),
        ([selecting({"exactMatch": {"name": 5}})], "found 5"),
        ([selecting({"regexMatch": {"pattern": "node"}})], "kubectl get hypernodes,nodes"),
        ([selecting({"regexMatch": {"pattern": "(a+)+b"}}), *NODES], "without repeated groups"),
        ([selecting({"regexMatch": {"pattern": ".*.*.*.*.*x"}}), *NODES], "at most 4 repeats"),
        ([selecting({"regexMatch": {"pattern": "["}}), *NODES], "'['"),
        ([selecting({"labelMatch": {"matchExpressions": []}}), *NODES], "matchLabels alone"),
        ([selecting({"regexMatch": {"pattern": "^nobody$"}}), *NODES], "nothing below it"),
        ([TOP, hyper("s0", *exact("Node", "a")), hyper("s1", *exact("Node", "a"))], "under s0 already"),
        ([TOP, hyper("s0", *exact("Node", "a"))], "a switch s1 below it"),
        ([{"kind": "HyperNode", "metadata": {}}], "a name"),
        ([{"kind": "HyperNode", "metadata": {"name": "s"}, "spec": {"members": 3}}], "a list"),
    ],
)
def test_no_hypernodes(items: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hypernodes\.json") as raised:
        read_items(tmp_path, *items)
    assert said in str(raised.value)
