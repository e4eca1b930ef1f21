"""The rows of comm.csv (published collectives) that name their machine well enough, placed on a cluster of ours."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path

from estimator.communication.collectives import Group, describe_group, time_collective
from profiles.cluster import Cluster, NodeGroup, Site
from profiles.hardware import load_device, load_link
from profiles.vocabulary import CollectiveOp, Link

WHOLE_BYTES = 2.0**33
"""What a row that states a bus bandwidth for "large" messages, and no size, is taken to be."""

TORCH_HARNESS_S = 20e-6
"""What a loop in Python adds to each collective (all_reduce_bench.py): 8 Hopper devices take 39 us for 32 KiB with it
(C00343 to C00347), 19 us with nccl-tests (C00760 to C00764)."""

Links = Callable[[str], Link]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Nodes as a row describes them: links by their names in the catalogue."""

    device: str
    devices: int
    island: str
    nic: str = "ib-hdr200"
    nics: int = 8
    host: str = "pcie4-x16"
    island_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Rows that rest on the same links: `kind` heads them in the table, `link` is whose parameters they tell.

    `harness_s` is what the measuring program adds to every time."""

    kind: str
    link: str
    machine: Machine
    holds: Callable[[dict[str, str]], bool]
    harness_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One measured collective. `size_bytes` as in `Collective.bytes`."""

    id: str
    family: Family
    op: CollectiveOp
    ranks: int
    nodes: int
    size_bytes: float
    measured_s: float

    @property
    def fit_half(self) -> bool:
        """Whether the row belongs to the half that parameters may be fitted on, by the hash of its id."""
        return sha256(self.id.encode()).digest()[0] % 2 == 0


def _numbers(first: int, last: int) -> Callable[[dict[str, str]], bool]:
    return lambda row: first <= int(row["id"][1:]) <= last


def _small(row: dict[str, str]) -> bool:
    return int(row["bytes"] or WHOLE_BYTES) < 8 * 2**20


def _and(*tests: Callable[[dict[str, str]], bool]) -> Callable[[dict[str, str]], bool]:
    return lambda row: all(test(row) for test in tests)


def _ids(*numbers: int) -> Callable[[dict[str, str]], bool]:
    return lambda row: int(row["id"][1:]) in numbers


_DGX_A100 = Machine(device="a100-80gb", devices=8, island="nvswitch3")
_HDR = replace(_DGX_A100, nics=4)
_HGX_H100 = Machine(device="h100", devices=8, island="nvswitch4", nic="ib-ndr400", host="pcie5-x16")
_DGX_1 = Machine(device="v100-32gb", devices=8, island="nvlink2", nic="ib-edr100", nics=1, host="pcie3-x16")
_B200 = Machine(device="b200", devices=8, island="nvswitch5", nic="efa400", host="pcie5-x16")
_RTX_5090 = Machine(device="rtx-4090", devices=8, island="pcie5-x16", nic="ethernet-25g", nics=1, host="pcie5-x16")
_PAIRS = Machine(device="a100-80gb-pcie", devices=8, island="nvlink3-bridge", island_size=2)

FAMILIES: tuple[Family, ...] = (
    Family(
        kind="NVLink 3 switch, vTrain below 8 MiB (latency looks inflated)",
        link="nvswitch3",
        machine=_DGX_A100,
        holds=_and(_numbers(1, 161), _small),
    ),
    Family(kind="NVLink 3 switch, vTrain", link="nvswitch3", machine=_DGX_A100, holds=_numbers(1, 161)),
    Family(
        kind="NVLink 3 switch, other sources",
        link="nvswitch3",
        machine=_DGX_A100,
        holds=lambda row: _numbers(323, 342)(row) or _ids(723, 728)(row),
    ),
    Family(
        kind="NVLink 3 switch, Galvatron (device not stated)",
        link="nvswitch3",
        machine=_DGX_A100,
        holds=_numbers(425, 490),
        harness_s=TORCH_HARNESS_S,
    ),
    Family(
        kind="NVLink 2 cube mesh, vTrain below 8 MiB (latency looks inflated)",
        link="nvlink2",
        machine=_DGX_1,
        holds=_and(_numbers(162, 322), _small),
    ),
    Family(kind="NVLink 2 cube mesh, vTrain", link="nvlink2", machine=_DGX_1, holds=_numbers(162, 322)),
    Family(
        kind="NVLink 4 switch",
        link="nvswitch4",
        machine=_HGX_H100,
        holds=_ids(718, 719, 721),
    ),
    Family(
        kind="NVLink 4 switch, torch",
        link="nvswitch4",
        machine=_HGX_H100,
        holds=_numbers(343, 362),
        harness_s=TORCH_HARNESS_S,
    ),
    Family(kind="NVLink 4 switch (device not stated)", link="nvswitch4", machine=_HGX_H100, holds=_numbers(754, 764)),
    Family(
        kind="NVLink 4 switch of H800",
        link="nvswitch4-h800",
        machine=replace(_HGX_H100, device="h800", island="nvswitch4-h800"),
        holds=_ids(722, 736),
    ),
    Family(kind="NVLink 4 switch, 4 devices, -R2 -x2", link="nvswitch4", machine=_HGX_H100, holds=_ids(737)),
    Family(
        kind="NVLink 5 switch, torch",
        link="nvswitch5",
        machine=_B200,
        holds=lambda row: _numbers(364, 402)(row) and row["nodes"] == "1",
        harness_s=TORCH_HARNESS_S,
    ),
    Family(
        kind="NVLink 5 switch, rack of 72",
        link="nvswitch5-nvl72",
        machine=Machine(device="gb200", devices=4, island="nvswitch5-nvl72", island_size=72, nic="ib-ndr400", nics=4),
        holds=_numbers(713, 717),
    ),
    Family(kind="NVLink 3 bridge", link="nvlink3-bridge", machine=_PAIRS, holds=_ids(729)),
    Family(kind="PCIe 4 between bridged pairs", link="pcie4-x16", machine=_PAIRS, holds=_ids(730)),
    Family(kind="PCIe 5", link="pcie5-x16", machine=_RTX_5090, holds=_ids(738, 739)),
    Family(
        kind="PCIe 4 through host memory",
        link="pcie4-x16-staged",
        machine=replace(_RTX_5090, island="pcie4-x16-staged", host="pcie4-x16"),
        holds=_ids(753),
    ),
    Family(kind="4 x InfiniBand HDR a node", link="ib-hdr200", machine=_HDR, holds=_ids(724, 725, 726)),
    Family(
        kind="4 nodes, fabric not stated (as 4 x HDR), torch",
        link="ib-hdr200",
        machine=_HDR,
        holds=_numbers(404, 423),
        harness_s=TORCH_HARNESS_S,
    ),
    Family(kind="1 x InfiniBand EDR a node", link="ib-edr100", machine=_DGX_1, holds=_ids(752)),
    Family(kind="1 x 400 Gbit/s, tree forced", link="ib-ndr400", machine=_HGX_H100, holds=_numbers(740, 744)),
    Family(
        kind="8 x EFA 400 a node, torch",
        link="efa400",
        machine=_B200,
        holds=lambda row: _numbers(365, 403)(row) and row["nodes"] == "4",
        harness_s=TORCH_HARNESS_S,
    ),
)

