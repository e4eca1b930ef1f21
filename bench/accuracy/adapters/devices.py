"""Devices and links of published runs: from the words of their publishers to names of the catalogue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bench.accuracy.adapters.frameworks import said
from planner.one_job.validation.columns import RunRow
from profiles.errors import InputError
from profiles.hardware import link_names, load_device
from profiles.reference_nodes import default_nodes
from profiles.vocabulary import Device

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
    (r"rtx ?a6000\b", "rtx-a6000"),
    (r"rtx ?6000 ada", "rtx-6000-ada"),
    (r"rtx ?8000", "rtx-8000"),
    (r"gaudi ?-?([23])", "gaudi{0}"),
    (r"trainium ?2|\btrn2", "trainium2"),
    (r"\bl40s?\b", "l40s"),
    (r"\bl20\b", "l20"),
    (r"\ba(10|30|40)g?\b", "a{0}"),
    (r"rtx[ -]?(3090|4090)|\b(3090|4090)\b", "rtx-{0}"),
    (r"mi(250x|300x|325x|350x|355x)", "mi{0}"),
    (r"tpu ?v?(5 ?lite|5e)", "tpu-v5e"),
    (r"tpu ?v?(3|4|5p|6e|7x)\b", "tpu-v{0}"),
    (r"trillium", "tpu-v6e"),
    (r"ironwood", "tpu-v7x"),
)
"""The device by the first pattern in the row's words, lower case; {0} is what the pattern's group caught."""


CAPPED = {("SMXB", "b200"): "b200-capped", ("TAO", "h100"): "h100-96gb"}
"""Machines that hold less of their clock than others of their kind, by source and device: what the source's own sweep
of single operators says of them; PyTorch's H100, of which torchtitan says what they are (96 GB of HBM2e, 500 W)."""


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
    SiteFacts(
        pattern="futuredata/gavel",
        nics=1,
        link="ethernet-10g",
        basis="virtual machines of public clouds, of 10 Gbit/s Ethernet (gavel, physical clusters on AWS)",
    ),
    SiteFacts(pattern="selene", nics=8, link="ib-hdr200", basis="Selene: eight HDR InfiniBand NICs a node"),
)

LINK_WORDS: tuple[tuple[str, str], ...] = (
    (r"omni-?path", "omni-path"),
    (r"roce", "roce"),
    (r"\befa\b", "efa"),
    (r"slingshot", "slingshot"),
    (r"infiniband|\bib\b|\bhdr|\bndr|\bedr|\bxdr", "ib"),
    (r"tcpxo", "tcpxo"),
    (r"tcpx", "tcpx"),
    (r"ethernet|tcp", "ethernet"),
)
"""Kinds of network by the words for them."""

OTHER_NETWORKS = r"(?:storage|management|frontend|front-end|mgmt)\b[^,;+|]*"
"""What submitters list beside the network of the computation."""

INFINIBAND_GBITS = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""A NIC's rate by InfiniBand's generations, where no figure stands."""

IB_BY_RATE = {100: "ib-edr100", 200: "ib-hdr200", 400: "ib-ndr400", 800: "ib-xdr800"}
NVLINK2_QUAD = 4
"""Devices of a V100 node whose six links join each pair by two, where a node of eight is a cube mesh."""

COMMON_NIC_GBITS = 200
"""A NIC's rate where only a node's total is stated."""


def hardware_columns(row: RunRow, assumed: list[str]) -> dict[str, Any]:
    """Return device, node and links of `row` as columns, but for those that no pattern tells. Adds to `assumed` what
    was taken from elsewhere."""
    name = _device_name(row.gpu.strip().lower())
    if row.cluster or name is None:
        return {}
    device = load_device(name)
    capped = CAPPED.get((row.source, name))
    columns: dict[str, Any] = {"gpu": capped or (row.gpu if _is_alias(row.gpu) else name)}
    if capped:
        assumed.append(f"gpu: {capped}, as the source's own sweep of operators, or its publisher elsewhere, says")
    per_node = row.gpus_per_node
    network = row.inter_node_link.lower()
    if "unconsolidated" in network:
        columns["gpus_per_node"] = per_node = 1
        assumed.append("placement: unconsolidated is taken as one device in each node")
    columns["intra_node_link"] = _island(device, per_node, row.intra_node_link.lower())
    columns["inter_node_link"] = ""
    per_node = per_node or device.reference_node.devices
    if row.gpus_total is not None and row.gpus_total > per_node:
        text = said(row).lower() + network
        site = next((facts for facts in SITES if re.search(facts.pattern, text)), None)
        columns["inter_node_link"] = _network(network, site, per_node, assumed)
    return columns


def _is_alias(words: str) -> bool:
    try:
        load_device(words)
    except InputError:
        return False
    return True


@lru_cache(maxsize=1024)
def _device_name(words: str) -> str | None:
    """The catalogue's name of the device that a publisher calls `words` (lower case), None if it has none."""
    if _is_alias(words):
        return load_device(words).name
    for pattern, name in DEVICE_PATTERNS:
        match = re.search(pattern, words)
        if match:
            return name.format(next((group for group in match.groups() if group), ""))
    return None


