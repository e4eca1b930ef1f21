"""The hosts of a plan whose cluster names its nodes: in the order of its ranks, by the parts of the tree they are in,
and what an iteration takes where a manager orders them otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from planner.one_job.pods.host_order import host_key
from planner.one_job.site_pods.free_nodes import level_of_pods
from planner.one_job.tools.base.export_records import OrderCosts
from planner.one_job.tools.base.nodes import Layout
from planner.shared.inputs import load_any_place
from planner.shared.plan import Plan
from planner.shared.words import format_seconds
from profiles.cluster_file import files_of, is_at_hand
from profiles.errors import InputError
from profiles.files import read_text
from profiles.records import dataclass
from profiles.topology_writing import LABEL_PREFIX, level_label, part_label

EQUAL = 5e-4
"""Times closer than this share to another are told as equal."""
WIDTH = 100
"""Letters of a line of hosts in a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsOfHosts:
    """The parts of the level by which a job is placed: the level's name, the label of nodes that says their part, the
    label's value of every host. `known_label`: nodes carry it by themselves."""

    level: str
    label: str
    value_of: Mapping[str, str]
    known_label: bool


def hosts_of(plan: Plan, layout: Layout) -> tuple[str, ...] | None:
    """Return the names of the layout's nodes in its order; None where some have none."""
    names = {device.node: device.host for device in plan.devices}
    hosts = [names[node.node] for node in layout.nodes]
    return None if None in hosts else tuple(host for host in hosts if host is not None)


def parts_of(plan: Plan) -> PartsOfHosts | None:
    """Return the parts that the hosts of a plan's cluster are in; None where its files are not here, or have no
    parts."""
    if not is_at_hand(plan.cluster):
        return None
    try:
        site = load_any_place(plan.cluster).site(plan.devices[0].site)
    except (InputError, KeyError):
        return None
    network = site.network
    number = level_of_pods(network)
    if number is None or not network.hosts:
        return None
    level = network.levels[number]
    of_kubernetes = any(read_text(path).lstrip().startswith("{") for path in files_of(plan.cluster))
    label = level_label(level.name, known=of_kubernetes)
    row = network.part_of_node[number]
    return PartsOfHosts(
        level=level.name,
        label=label,
        value_of={host: part_label(level.parts[row[node]].name) for node, host in enumerate(network.hosts)},
        known_label=not label.startswith(LABEL_PREFIX),
    )


def by_name(hosts: Sequence[str]) -> list[str]:
    """Return hosts in the order in which Slurm numbers them."""
    return sorted(hosts, key=host_key)


def words_in_lines(words: Sequence[str]) -> str:
    """Return words with blanks between, in lines that can be read."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n  ".join(lines)


def megatrons_order(plan: Plan) -> str:
    """Return what the order of the hosts means to Megatron: nothing is changed in it."""
    stages = len(plan.stages)
    said = "Megatron's own order (tp-cp-ep-dp-pp: tp fastest, dp faster than pp) puts every rank where the plan has it"
    if plan.rank_axis_order != ("tp", "cp", "dp", "pp"):
        said = f"ranks are numbered {', '.join(plan.rank_axis_order)}, fastest first, which is not Megatron's order"
    together = "; without --use-tp-pp-dp-mapping, which lets pp run faster than dp" if stages > 1 else ""
    return f"rank i sits on the i-th slot of the hosts in this order: {said}{together}"


def cost_of_order(orders: OrderCosts | None, order: Literal["by_name_s", "in_parts_s"]) -> str:
    """Return what another order of the nodes costs an iteration, in words."""
    if orders is None:
        return "what that costs was not priced (the model, or the cluster's files, are not at hand)"
    more_s = getattr(orders, order) - orders.time_s
    if abs(more_s) < EQUAL * orders.time_s:
        return "that costs this plan nothing, by the estimate"
    return (
        f"an iteration then takes {format_seconds(getattr(orders, order))} in place of {format_seconds(orders.time_s)},"
        f" {abs(more_s) / orders.time_s:.1%} {'more' if more_s > 0 else 'less'}"
    )
