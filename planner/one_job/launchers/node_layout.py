"""A plan's ranks by the nodes they sit on, as launchers and cluster managers count them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product

from planner.one_job.tools.base.export_records import CannotExpress
from planner.shared.plan import Plan, PlanStage
from profiles.cluster_file import LOCAL, load_cluster
from profiles.errors import InputError

PLACEHOLDER = "train.py"
"""The training script where the user named none."""

MASTER_PORT = 29500
"""PyTorch's usual port of the rendezvous (torch.distributed.run, 2.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanks:
    """A node of the plan: its ranks in the order of the devices they use there."""

    node: int
    device: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`nodes` are in the order in which a launcher should count them, rank 0 on the first; `whole` whether the plan
    takes every device of each (None: the plan does not say)."""

    nodes: tuple[NodeRanks, ...]
    whole: bool | None

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return sum(len(node.ranks) for node in self.nodes)

    @cached_property
    def node_major(self) -> bool:
        """Whether ranks follow the nodes, and on each node its devices: rank = ranks before the node + local rank, as
        torchrun has it."""
        return [rank for node in self.nodes for rank in node.ranks] == list(range(self.world_size))

    @cached_property
    def parts(self) -> tuple[tuple[NodeRanks, ...], ...]:
        """Neighbours in `nodes` with the same device and as many ranks."""
        return tuple(tuple(part) for _, part in groupby(self.nodes, key=lambda node: (node.device, len(node.ranks))))

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(number of the node, local rank) of each rank."""
        place_of = {
            rank: (number, local) for number, node in enumerate(self.nodes) for local, rank in enumerate(node.ranks)
        }
        return tuple(place_of[rank] for rank in range(self.world_size))


def lay_out(plan: Plan, tool: str) -> Layout:
    """The plan's nodes: by their first rank where ranks follow nodes, else alike ones together.

    CannotExpress for a plan over several sites, for workers on one machine's CPU, and for TPUs.
    """
    sites = list(dict.fromkeys(device.site for device in plan.devices))
    if len(sites) > 1:
        _refuse(tool, "devices[].site", " and ".join(sites), "the nodes of one cluster")
    if plan.cluster.split(":")[0].lower() == LOCAL:
        _refuse(tool, "cluster", plan.cluster, "GPUs of a cluster (`cellplan run` starts workers on this machine)")
    tpus = [device.device for device in plan.devices if device.device.startswith("tpu-")]
    if tpus:
        _refuse(tool, "devices[].device", tpus[0], "GPUs, a process for each")
    on_node: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for device in plan.devices:
        on_node[device.node].append((device.index, device.rank))
    nodes = [
        NodeRanks(
            node=number,
            device=plan.devices[places[0][1]].device,
            ranks=tuple(rank for _, rank in sorted(places)),
        )
        for number, places in on_node.items()
    ]
    whole = _takes_whole_nodes(plan)
    by_rank = Layout(nodes=tuple(sorted(nodes, key=lambda node: min(node.ranks))), whole=whole)
    if by_rank.node_major:
        return by_rank
    kinds = list(dict.fromkeys((node.device, len(node.ranks)) for node in by_rank.nodes))
    alike = sorted(by_rank.nodes, key=lambda node: kinds.index((node.device, len(node.ranks))))
    return Layout(nodes=tuple(alike), whole=whole)


def device_notes(plan: Plan, layout: Layout, manager: str) -> tuple[str, ...]:
    """What is to be known where the plan takes some devices of a node only."""
    used = {(device.node, device.index) for device in plan.devices}
    first = all((node.node, index) in used for node in layout.nodes for index in range(len(node.ranks)))
    return () if first else (f"{manager} picks the GPUs of a node: of the plan's device indices only the order counts",)


def nodes_of_tp(plan: Plan, layout: Layout) -> int:
    """Over how many nodes the tensor-parallel ranks of a replica reach, at most."""
    number = {rank: node for rank, (node, _) in enumerate(layout.places)}
    return max(len({number[rank] for rank in group}) for stage in plan.stages for group in tp_groups(plan, stage))


def tp_groups(plan: Plan, stage: PlanStage) -> list[tuple[int, ...]]:
    """The ranks of a stage that share each layer's matrices, by the plan's `rank_axis_order`, fastest axis first."""
    axes = [axis for axis in plan.rank_axis_order if axis != "pp"]
    sizes = {"tp": stage.tp, "cp": stage.cp, "dp": stage.dp}
    groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    slowest_first = product(*(range(sizes[axis]) for axis in reversed(axes)))
    for rank, place in zip(stage.ranks, slowest_first, strict=True):
        groups[tuple(at for axis, at in zip(reversed(axes), place, strict=True) if axis != "tp")].append(rank)
    return [tuple(group) for group in groups.values()]


def job_name(plan: Plan, *, longest: int = 32) -> str:
    """The model's name as hosts and jobs may be called (RFC 1123)."""
    plain = re.sub(r"[^a-z0-9]+", "-", plan.model.name.lower()).strip("-")[:longest].strip("-")
    return plain if plain[:1].isalpha() else f"train-{plain}".strip("-")[:longest]


def describe(plan: Plan, layout: Layout) -> str:
    """What runs where, in a line."""
    counts = Counter((node.device, len(node.ranks)) for node in layout.nodes)
    where = " + ".join(f"{count} x {ranks} {device}" for (device, ranks), count in counts.items())
    name = re.sub(r"\s+", " ", plan.model.name)
    return f"{name}: {layout.world_size} ranks on {where}, from a cellplan plan"


def script_note(script: str | None) -> tuple[str, ...]:
    """A note that a placeholder stands for the training script."""
    return () if script else (f"{PLACEHOLDER} stands for your training script (--script)",)


def _takes_whole_nodes(plan: Plan) -> bool | None:
    """Whether the plan's ranks take all devices of their nodes; None where its cluster is a file, which this does not
    read, or nothing that is known."""
    if plan.cluster.endswith((".yaml", ".yml")):
        return None
    try:
        cluster = load_cluster(plan.cluster)
    except InputError:
        return None
    there = Counter(slot.node for slot in cluster.slots)
    return all(there[node] == count for node, count in Counter(device.node for device in plan.devices).items())


def _refuse(tool: str, key: str, found: object, expected: str) -> None:
    raise CannotExpress(tool=tool, key=key, found=found, expected=expected)
