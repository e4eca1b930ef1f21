"""A search with one thing changed: the cluster, the batch, or what is open; and the search made again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from estimator.pricing.evaluate import evaluate
from estimator.profiling.lookup import LOCAL_DEVICE
from planner.one_job.search.best import SAME, Best, Progress, find_best, find_best_parts
from planner.one_job.search.mixed.space import pricing_of
from planner.one_job.search.spaces.constraints import Constraints, Number
from planner.one_job.search.spaces.found import Found
from planner.one_job.search.spaces.request import DeviceSpace, SearchRequest, grown_memory
from planner.one_job.tools.base.shape import experts_of
from profiles.cluster import Cluster, NodeGroup, map_groups
from profiles.errors import NothingFits
from profiles.records import dataclass
from profiles.vocabulary import Device, Infeasible, LinkTable, RecomputeKind

Change = Callable[[Constraints], Constraints]

ALL = "all of these"
"""The name of a request without any of the user's constraints."""

FEWEST_FAMILIES = 300
MOST_TIMES = 3
"""A search that is made again prices at most so many families of plans, or so many times those of the first."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A search otherwise than it was asked for, and what is other about it."""

    name: str
    request: SearchRequest


def search_again(request: SearchRequest, first: Best | None, progress: Progress | None) -> Best | None:
    """The best plan of a changed request, None where nothing fits; with no more work than some times the first's."""
    limited, worth = _limited(request, first), math.inf if first is None else _worth(request, first)
    if math.isfinite(worth):
        try:
            return find_best(limited, below=worth * (1 + SAME), progress=progress)
        except NothingFits:
            # The first plan cuts the layers as no plan is cut there.
            pass
    try:
        return find_best(limited, progress=progress)
    except NothingFits:
        return None


def _worth(request: SearchRequest, first: Best) -> float:
    """What the first plan takes of the objective of a changed request, which allows it; infinite where it is not
    possible there."""
    winner = first.winner
    part = next((part for part in request.spaces if part.device == winner.space.device), None)
    if part is None or len(request.spaces) < len({slot.device for slot in request.cluster.free_slots}):
        return math.inf
    recipe = replace(winner.setup.recipe, global_batch=part.space.global_batch)
    setup = replace(winner.setup, cluster=request.cluster, recipe=recipe)
    evaluation = evaluate(setup, part.pricing if len(request.spaces) == 1 else pricing_of(request.spaces))
    if isinstance(evaluation, Infeasible) or evaluation.out_of_memory is not None:
        return math.inf
    return winner.found.value * evaluation.iteration_time_s / winner.evaluation.iteration_time_s


def search_narrower(
    request: SearchRequest, narrower: Sequence[Variant], first: Best | None, progress: Progress | None
) -> tuple[Best | None, ...]:
    """The best plans of a request under narrower constraints, as `search_again` finds them; those that allow the same
    recomputation are searched together: what has to be recomputed bounds all plans."""
    by_rules: dict[tuple[RecomputeKind, ...], list[int]] = {}
    for number, variant in enumerate(narrower):
        by_rules.setdefault(variant.request.spaces[0].space.constraints.recompute, []).append(number)
    best: dict[int, Best | None] = {}
    for kinds, numbers in by_rules.items():
        whole = _limited(with_constraints(request, lambda before: replace(before, recompute=kinds)), first)  # noqa: B023
        parts = [_limited(narrower[number].request, first) for number in numbers]
        best.update(zip(numbers, find_best_parts(whole, parts, progress=progress), strict=True))
    return tuple(best[number] for number in range(len(narrower)))


def _limited(request: SearchRequest, first: Best | None) -> SearchRequest:
    """The request with no more work than some times the first's."""
    priced = 0 if first is None else first.counts.families
    most = max(FEWEST_FAMILIES, MOST_TIMES * priced)
    return replace(request, limit=most if request.limit is None else min(most, request.limit))


def with_constraints(request: SearchRequest, change: Change) -> SearchRequest:
    """The request with other constraints on all devices."""
    return replace(
        request,
        spaces=tuple(
            replace(part, space=replace(part.space, constraints=change(part.space.constraints)))
            for part in request.spaces
        ),
    )