OPS: dict[str, CollectiveOp] = {
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "all_gather": "all_gather",
    "p2p_unidirectional": "send_recv",
}

REASONS: tuple[tuple[Callable[[dict[str, str]], bool], str], ...] = (
    (lambda row: "PROBLEM REPORT" in row["notes"], "report of a mistuned cluster"),
    (lambda row: "EFFICIENCY RATIO" in row["notes"], "ratio to an unstated rate, provenance not documented"),
    (lambda row: row["op"] not in OPS, "operation not stated, or not one of ours"),
    (lambda row: "bandwidth as stored by the profiler" in row["notes"], "neither device nor size stated"),
    (_ids(365, 367), "thousands of microseconds for less than 128 KiB: a start-up, not a rate"),
    (_ids(424), "a copy by the copy engine, no collective"),
)


def read_published(path: Path) -> tuple[tuple[Published, ...], dict[str, int]]:
    """The rows that can be predicted, and how many cannot, by reason."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found: list[Published] = []
    left: dict[str, int] = {}
    for row in rows:
        reason = next((reason for test, reason in REASONS if test(row)), None)
        family = next((family for family in FAMILIES if family.holds(row)), None)
        if reason or family is None:
            reason = reason or "machine not described"
            left[reason] = left.get(reason, 0) + 1
            continue
        found.append(_published(row, family))
    return tuple(found), left


def _published(row: dict[str, str], family: Family) -> Published:
    op, ranks, size = OPS[row["op"]], int(row["gpus"]), float(row["bytes"] or WHOLE_BYTES)
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "send_recv": 1.0}.get(op, (ranks - 1) / ranks)
    measured_s = float(row["time_us"]) * 1e-6 if row["time_us"] else factor * size / (float(row["busbw_gbps"]) * 1e9)
    return Published(
        id=row["id"],
        family=family,
        op=op,
        ranks=ranks,
        nodes=int(row["nodes"]),
        size_bytes=size,
        measured_s=measured_s,
    )


def group_of(row: Published, links: Links = load_link) -> Group:
    """The row's ranks: as many on each of its nodes, the first devices of each."""
    return _group(row.family.machine, row.ranks, row.nodes, links)


def _group(machine: Machine, ranks: int, nodes: int, links: Links) -> Group:
    nic = links(machine.nic)
    node = NodeGroup(
        count=nodes,
        device=_device(machine.device),
        devices=machine.devices,
        island_link=links(machine.island),
        island_size=machine.island_size or machine.devices,
        host_link=links(machine.host),
        nic_link=nic,
        nics=machine.nics,
    )
    cluster = Cluster(text="published", sites=(Site(name="there", nodes=(node,), fabric_link=nic),))
    inside = ranks // nodes
    return describe_group(cluster, [slot for slot in cluster.slots if slot.index < inside])


_device = cache(load_device)


def kinds(rows: Iterable[Published]) -> list[str]:
    """The families' names in order of the table."""
    present = {row.family.kind for row in rows}
    return [family.kind for family in FAMILIES if family.kind in present]


def modelled_s(row: Published, links: Links = load_link) -> float:
    """Seconds that our model gives the row, with what its harness adds."""
    return time_collective(row.op, row.size_bytes, group_of(row, links)).seconds + row.family.harness_s
