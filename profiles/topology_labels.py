"""Trees that nodes carry themselves: labels of Kubernetes' nodes, and tables of hosts with a column for each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profiles.errors import InputError
from profiles.files import csv_rows
from profiles.network import level_names
from profiles.topology_slurm import NO_UPLINKS
from profiles.topology_tree import HostTree, host_tree

HOSTNAME = "kubernetes.io/hostname"
HOST_COLUMNS = frozenset(("host", "hostname", "node", "nodename", "node_name"))
"""What the column of a table's hosts may be called that is not the first."""
LABELS: tuple[tuple[str, ...], ...] = (
    ("cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"),
    (
        "cloud.google.com/gce-topology-host",
        "cloud.google.com/gce-topology-subblock",
        "cloud.google.com/gce-topology-block",
    ),
    (
        "topology.k8s.aws/network-node-layer-3",
        "topology.k8s.aws/network-node-layer-2",
        "topology.k8s.aws/network-node-layer-1",
    ),
    ("network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine", "network.topology.nvidia.com/core"),
    ("fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1", "fabric.topograph.run/tier-2"),
)
"""Labels that say where a node is, from the nodes up: those of Kueue's documentation, of Google Kubernetes Engine, of
Amazon's nodes, and of NVIDIA's topograph, which name levels that a cluster need not have."""


def read_kubernetes(data: Mapping[str, Any], where: str) -> HostTree:
    """Return the tree of the nodes in a List of `kubectl get nodes -o json`.

    The levels are those of the Topology of Kueue in the same List (`kubectl get nodes,topologies -o json`), else the
    first family of `LABELS` that the nodes have. Nodes without any of the labels are left out. Raise InputError for a
    node that lacks some of them, and where no node has one.
    """
    items = data.get("items", [data])
    if not isinstance(items, list):
        raise InputError(where=where, key="items", found=type(items).__name__, expected="a list of nodes")
    nodes = [item for item in items if isinstance(item, dict) and item.get("kind") == "Node"]
    labels = {}
    for number, node in enumerate(nodes):
        metadata = node.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise InputError(where=where, key=f"items[{number}].metadata.name", found="none", expected="a node's name")
        carried = metadata.get("labels") or {}
        if metadata["name"] in labels:
            raise InputError(where=where, key=f"node {metadata['name']}", found="it twice", expected="each node once")
        labels[metadata["name"]] = carried if isinstance(carried, dict) else {}
    levels = _kueue_levels(items, where) or _known_levels(labels.values())
    if levels is None:
        families = "; ".join(", ".join(family) for family in LABELS)
        expected = f"a Topology of Kueue in the List, or labels such as {families}"
        raise InputError(where=where, found=f"{len(labels)} nodes without a label of a level", expected=expected)
    paths: dict[str, tuple[str, ...]] = {}
    without = []
    for name, carried in labels.items():
        missing = [level for level in levels if not carried.get(level)]
        if len(missing) == len(levels):
            without.append(name)
        elif missing:
            expected = f"all of {', '.join(levels)}, or none of them"
            raise InputError(where=where, key=f"node {name}", found=f"no label {missing[0]}", expected=expected)
        else:
            paths[name] = tuple(_value(carried[level], level, f"node {name}", where) for level in levels)
    if not paths:
        raise InputError(where=where, found=f"no node with the label {levels[0]}", expected="nodes with it")
    notes = (f"nodes without a label of a level, which are left out: {len(without)}",) if without else ()
    return host_tree(short_labels(levels), paths, where, (*notes, NO_UPLINKS))


def _value(value: object, label: str, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(where=where, key=f"{key}: label {label}", found=repr(value)[:60], expected="text")
    return value


def _kueue_levels(items: Sequence[Any], where: str) -> tuple[str, ...] | None:
    """The labels of the one Topology, from the nodes up, without the node's own."""
    found = [item for item in items if isinstance(item, dict) and item.get("kind") == "Topology"]
    if not found:
        return None
    if len(found) > 1:
        raise InputError(where=where, key="Topology", found=f"{len(found)} of them", expected="one")
    spec = found[0].get("spec")
    listed = spec.get("levels") if isinstance(spec, dict) else None
    given = listed if isinstance(listed, list) else []
    labels = [level.get("nodeLabel") if isinstance(level, dict) else None for level in given]
    if not labels or not all(isinstance(label, str) and label for label in labels) or len(set(labels)) < len(labels):
        raise InputError(where=where, key="spec.levels", found=str(listed)[:60], expected="each level's own nodeLabel")
    return tuple(str(label) for label in reversed(labels) if label != HOSTNAME) or None


def _known_levels(labels: Any) -> tuple[str, ...] | None:
    carried = {label for each in labels for label in each}
    present = (tuple(label for label in family if label in carried) for family in LABELS)
    return next((levels for levels in present if levels), None)


def short_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return what levels of these labels are called: the label's last word, where these differ."""
    last = tuple(label.rsplit("/", 1)[-1].removeprefix("gce-").removeprefix("topology-") for label in labels)
    return last if len(set(last)) == len(last) else tuple(labels)


def read_table(text: str, where: str) -> HostTree:
    """Return the tree of a CSV with a header, a row a host: its name, in the first column or in the one called `host`,
    `node` or the like, and the switch at each level, from the top down or from the nodes up (levels have more parts the
    lower they are). Raise InputError with the line."""
    rows = csv_rows(text, where=where)
    _, header = next(rows, (1, []))
    if len(header) < 2 or not all(header) or len(set(header)) < len(header):
        expected = "a header: host, then a name for each level"
        raise InputError(where=f"{where}, line 1", found=",".join(header)[:60] or "nothing", expected=expected)
    place = next((place for place, name in enumerate(header) if name.lower() in HOST_COLUMNS), 0)
    names = [*header[:place], *header[place + 1 :]]
    paths: dict[str, tuple[str, ...]] = {}
    for number, cells in rows:
        if not any(cells):
            continue
        at = f"{where}, line {number}"
        if len(cells) != len(header) or not all(cells):
            lacking = next((header[i] for i, cell in enumerate(cells[: len(header)]) if not cell), header[-1])
            stated = f"{sum(map(bool, cells))} values"
            raise InputError(where=at, key=lacking, found=stated, expected=f"one for each of {', '.join(header)}")
        host = cells.pop(place)
        if host in paths:
            expected = "each host in one row, under one switch of a level"
            raise InputError(where=at, key=header[place], found=f"{host} a second time", expected=expected)
        paths[host] = tuple(cells)
    if not paths:
        raise InputError(where=where, found="no host", expected="a row for each host")
    parts = [len({path[depth] for path in paths.values()}) for depth in range(len(names))]
    if parts == sorted(parts) and (parts != sorted(parts, reverse=True) or not _is_low(names[0])):
        names, paths = names[::-1], {host: path[::-1] for host, path in paths.items()}
    elif parts != sorted(parts, reverse=True):
        stated = ", ".join(f"{name} with {count} parts" for name, count in zip(names, parts, strict=True))
        expected = "levels in order, from the top down or from the nodes up"
        raise InputError(where=f"{where}, line 1", found=stated, expected=expected)
    return host_tree(names, paths, where, (NO_UPLINKS,))


def _is_low(name: str) -> bool:
    return name.lower() in {level_names(1)[0], "rack", "tor", "s0", "asw", "edge", "access"}