def with_batch(request: SearchRequest, global_batch: int) -> SearchRequest:
    """The request with another global batch."""

    def changed(part: DeviceSpace) -> DeviceSpace:
        recipe = replace(part.evaluator.recipe, global_batch=global_batch)
        return replace(
            part, space=replace(part.space, global_batch=global_batch), evaluator=replace(part.evaluator, recipe=recipe)
        )

    return replace(request, spaces=tuple(map(changed, request.spaces)))


def with_cluster(
    request: SearchRequest, cluster: Cluster, *, tables: Callable[[LinkTable], LinkTable] | None = None
) -> SearchRequest:
    """The request on another cluster of the same kinds of nodes; `tables` changes measured link tables too."""

    def changed(part: DeviceSpace) -> DeviceSpace:
        pricing = part.pricing
        if tables and pricing.link_tables:
            pricing = pricing.but(link_tables=[*map(tables, pricing.link_tables)])
        return replace(part, evaluator=replace(part.evaluator, cluster=cluster, pricing=pricing))

    return replace(request, cluster=cluster, spaces=tuple(map(changed, request.spaces)))


def with_device(request: SearchRequest, name: str, change: Callable[[Device], Device]) -> SearchRequest:
    """The request with other devices in place of those called `name`."""

    def changed(group: NodeGroup) -> NodeGroup:
        return replace(group, device=change(group.device)) if group.device.name == name else group

    return with_cluster(request, map_groups(request.cluster, changed))


def with_memory(request: SearchRequest, device: str, more_bytes: int) -> SearchRequest:
    """The request with so much more memory on each of the devices called `device`. Plans take as long as before, so
    what has been priced for the request is not priced again."""
    if more_bytes < 0:
        # With less memory the allocator reserves less: what fits is to be found out anew.
        return with_device(request, device, lambda base: replace(base, memory_bytes=base.memory_bytes + more_bytes))
    spaces = (
        replace(part, space=replace(part.space, more_memory_bytes=part.space.more_memory_bytes + more_bytes))
        if part.device == device
        else part
        for part in request.spaces
    )
    return replace(request, cluster=grown_memory(request.cluster, device, more_bytes), spaces=tuple(spaces))


def with_node(request: SearchRequest, part: DeviceSpace) -> SearchRequest:
    """The request with one node more like the first of `own`'s devices, and as many devices more to use."""
    group = request.cluster.group_of(part.space.slots[0])
    more = replace(group, count=group.count + 1, free=None if group.free is None else group.free + group.devices)
    cluster = map_groups(request.cluster, lambda other: more if other is group else other)
    grown = with_cluster(request, cluster)

    def longer(limits: Constraints) -> Constraints:
        def raised(numbers: Any) -> dict[Number, int]:
            return {name: value + group.devices * (name == "devices") for name, value in numbers.items()}

        return replace(limits, fix=raised(limits.fix), most=raised(limits.most))

    def changed(there: DeviceSpace) -> DeviceSpace:
        slots = tuple(slot for slot in cluster.free_slots if slot.device == there.device)
        return replace(there, space=replace(there.space, slots=slots))

    return with_constraints(replace(grown, spaces=tuple(map(changed, grown.spaces))), longer)


# What the user has fixed, and what else could be


OWN_OPTIONS = {"zero": "--zero", "micro_batch": "--micro-batch", "micro_batches": "--micro-batches"}
"""Options of the numbers that have one; the others are fixed with `--fix`."""


