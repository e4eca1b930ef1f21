"""The cluster of a row: device, nodes and links by name; the device's reference node for blanks."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from planner.one_job.validation.prepared import Skipped
from profiles.cluster import Cluster, NodeGroup, Site
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.hardware import load_device, load_link
from profiles.reference_nodes import default_nodes, in_equal_blocks
from profiles.vocabulary import Device

if TYPE_CHECKING:
    from planner.one_job.validation.columns import RunRow

BY_MEMORY = {
    ("a100-80gb", 40): "a100-40gb",
    ("a100-80gb-pcie", 40): "a100-40gb-pcie",
    ("v100-32gb", 16): "v100-16gb",
    ("h100", 96): "h100-96gb",
    ("h100", 94): "h100-nvl",
}
"""Variants that differ in memory (GB of the name) from what the name alone means."""

AMBIGUOUS = {"a100-80gb", "a100-80gb-pcie", "v100-32gb"}
"""Devices sold in two memory sizes under the same words: the larger is taken where none is stated."""


def cluster_of(row: RunRow, assumed: list[str]) -> Cluster | Skipped:
    """Return the row's cluster, with nodes enough for its devices; adds to `assumed` what is not stated.

    InputError, naming row and column, for a cluster, a device or a link that there is not.
    """
    if row.cluster:
        try:
            cluster = _load_cluster(row.cluster)
        except InputError as error:
            raise InputError(where=row.where, key="cluster", found=error.found, expected=error.expected) from None
        assumed.extend(f"cluster: {note}" for note in cluster.notes)
        return cluster
    if not row.gpu:
        return Skipped(reason="gpu: not stated")
    device = device_of(row, assumed)
    if row.gpus_total is None:
        return Skipped(reason="gpus_total: not stated")
    nodes, notes = _nodes(device, row.gpus_total, row.gpus_per_node)
    assumed.extend(notes)
    nodes = _linked(row, nodes, assumed)
    site = Site(name="site", nodes=(nodes,), fabric_link=nodes.nic_link)
    return Cluster(text=f"{device.name}:{nodes.count}x{nodes.devices}", sites=(site,))


@lru_cache(maxsize=64)
def _load_cluster(text: str) -> Cluster:
    return load_cluster(text)


def device_of(row: RunRow, assumed: list[str]) -> Device:
    """Return the row's device by its name and memory; an assumption where it is sold in two sizes and none is stated.

    Raise InputError for a name that the catalogue does not have.
    """
    device = load_device(row.gpu, where=row.where, key="gpu")
    if row.gpu_mem_gb is not None:
        return load_device(BY_MEMORY.get((device.name, round(row.gpu_mem_gb)), device.name))
    if device.name in AMBIGUOUS and row.gpu.lower() != device.name:
        assumed.append(f"gpu_mem_gb: not stated; {device.name} (gpu_mem_gb)")
    return device


@lru_cache(maxsize=1024)
def _nodes(device: Device, devices: int, per_node: int | None) -> tuple[NodeGroup, tuple[str, ...]]:
    """Nodes of a device with its reference node's links, and sentences about what nobody stated."""
    notes = []
    if per_node is None:
        per_node = device.reference_node.devices
        if devices > 1:
            notes.append(f"gpus_per_node: not stated; {per_node}, as {device.name}'s reference node (gpus_per_node)")
    whole = default_nodes(device, count=-(-devices // per_node), devices=per_node)
    nodes = in_equal_blocks(whole)
    if nodes != whole:
        notes.append(f"placement: each rack of {whole.island_size} devices gives an equal block of {nodes.island_size}")
    return nodes, tuple(notes)


def _linked(row: RunRow, nodes: NodeGroup, assumed: list[str]) -> NodeGroup:
    """`nodes` with the links that the row names. `nvlink` and `pcie` mean those of the reference node."""
    inside = row.intra_node_link.lower()
    if inside == "pcie" and nodes.island_link.kind != "pcie":
        nodes = replace(nodes, island_link=nodes.host_link)
    elif inside not in ("", "pcie", "nvlink"):
        nodes = replace(nodes, island_link=load_link(inside, where=row.where, key="intra_node_link"))
    if not row.inter_node_link:
        if nodes.count > 1:
            assumed.append(f"inter_node_link: not stated; {nodes.nics} x {nodes.nic_link.name} (inter_node_link)")
        return nodes
    words = re.fullmatch(r"(?:([1-9]\d{0,3}) ?x ?)?(\S+)", row.inter_node_link.lower(), re.ASCII)
    if words is None:
        expected = "NICs of a node and their link, such as 8x ib-ndr400 (links: cellplan hardware list)"
        raise InputError(where=row.where, key="inter_node_link", found=repr(row.inter_node_link), expected=expected)
    link = load_link(words[2], where=row.where, key="inter_node_link")
    if words[1] is None and nodes.count > 1:
        assumed.append("inter_node_link: NICs not counted; as the reference node has")
    return replace(nodes, nics=int(words[1] or nodes.nics), nic_link=link) if nodes.count > 1 else nodes
