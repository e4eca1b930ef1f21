"""What the cluster managers' formats share: which nodes in which order, names, and what the user is told."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import product

from planner.one_job.tools.base.export_records import CannotExpress
from planner.one_job.tools.base.nodes import Layout, nodes_of
from planner.one_job.tools.base.python_text import comment
from planner.shared.plan import Plan, PlanStage
from profiles.cluster_file import is_at_hand, load_cluster
from profiles.errors import InputError
from profiles.reference_nodes import LOCAL

PLACEHOLDER = "train.py"
"""The training script where the user named none."""

MASTER_PORT = 29500
"""PyTorch's usual port of the rendezvous (torch.distributed.run, 2.5)."""


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
    by_rank = nodes_of(plan)
    if by_rank.node_major:
        return by_rank
    kinds = list(dict.fromkeys((node.device, len(node.ranks)) for node in by_rank.nodes))
    return Layout(nodes=tuple(sorted(by_rank.nodes, key=lambda node: kinds.index((node.device, len(node.ranks))))))


def device_notes(plan: Plan, layout: Layout, manager: str) -> tuple[str, ...]:
    """What is to be known where the plan takes some devices of a node only."""
    used = {(device.node, device.index) for device in plan.devices}
    first = all((node.node, index) in used for node in layout.nodes for index in range(len(node.ranks)))
    return () if first else (f"{manager} picks the GPUs of a node: of the plan's device indices only the order counts",)


def gpus_of_nodes(plan: Plan, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The index of the device of each rank of every node, in the layout's order."""
    index = {device.rank: device.index for device in plan.devices}
    return tuple(tuple(index[rank] for rank in node.ranks) for node in layout.nodes)


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
    """What runs where, in a line that a comment or docstring can hold."""
    counts = Counter((node.device, len(node.ranks)) for node in layout.nodes)
    where = " + ".join(f"{count} x {ranks} {device}" for (device, ranks), count in counts.items())
    return comment(f"{plan.model.name}: {layout.world_size} ranks on {where}, from a cellplan plan")


def script_note(script: str | None) -> tuple[str, ...]:
    """A note that a placeholder stands for the training script."""
    return () if script else (f"{PLACEHOLDER} stands for your training script (--script)",)


def takes_whole_nodes(plan: Plan) -> bool | None:
    """Whether the plan's ranks take all devices of their nodes; None where its cluster is a file that is not here, or
    nothing that is known."""
    if not is_at_hand(plan.cluster):
        return None
    try:
        cluster = load_cluster(plan.cluster)
    except InputError:
        return None
    there = Counter(slot.node for slot in cluster.slots)
    return all(there[node] == count for node, count in Counter(device.node for device in plan.devices).items())


def _refuse(tool: str, key: str, found: object, expected: str) -> None:
    raise CannotExpress(tool=tool, key=key, found=found, expected=expected)
