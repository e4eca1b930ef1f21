"""The rows of comm.csv and kernels/comm.csv.gz (published collectives) that name their machine well enough, placed on a
cluster of ours."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path

from bench.accuracy.kernel_rows import read_table
from estimator.communication.collectives import Group, describe_group, time_collective
from profiles.cluster import Cluster, NodeGroup, Site
from profiles.hardware import load_device, load_link
from profiles.vocabulary import CollectiveOp, Link

WHOLE_BYTES = 2.0**33
"""What a row that states a bus bandwidth for "large" messages, and no size, is taken to be."""

TORCH_HARNESS_S = 20e-6
"""What a loop in Python adds to each collective (all_reduce_bench.py): 8 Hopper devices take 39 us for 32 KiB with it
(C00343 to C00347), 19 us with nccl-tests (C00760 to C00764)."""

OLD_NODES_S = 25e-6
"""What collectives took more on A100 nodes of 2022 and 2023: 44 to 80 us for 32 to 512 KiB on 8 (C00323 to C00327), 26-
30 us with NCCL 2.27 (kernels/comm.csv.gz)."""

VTRAIN_S = 12e-6
"""The same for vTrain's sweep (what makes the fit half of its rows from 8 MiB nearest)."""

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

    `harness_s` is what the measuring program adds to every time, and `copy_bytes_per_s` the rate at which a gather or a
    scatter that is not in place copies a rank's own share, which a training's are spared."""

    kind: str
    link: str
    machine: Machine
    holds: Callable[[dict[str, str]], bool]
    harness_s: float = 0.0
    copy_bytes_per_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One measured collective. `size_bytes` as in `Collective.bytes`; `curve` is that of all sizes it belongs to ("":
    it stands alone), `copied_bytes` what is copied beside it."""

    id: str
    family: Family
    op: CollectiveOp
    ranks: int
    nodes: int
    size_bytes: float
    measured_s: float
    curve: str = ""
    copied_bytes: float = 0.0

    @property
    def fit_half(self) -> bool:
        """Whether parameters may be fitted on the row: of rows that stand alone half, by the hash of the id; of whole
        curves seven in ten, by the hash of device, operation and ranks."""
        if self.curve:
            return sha256(self.curve.encode()).digest()[0] % 10 >= 3
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
_RACK = Machine(device="gb200", devices=4, island="nvswitch5-nvl72", island_size=72, nic="ib-ndr400", nics=4)
_PAIRS = Machine(device="a100-80gb-pcie", devices=8, island="nvlink3-bridge", island_size=2)

FAMILIES: tuple[Family, ...] = (
    Family(
        kind="NVLink 3 switch, vTrain below 8 MiB (latency looks inflated)",
        link="nvswitch3",
        machine=_DGX_A100,
        holds=_and(_numbers(1, 161), _small),
        harness_s=VTRAIN_S,
    ),
    Family(
        kind="NVLink 3 switch, vTrain",
        link="nvswitch3",
        machine=_DGX_A100,
        holds=_numbers(1, 161),
        harness_s=VTRAIN_S,
    ),
    Family(
        kind="NVLink 3 switch, other sources",
        link="nvswitch3",
        machine=_DGX_A100,
        holds=lambda row: _numbers(323, 342)(row) or _ids(723, 728)(row),
        harness_s=OLD_NODES_S,
    ),
    Family(
        kind="NVLink 3 switch, Galvatron (device not stated)",
        link="nvswitch3",
        machine=_DGX_A100,
        holds=_numbers(425, 490),
        harness_s=TORCH_HARNESS_S + OLD_NODES_S,
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
        machine=_RACK,
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

KERNEL_FAMILIES: dict[str, Family] = {
    gpu: Family(
        kind=f"{gpu.split()[0]}, nccl-tests in a node",
        link=machine.island,
        machine=machine,
        holds=lambda _: False,
        copy_bytes_per_s=copy_bytes_per_s,
    )
    for gpu, machine, copy_bytes_per_s in (
        ("A100 SXM", _DGX_A100, 0.34e12),
        ("H100 SXM", _HGX_H100, 0.91e12),
        ("H200 SXM", replace(_HGX_H100, device="h200"), 0.91e12),
        ("B200 SXM", _B200, 1.75e12),
        ("B300 SXM", replace(_B200, device="b300"), 1.75e12),
        ("GB200 SXM", _RACK, 1.75e12),
    )
}
"""Devices of kernels/comm.csv.gz. What a copy takes was fitted with the links on the fitted curves (gathers of 2, 4, 8
ranks differ by it)."""

MISTUNED = {("B200 SXM", "NCCL 2.27.3"), ("B200 SXM", "NCCL 2.29.2")}
"""Where gathers and scatters of 16 MiB on 8 devices take twice as long as with the versions between: a tuning step."""

OPS: dict[str, CollectiveOp] = {
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
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


def read_kernels(path: Path) -> tuple[Published, ...]:
    """Return nccl-tests' curves of kernels/comm.csv.gz: one row for each size, the median of NCCL's versions.

    Left out: 8-bit integers, which no switch reduces; NCCL 2.23 on Hopper, whose small sizes are noise; versions that
    are mistuned (`MISTUNED`); frameworks' own all-reduces, which serve inference.
    """
    rows = [row for row in read_table(path) if row["kernel"] == "nccl-tests" and row["dtype"] != "int8"]
    by_size: defaultdict[tuple[str, CollectiveOp, int, int], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        op = OPS[row["op"]]
        gathers = op in ("all_gather", "reduce_scatter")
        old = "2.23" in row["software"] and row["gpu"][0] == "H"
        if not old and not (gathers and (row["gpu"], row["software"]) in MISTUNED):
            by_size[row["gpu"], op, int(row["gpus"]), int(row["bytes"])].append(row)
    return tuple(
        Published(
            id=same[0]["id"],
            family=KERNEL_FAMILIES[gpu],
            op=op,
            ranks=ranks,
            nodes=1,
            size_bytes=float(size),
            measured_s=statistics.median(float(row["time_us"]) for row in same) * 1e-6,
            curve=f"{gpu} {op} {ranks}",
            copied_bytes=size / ranks if op in ("all_gather", "reduce_scatter") else 0.0,
        )
        for (gpu, op, ranks, size), same in by_size.items()
    )


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
    return place(row.family.machine, row.ranks, row.nodes, links)


def place(machine: Machine, ranks: int, nodes: int, links: Links = load_link) -> Group:
    """Return `ranks` devices on so many machines as a group: as many on each, the first devices of each."""
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
    return [family.kind for family in (*FAMILIES, *KERNEL_FAMILIES.values()) if family.kind in present]


def modelled_s(row: Published, links: Links = load_link) -> float:
    """Seconds that our model gives the row, with what its harness adds."""
    beside_s = row.family.harness_s + row.copied_bytes / row.family.copy_bytes_per_s
    return time_collective(row.op, row.size_bytes, group_of(row, links)).seconds + beside_s