def lifted(request: SearchRequest) -> tuple[Variant, ...]:
    """The request with each of the user's constraints lifted in turn, named as the option that makes it."""
    part = request.spaces[0]
    limits, plain = part.space.constraints, Constraints()
    lifts: list[tuple[str, Change]] = []
    for name, value in limits.fix.items():
        option = OWN_OPTIONS.get(name)
        text = f"{option} {value}" if option else f"--fix {_named(name)}={value}"
        lifts.append((text, _without("fix", name)))
    for name, value in limits.least.items():
        lifts.append((f"--min {_named(name)}={value}", _without("least", name)))
    for name, value in limits.most.items():
        text = f"--devices {value}" if name == "devices" else f"--max {_named(name)}={value}"
        lifts.append((text, _without("most", name)))
    missing = [name for name in plain.schedules if name not in limits.schedules]
    if missing:
        every = (*limits.schedules, *missing)
        lifts.append((f"--schedule {','.join(limits.schedules)}", lambda before: replace(before, schedules=every)))
    if limits.recompute != plain.recompute:
        layers = "" if limits.recompute_layers is None else f":{limits.recompute_layers}"
        free = {"recompute": plain.recompute, "recompute_layers": None}
        lifts.append((f"--recompute {limits.recompute[0]}{layers}", lambda before: replace(before, **free)))  # type: ignore[arg-type]
    if not limits.offload and part.device != LOCAL_DEVICE:
        lifts.append(("--no-offload", lambda before: replace(before, offload=True)))
    if limits.shares_tokens is not None:
        named = "--sequence-parallel" if limits.shares_tokens else "--no-sequence-parallel"
        lifts.append((named, lambda before: replace(before, shares_tokens=None)))
    if limits.tool is not None:
        lifts.append((f"--tool {limits.tool}", lambda before: replace(before, tool=None)))
    if len(lifts) > 1:
        changes = tuple(change for _, change in lifts)
        lifts.append((ALL, lambda before: reduce(lambda limits, change: change(limits), changes, before)))
    return tuple(Variant(name=name, request=with_constraints(request, change)) for name, change in lifts)


def _without(kind: str, name: Number) -> Change:
    def change(limits: Constraints) -> Constraints:
        left = {other: value for other, value in getattr(limits, kind).items() if other != name}
        return replace(limits, **{kind: left})  # type: ignore[arg-type]

    return change


def _named(name: str) -> str:
    return name.replace("_", "-")


def neighbours(request: SearchRequest, plan: Found) -> tuple[Variant, ...]:
    """The request without the plan's choice, for each choice of the plan: the parts of the space on either side."""
    degrees, limits = plan.degrees, request.spaces[0].space.constraints
    chunks = len(plan.cut[0])
    numbers: list[tuple[str, Number, int, int]] = [
        ("tp", "tp", degrees.tp, 1),
        ("pp", "pp", degrees.pp, 1),
        ("cp", "cp", degrees.cp, 1),
        ("micro-batch", "micro_batch", degrees.samples, 1),
    ]
    if experts_of(request.model) is not None:
        numbers.append(("ep", "ep", degrees.ep, 1))
    if degrees.pp > 1:
        numbers.append(("chunks a stage", "vpp", chunks, 1))
    if degrees.dp * degrees.cp > 1:
        numbers.append(("ZeRO", "zero", plan.state.zero, 0))
    changes: list[tuple[str, Change]] = []
    for text, name, value, least in numbers:
        if name in limits.fix:
            continue
        if value > max(least, limits.least.get(name, least)):
            changes.append((f"{text} below {value}", _at_most(name, value - 1)))
        if value < limits.most.get(name, 1 << 60) and (name != "zero" or value < 3):
            changes.append((f"{text} above {value}", _at_least(name, value + 1)))
    kind = plan.rule[0]
    others = tuple(name for name in limits.recompute if (name == "none") != (kind == "none"))
    if others and limits.recompute_layers is None:
        rule = "recomputation" if kind == "none" else "no recomputation"
        changes.append((rule, lambda before: replace(before, recompute=others)))
    if plan.state.offload:
        changes.append(("optimizer on the devices", lambda before: replace(before, offload=False)))
    return tuple(Variant(name=name, request=with_constraints(request, change)) for name, change in changes)


def other_devices(request: SearchRequest, device: str) -> tuple[Variant, ...]:
    """The request on each of the types of devices but one."""
    return tuple(
        Variant(name=f"on {part.device}", request=replace(request, spaces=(part,)))
        for part in request.spaces
        if part.device != device
    )


def _at_most(name: Number, value: int) -> Change:
    return lambda limits: replace(limits, most={**limits.most, name: min(value, limits.most.get(name, value))})


def _at_least(name: Number, value: int) -> Change:
    return lambda limits: replace(limits, least={**limits.least, name: max(value, limits.least.get(name, value))})
