"""The cluster of a row: device, nodes and links by the words of its publisher; the reference node for blanks."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from planner.one_job.validation.prepared import Skipped
from profiles.cluster import Cluster, NodeGroup, Site
from profiles.cluster_file import default_nodes, load_cluster
from profiles.errors import InputError
from profiles.hardware import link_names, load_device, load_link
from profiles.vocabulary import Device, Link

if TYPE_CHECKING:
    from planner.one_job.validation.rows import RunRow

DEVICE_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"h100.*nvl|h100.*94 ?gb", "h100-nvl"),
    (r"h100.*pcie", "h100-pcie"),
    (r"h100.*96 ?gb", "h100-96gb"),
    (r"gh200", "gh200"),
    (r"gb(200|300)", "gb{0}"),
    (r"\bb(200|300)", "b{0}"),
    (r"\bh(100|200|800|20)\b", "h{0}"),
    (r"a100.*pcie", "a100-80gb-pcie"),
    (r"a100", "a100-80gb"),
    (r"a800", "a800"),
    (r"v100", "v100-32gb"),
    (r"p100", "p100"),
    (r"k80", "k80"),
    (r"\bt4\b", "t4"),
    (r"\bl40s?\b", "l40s"),
    (r"\bl20\b", "l20"),
    (r"\ba(10|30|40)g?\b", "a{0}"),
    (r"rtx[ -]?(3090|4090)|\b(3090|4090)\b", "rtx-{0}"),
    (r"mi(250x|300x|325x|355x)", "mi{0}"),
    (r"tpu ?v?(5 ?lite|5e)", "tpu-v5e"),
    (r"tpu ?v?(3|4|5p|6e|7x)\b", "tpu-v{0}"),
    (r"trillium", "tpu-v6e"),
    (r"ironwood", "tpu-v7x"),
)
"""The device by the first pattern in the row's words, lower case; {0} is what the pattern's group caught."""

BY_MEMORY = {
    ("a100-80gb", 40): "a100-40gb",
    ("a100-80gb-pcie", 40): "a100-40gb-pcie",
    ("v100-32gb", 16): "v100-16gb",
    ("h100", 96): "h100-96gb",
    ("h100", 94): "h100-nvl",
}
"""Variants that differ in memory (GB of the name) from what the words alone mean."""

AMBIGUOUS = {"a100-80gb", "a100-80gb-pcie", "v100-32gb"}
"""Devices sold in two memory sizes under the same words: the larger is taken where none is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """A named machine whose network the row need not describe."""

    pattern: str
    nics: int
    link: str
    basis: str


SITES = (
    SiteFacts(
        pattern="jean zay|bigscience-workshop",
        nics=4,
        link="omni-path100",
        basis="Jean Zay, where BigScience trained: four Omni-Path 100 links a node (IDRIS, description of the machine)",
    ),
    SiteFacts(pattern="selene", nics=8, link="ib-hdr200", basis="Selene: eight HDR InfiniBand NICs a node"),
)

LINK_WORDS: tuple[tuple[str, str], ...] = (
    (r"omni-?path", "omni-path"),
    (r"roce", "roce"),
    (r"\befa\b", "efa"),
    (r"slingshot", "slingshot"),
    (r"infiniband|\bib\b|\bhdr|\bndr|\bedr|\bxdr", "ib"),
    (r"ethernet|tcp", "ethernet"),
)
"""Kinds of network by the words for them."""

IB_BY_RATE = {100: "ib-edr100", 200: "ib-hdr200", 400: "ib-ndr400", 800: "ib-xdr800"}
NVLINK2_QUAD = 4
"""Devices of a V100 node whose six links join each pair by two, where a node of eight is a cube mesh."""

COMMON_NIC_GBITS = 200
"""A NIC's rate where only a node's total is stated."""


def cluster_of(row: RunRow, assumed: list[str]) -> Cluster | Skipped:
    """The row's cluster, with nodes enough for its devices. Adds to `assumed` what was taken from elsewhere."""
    if row.cluster:
        cluster = _written(row)
        assumed.extend(f"cluster: {note}" for note in cluster.notes)
        return cluster
    device = device_of(row, assumed)
    if isinstance(device, Skipped):
        return device
    if row.gpus_total is None:
        return Skipped(reason="gpus_total: not stated")
    text = row.said.lower() + row.inter_node_link.lower()
    site = next((facts for facts in SITES if re.search(facts.pattern, text)), None)
    cluster, notes = _cluster(
        device.name,
        row.gpus_total,
        row.gpus_per_node,
        row.intra_node_link.lower(),
        row.inter_node_link.lower(),
        site,
    )
    assumed.extend(notes)
    return cluster


def _written(row: RunRow) -> Cluster:
    """The cluster that a column names; InputError says which row."""
    try:
        return _load_cluster(row.cluster)
    except InputError as error:
        raise InputError(where=row.where, key="cluster", found=error.found, expected=error.expected) from None


@lru_cache(maxsize=64)
def _load_cluster(text: str) -> Cluster:
    return load_cluster(text)


def device_of(row: RunRow, assumed: list[str]) -> Device | Skipped:
    """The row's device by its words and memory; an assumption where it is sold in two sizes and none is stated."""
    words = row.gpu.strip().lower()
    if not words:
        return Skipped(reason="gpu: not stated")
    name = _device_name(words)
    if name is None:
        return Skipped(reason=f"gpu: {row.gpu!r} is no device of the catalogue")
    memory = None if row.gpu_mem_gb is None else round(row.gpu_mem_gb)
    if memory is None and name in AMBIGUOUS and words != name:
        assumed.append(f"gpu_mem_gb: not stated; {name} (gpu_mem_gb)")
    return load_device(BY_MEMORY.get((name, memory or 0), name))