@lru_cache(maxsize=1024)
def _island(device: Device, per_node: int | None, words: str) -> str:
    """The link inside a node, blank for the reference node's: `nvlink3` and the like are the generation, which the
    reference node knows more exactly, with or without a switch."""
    nodes = default_nodes(device, count=1, devices=per_node or device.reference_node.devices)
    if nodes.island_link.name == "nvlink2" and nodes.devices == NVLINK2_QUAD and re.fullmatch(r"nvlink2?", words):
        return "nvlink2-quad"
    if "pcie" in words:
        return "pcie"
    return words if words in link_names() and not re.fullmatch(r"nvlink\d", words) else ""


def _network(text: str, site: SiteFacts | None, per_node: int, assumed: list[str]) -> str:
    """NICs of a node and their link from words such as `4x 100Gb/s RoCE per node` or `Storage: 2x 100Gb/s, Compute: 8x
    400Gb/s`, of which the computation's counts; blank if there are none."""
    text = re.sub(OTHER_NETWORKS, "", text)
    kind = next((kind for pattern, kind in LINK_WORDS if re.search(pattern, text)), None)
    named = next((name for name in sorted(link_names(), key=len, reverse=True) if name in text), None)
    count = re.search(r"\bx? ?(\d+) ?x\b|\bx ?(\d+)\b", text)
    nics = int(next(group for group in count.groups() if group)) if count else None
    rate = re.search(r"(\d+) ?g(?:b(?:it)?(?:/s|ps)?)?\b", text) or re.search(
        r"(?:path|hdr|ndr|edr|xdr|bandwidth) ?(\d+)", text
    )
    if named:
        return _counted(nics, named)
    if site is not None and (nics is None or rate is None):
        assumed.append(f"inter_node_link: {site.basis}")
        return _counted(site.nics, site.link)
    generation = next((gbits for word, gbits in INFINIBAND_GBITS.items() if re.search(rf"\b{word}\b", text)), None)
    if rate is None and generation is not None:
        return _counted(nics, _link("ib", generation))
    if rate is None:
        if kind != "omni-path":
            return ""
        assumed.append("inter_node_link: rate not stated; omni-path100")
        return _counted(nics, "omni-path100")
    gbits = int(rate[1])
    if nics is None and re.search(r"per (?:gpu|device)", text):
        nics = per_node
    if nics is None and re.search(r"(?:per|a) node|node-node|bandwidth", text) and gbits > COMMON_NIC_GBITS:
        nics, gbits = gbits // COMMON_NIC_GBITS, COMMON_NIC_GBITS
        assumed.append(f"inter_node_link: the node's total is taken as {nics} NICs of {gbits} Gbit/s")
    return _counted(nics, _link(kind or "ib", gbits))


def _counted(nics: int | None, link: str) -> str:
    return f"{nics}x {link}" if nics else link


def _link(kind: str, gbits: int) -> str:
    """The catalogue's link of a kind and rate, or the nearest rate of that kind."""
    if kind == "ib":
        return IB_BY_RATE[min(IB_BY_RATE, key=lambda rate: abs(rate - gbits))]
    named = ((re.fullmatch(rf"{kind}-?(\d+)g?", name), name) for name in link_names())
    rates = {int(match[1]): name for match, name in named if match}
    return rates[min(rates, key=lambda rate: abs(rate - gbits))]
