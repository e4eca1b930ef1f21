"""What an iteration of a plan with named nodes takes where a cluster manager orders these nodes otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from models_zoo.user_code import names_code
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import read_plan
from planner.one_job.launchers.named_hosts import parts_of
from planner.one_job.pods.host_order import host_key
from planner.one_job.tools.base.export_records import OrderCosts
from planner.shared.inputs import open_existing
from planner.shared.options.running import ExportOptions
from planner.shared.plan import Plan
from profiles.cluster import DeviceSlot, host_of
from profiles.cluster_file import is_at_hand
from profiles.errors import InputError
from profiles.records import replace

Node = tuple[str, int]


def order_costs(plan: Plan, options: ExportOptions) -> OrderCosts | None:
    """Return what an iteration takes with the plan's nodes in other orders; None where its nodes have no names, have
    different numbers of ranks, or cannot be priced here: the cluster's files are elsewhere, or code makes the model."""
    named = all(device.host is not None for device in plan.devices)
    on_node = Counter((device.site, device.node, device.device) for device in plan.devices)
    at_hand = is_at_hand(plan.cluster) and not names_code(plan.model.reference)
    if not named or not at_hand or len({(device, count) for (_, _, device), count in on_node.items()}) > 1:
        return None
    parts = parts_of(plan)
    with open_existing(options.store) as store:
        try:
            (setup,) = read_plan(plan, where=str(options.plan), store=store, code=options.user_code).setups
        except InputError:
            return None
        names: dict[Node, str] = {}
        for stage in setup.stages:
            for slot in stage.slots:
                names.setdefault((slot.site, slot.node), host_of(setup.cluster, slot) or "")
        nodes = list(names)
        sorted_nodes = sorted(nodes, key=lambda node: host_key(names[node]))
        value_of = {} if parts is None else parts.value_of
        by_part: dict[str | None, list[Node]] = {}
        for node in sorted_nodes:
            by_part.setdefault(value_of.get(names[node]), []).append(node)
        lines = {part: iter(members) for part, members in by_part.items()}
        in_parts = [next(lines[value_of.get(names[node])]) for node in nodes]
        times = [
            evaluate_with_store(_reordered(setup, nodes, order), store=store)
            for order in (nodes, sorted_nodes, in_parts)
        ]
    seconds = [priced.iteration_time_s for priced in times if isinstance(priced, Evaluation)]
    return OrderCosts(time_s=seconds[0], by_name_s=seconds[1], in_parts_s=seconds[2]) if len(seconds) == 3 else None


def _reordered(setup: Setup, nodes: Sequence[Node], order: Sequence[Node]) -> Setup:
    """The plan with each node's ranks on the node that stands at its place in `order`."""
    there = dict(zip(nodes, order, strict=True))
    slot_at: dict[tuple[str, int, int], DeviceSlot] = {
        (slot.site, slot.node, slot.index): slot for stage in setup.stages for slot in stage.slots
    }
    stages = tuple(
        replace(stage, slots=tuple(slot_at[*there[slot.site, slot.node], slot.index] for slot in stage.slots))
        for stage in setup.stages
    )
    return replace(setup, stages=stages)
