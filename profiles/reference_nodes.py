"""Nodes after a device's reference node, and the short form of a cluster, which is made of such: `a100-80gb:16x8` is 16
nodes of 8 devices; `a40:16x2+a10:16x2` a sum of such on one fabric; `local:1x2` two workers on this machine."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from profiles.cluster import Cluster, NodeGroup, Site
from profiles.errors import InputError
from profiles.hardware import load_device, load_link
from profiles.limits import LIMITS
from profiles.vocabulary import Device, Link

LOCAL = "local"

_PART = re.compile(r"(?P<device>[A-Za-z0-9][\w.-]*):(?P<nodes>\d{1,9})x(?P<devices>\d{1,9})", re.ASCII)
_FORMS = (
    "NAME:NODESxDEVICES such as a100-80gb:16x8 (16 nodes of 8 devices), a sum such as a40:16x2+a10:16x2,"
    " local:1xWORKERS, or the path of a cluster file that ends in .yaml or .yml"
)

LocalDevice = Callable[[], Device | None]
"""Gives the record of this machine's own device, from measured rates; None if nobody has measured it."""


def default_nodes(device: Device, *, count: int, devices: int) -> NodeGroup:
    """Return `count` nodes of `devices` after the device's reference node.

    Where `devices` differs from the reference, an island is the node or its largest equal part that is no larger than
    the reference's island, and the number of NICs goes with the devices (at least 1). An island that spans nodes keeps
    the largest multiple of the node.
    """
    reference = device.reference_node
    if reference.island_size > reference.devices:
        island = max(devices, reference.island_size // devices * devices)
    elif devices <= reference.island_size:
        island = devices
    else:
        island = math.gcd(devices, reference.island_size)
    return NodeGroup(
        count=count,
        device=device,
        devices=devices,
        island_link=load_link(reference.island_link),
        island_size=island,
        host_link=load_link(reference.host_link),
        nic_link=load_link(reference.nic_link),
        nics=max(1, reference.nics * devices // reference.devices),
    )


def in_equal_blocks(nodes: NodeGroup) -> NodeGroup:
    """Return `nodes` as one job of all of them gets them: where islands span nodes and the job several islands, each
    island gives an equal block, the most nodes that divide the job's (block placement; Megatron-Bridge,
    scripts/performance/utils/executors.py: --segment). Where that were less than half of an island, islands stay whole
    and the last is cut."""
    rack = nodes.island_size // nodes.devices
    if rack <= 1 or nodes.count <= rack:
        return nodes
    block = next(part for part in range(rack, 0, -1) if nodes.count % part == 0)
    return nodes if 2 * block < rack else replace(nodes, island_size=nodes.devices * block)


def is_short_form(text: str) -> bool:
    """Return whether a single term of a cluster has the short form."""
    return _PART.fullmatch(text) is not None


def from_short_form(text: str, local_device: LocalDevice | None) -> Cluster:
    """Return the cluster of a sum of such terms. Raise InputError for what is none, an unknown device, and `local`
    where nobody has measured it."""
    groups: list[NodeGroup] = []
    notes: list[str] = []
    parts = text.split("+")
    LIMITS.terms.check(len(parts), where="cluster")
    for part in parts:
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise InputError(where="cluster", found=repr(part), expected=_FORMS)
        name, nodes, devices = match["device"], int(match["nodes"]), int(match["devices"])
        if not nodes or not devices:
            sizes_said = f"{nodes} nodes of {devices} devices in {part!r}"
            raise InputError(where="cluster", found=sizes_said, expected="at least 1 node of at least 1 device")
        if name.lower() == LOCAL:
            if nodes != 1 or part != text:
                raise InputError(where="cluster", found=repr(text), expected="local:1xWORKERS, on its own")
            groups.append(default_nodes(local_device_of(devices, local_device), count=1, devices=devices))
            notes.append(f"{text}: {local_note(groups[-1])}")
            continue
        device = load_device(name, where=f"cluster {text}")
        whole = default_nodes(device, count=nodes, devices=devices)
        groups.append(in_equal_blocks(whole))
        blocks = (
            f"; each island of {whole.island_size} gives a job of all {nodes} nodes an equal block"
            if groups[-1] != whole
            else ""
        )
        notes.append(f"{part.strip()}: {reference_note(name, groups[-1])}{blocks}")
    site = Site(name="site", nodes=tuple(groups), fabric_link=fastest_nic(groups))
    return Cluster(text=text, sites=(site,), notes=tuple(notes))


def fastest_nic(groups: list[NodeGroup]) -> Link:
    """Return the link of a fabric that nobody described: no node is held back by it, only by its own NICs."""
    return max((group.nic_link for group in groups), key=lambda link: link.bandwidth_bytes_per_s * link.efficiency)


def local_device_of(workers: int, ask: LocalDevice | None) -> Device:
    """Return this machine's device as one of `workers` has it: an equal part of the memory, the rates measured for one
    worker.

    Its reference node is one island of them. Raise InputError where nobody has measured it.
    """
    device = ask() if ask else None
    if device is None:
        raise InputError(
            where="cluster local",
            found="no measured rates of this machine's device",
            expected="a profile: run `cellplan profile MODEL --device cpu` first",
        )
    node = replace(device.reference_node, devices=workers, island_size=workers)
    return replace(device, memory_bytes=device.memory_bytes // workers, reference_node=node)


def local_note(group: NodeGroup) -> str:
    """Return what is taken for granted of the workers on this machine, in a sentence."""
    slowdown = group.device.slowdown(group.devices)
    fast = f"{slowdown:.2f} times as slow as alone" if slowdown > 1 else "as fast as alone"
    return (
        f"{group.devices} workers on this machine, joined by {group.island_link.name}, each taken to be {fast} and to"
        f" have an equal part of the memory ({group.device.memory_bytes / 2**30:.1f} GiB)"
    )


def reference_note(name: str, group: NodeGroup) -> str:
    """Return what `default_nodes` took from where, in a sentence."""
    device, reference = group.device, group.device.reference_node
    alias = "" if name.lower() == device.name else f"{name} is read as {device.name}; "
    cut = (
        ""
        if group.devices == reference.devices
        else f", changed from its {reference.devices} devices to {group.devices}"
    )
    return (
        f"{alias}nodes are the catalogue's reference node of {device.name}{cut}: islands of {group.island_size} on"
        f" {group.island_link.name}, host link {group.host_link.name}, {group.nics} x {group.nic_link.name}"
    )