@lru_cache(maxsize=1024)
def _device_name(words: str) -> str | None:
    """The catalogue's name of the device that a publisher calls `words` (lower case), None if it has none."""
    try:
        return load_device(words).name
    except InputError:
        pass
    for pattern, name in DEVICE_PATTERNS:
        match = re.search(pattern, words)
        if match:
            return name.format(next((group for group in match.groups() if group), ""))
    return None


@lru_cache(maxsize=1024)
def _cluster(
    name: str, devices: int, per_node: int | None, island: str, network: str, site: SiteFacts | None
) -> tuple[Cluster, tuple[str, ...]]:
    """Nodes of a device with their links, and the sentences about what nobody stated.

    `nvlink3` and the like are the generation, which the reference node knows more exactly: with or without a switch.
    """
    device, notes = load_device(name), []
    reference = device.reference_node
    scattered = "unconsolidated" in network
    if scattered:
        per_node = 1
        notes.append("placement: unconsolidated is taken as one device in each node")
    if per_node is None:
        per_node = reference.devices
        if devices > 1:
            notes.append(f"gpus_per_node: not stated; {per_node}, as {name}'s reference node (gpus_per_node)")
    nodes = default_nodes(device, count=-(-devices // per_node), devices=per_node)
    segment = _segment(nodes)
    if segment != nodes.island_size:
        notes.append(f"placement: each rack of {nodes.island_size} devices gives an equal block of {segment}")
        nodes = replace(nodes, island_size=segment)
    if nodes.island_link.name == "nvlink2" and per_node == NVLINK2_QUAD and re.fullmatch(r"nvlink2?", island):
        nodes = replace(nodes, island_link=load_link("nvlink2-quad"))
    if re.search("pcie", island) and nodes.island_link.kind != "pcie":
        nodes = replace(nodes, island_link=nodes.host_link)
    elif island in link_names() and not re.fullmatch(r"nvlink\d", island):
        nodes = replace(nodes, island_link=load_link(island))
    if devices > per_node:
        found = _network(network, site, per_node=per_node)
        if found is None:
            notes.append(f"inter_node_link: not stated; {nodes.nics} x {nodes.nic_link.name} (inter_node_link)")
        else:
            count, link, note = found
            nodes = replace(nodes, nics=count or nodes.nics, nic_link=link)
            notes.extend(note)
    group = Site(name="site", nodes=(nodes,), fabric_link=nodes.nic_link)
    return Cluster(text=f"{name}:{nodes.count}x{per_node}", sites=(group,)), tuple(notes)


def _segment(nodes: NodeGroup) -> int:
    """Devices of an island that one job uses: where islands span nodes and the job several of them, the most nodes up
    to an island's that divide the job's, as a scheduler's block placement gives each rack an equal part of it
    (Megatron-Bridge, scripts/performance/utils/executors.py: --segment)."""
    rack = nodes.island_size // nodes.devices
    if rack <= 1 or nodes.count <= rack:
        return nodes.island_size
    return nodes.devices * next(part for part in range(rack, 0, -1) if nodes.count % part == 0)


def _network(text: str, site: SiteFacts | None, *, per_node: int) -> tuple[int | None, Link, list[str]] | None:
    """NICs of a node, their link and notes, from words such as `4x 100Gb/s RoCE per node`; None if there are none."""
    kind = next((kind for pattern, kind in LINK_WORDS if re.search(pattern, text)), None)
    named = next((name for name in sorted(link_names(), key=len, reverse=True) if name in text), None)
    count = re.search(r"\bx? ?(\d+) ?x\b|\bx ?(\d+)\b", text)
    nics = int(next(group for group in count.groups() if group)) if count else None
    rate = re.search(r"(\d+) ?gb(?:it)?(?:/s|ps)?\b", text) or re.search(r"(?:path|hdr|ndr|edr|bandwidth) ?(\d+)", text)
    if named:
        return nics, load_link(named), [] if nics else ["inter_node_link: NICs not counted; as the reference node has"]
    if site is not None and (nics is None or rate is None):
        return site.nics, load_link(site.link), [f"inter_node_link: {site.basis}"]
    if rate is None:
        if kind != "omni-path":
            return None
        return nics, load_link("omni-path100"), ["inter_node_link: rate not stated; omni-path100"]
    gbits = int(rate[1])
    if nics is None and re.search(r"per (?:gpu|device)", text):
        nics = per_node
    if nics is None and re.search(r"per node|node-node|bandwidth", text) and gbits > COMMON_NIC_GBITS:
        nics, gbits = gbits // COMMON_NIC_GBITS, COMMON_NIC_GBITS
        note = [f"inter_node_link: the node's total is taken as {nics} NICs of {gbits} Gbit/s"]
        return nics, _link(kind or "ib", gbits), note
    return (
        nics,
        _link(kind or "ib", gbits),
        [] if nics else ["inter_node_link: NICs not counted; as the reference node"],
    )


def _link(kind: str, gbits: int) -> Link:
    """The catalogue's link of a kind and rate, or the nearest rate of that kind."""
    if kind == "ib":
        return load_link(IB_BY_RATE[min(IB_BY_RATE, key=lambda rate: abs(rate - gbits))])
    names = [name for name in link_names() if name.startswith(kind)]
    rates = {int(match[1]): name for name in names if (match := re.search(r"(\d+)g?$", name))}
    return load_link(rates[min(rates, key=lambda rate: abs(rate - gbits))])
