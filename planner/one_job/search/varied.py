"""A search with one thing changed: the cluster, the batch, or what is open; and the search made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from estimator.profiling.lookup import LOCAL_DEVICE
from models_zoo.layers import Experts, TransformerBlock
from planner.one_job.search.best import Best, Progress, find_best
from planner.one_job.search.spaces.constraints import Constraints, Number
from planner.one_job.search.spaces.found import Found
from planner.one_job.search.spaces.request import DeviceSpace, SearchRequest
from profiles.cluster import Cluster, NodeGroup
from profiles.errors import NothingFits
from profiles.vocabulary import Device, LinkTable

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
    priced = 0 if first is None else first.counts.families
    most = max(FEWEST_FAMILIES, MOST_TIMES * priced)
    limit = most if request.limit is None else min(most, request.limit)
    try:
        return find_best(replace(request, limit=limit), progress=progress)
    except NothingFits:
        return None


def with_constraints(request: SearchRequest, change: Change) -> SearchRequest:
    """The request with other constraints on all devices."""
    return replace(
        request,
        spaces=tuple(
            replace(own, space=replace(own.space, constraints=change(own.space.constraints))) for own in request.spaces
        ),
    )


def with_batch(request: SearchRequest, global_batch: int) -> SearchRequest:
    """The request with another global batch."""

    def changed(own: DeviceSpace) -> DeviceSpace:
        recipe = replace(own.evaluator.recipe, global_batch=global_batch)
        return replace(
            own, space=replace(own.space, global_batch=global_batch), evaluator=replace(own.evaluator, recipe=recipe)
        )

    return replace(request, spaces=tuple(map(changed, request.spaces)))


def with_cluster(
    request: SearchRequest, cluster: Cluster, *, tables: Callable[[LinkTable], LinkTable] | None = None
) -> SearchRequest:
    """The request on another cluster of the same kinds of nodes; `tables` changes measured link tables too."""

    def changed(own: DeviceSpace) -> DeviceSpace:
        pricing = own.pricing.but(link_tables=[*map(tables, own.pricing.link_tables)]) if tables else own.pricing
        return replace(own, evaluator=replace(own.evaluator, cluster=cluster, pricing=pricing))

    return replace(request, cluster=cluster, spaces=tuple(map(changed, request.spaces)))


def with_device(request: SearchRequest, name: str, change: Callable[[Device], Device]) -> SearchRequest:
    """The request with other devices in place of those called `name`."""

    def changed(group: NodeGroup) -> NodeGroup:
        return replace(group, device=change(group.device)) if group.device.name == name else group

    return with_cluster(request, map_groups(request.cluster, changed))


def with_node(request: SearchRequest, own: DeviceSpace) -> SearchRequest:
    """The request with one node more like the first of `own`'s devices, and as many devices more to use."""
    group = request.cluster.group_of(own.space.slots[0])
    more = replace(group, count=group.count + 1, free=None if group.free is None else group.free + group.devices)
    cluster = map_groups(request.cluster, lambda other: more if other is group else other)
    grown = with_cluster(request, cluster)

    def longer(limits: Constraints) -> Constraints:
        def raised(known: Any) -> dict[Number, int]:
            return {name: value + group.devices * (name == "devices") for name, value in known.items()}

        return replace(limits, fix=raised(limits.fix), most=raised(limits.most))

    def changed(one: DeviceSpace) -> DeviceSpace:
        slots = tuple(slot for slot in cluster.free_slots if slot.device == one.device)
        return replace(one, space=replace(one.space, slots=slots))

    return with_constraints(replace(grown, spaces=tuple(map(changed, grown.spaces))), longer)


def map_groups(cluster: Cluster, change: Callable[[NodeGroup], NodeGroup]) -> Cluster:
    """The cluster with each group of nodes changed."""
    sites = (replace(site, nodes=tuple(map(change, site.nodes))) for site in cluster.sites)
    return replace(cluster, sites=tuple(sites))


# What the user has fixed, and what else could be


OWN_OPTIONS = {"zero": "--zero", "micro_batch": "--micro-batch", "micro_batches": "--micro-batches"}
"""Options of the numbers that have one; the others are fixed with `--fix`."""


def lifted(request: SearchRequest) -> tuple[Variant, ...]:
    """The request with each of the user's constraints lifted in turn, named as the option that makes it."""
    own = request.spaces[0]
    limits, plain = own.space.constraints, Constraints()
    found: list[tuple[str, Change]] = []
    for name, value in limits.fix.items():
        option = OWN_OPTIONS.get(name)
        text = f"{option} {value}" if option else f"--fix {_named(name)}={value}"
        found.append((text, _without("fix", name)))
    for name, value in limits.least.items():
        found.append((f"--min {_named(name)}={value}", _without("least", name)))
    for name, value in limits.most.items():
        text = f"--devices {value}" if name == "devices" else f"--max {_named(name)}={value}"
        found.append((text, _without("most", name)))
    missing = [name for name in plain.schedules if name not in limits.schedules]
    if missing:
        every = (*limits.schedules, *missing)
        found.append((f"--schedule {','.join(limits.schedules)}", lambda one: replace(one, schedules=every)))
    if limits.recompute != plain.recompute:
        layers = "" if limits.recompute_layers is None else f":{limits.recompute_layers}"
        free = {"recompute": plain.recompute, "recompute_layers": None}
        found.append((f"--recompute {limits.recompute[0]}{layers}", lambda one: replace(one, **free)))  # type: ignore[arg-type]
    if not limits.offload and own.device != LOCAL_DEVICE:
        found.append(("--no-offload", lambda one: replace(one, offload=True)))
    if limits.tool is not None:
        found.append((f"--tool {limits.tool}", lambda one: replace(one, tool=None)))
    if len(found) > 1:
        changes = tuple(change for _, change in found)
        found.append((ALL, lambda one: reduce(lambda limits, change: change(limits), changes, one)))
    return tuple(Variant(name=name, request=with_constraints(request, change)) for name, change in found)


def _without(kind: str, name: Number) -> Change:
    def change(limits: Constraints) -> Constraints:
        left = {other: value for other, value in getattr(limits, kind).items() if other != name}
        return replace(limits, **{kind: left})  # type: ignore[arg-type]

    return change


def _named(name: str) -> str:
    return name.replace("_", "-")


def neighbours(request: SearchRequest, found: Found, device: str) -> tuple[Variant, ...]:
    """The request without the plan's choice, for each choice of the plan that was found on devices of a type: the parts
    of the space on either side."""
    experts = any(
        isinstance(layer, TransformerBlock) and isinstance(layer.feed_forward, Experts)
        for layer in request.model.layers
    )
    degrees, limits = found.degrees, request.spaces[0].space.constraints
    chunks = len(found.cut[0])
    numbers: list[tuple[str, Number, int, int]] = [
        ("tp", "tp", degrees.tp, 1),
        ("pp", "pp", degrees.pp, 1),
        ("cp", "cp", degrees.cp, 1),
        ("micro-batch", "micro_batch", degrees.samples, 1),
    ]
    if experts:
        numbers.append(("ep", "ep", degrees.ep, 1))
    if degrees.pp > 1:
        numbers.append(("chunks a stage", "vpp", chunks, 1))
    if degrees.dp * degrees.cp > 1:
        numbers.append(("ZeRO", "zero", found.state.zero, 0))
    changes: list[tuple[str, Change]] = []
    for text, name, value, least in numbers:
        if name in limits.fix:
            continue
        if value > max(least, limits.least.get(name, least)):
            changes.append((f"{text} below {value}", _at_most(name, value - 1)))
        if value < limits.most.get(name, 1 << 60) and (name != "zero" or value < 3):
            changes.append((f"{text} above {value}", _at_least(name, value + 1)))
    kind = found.rule[0]
    others = tuple(name for name in limits.recompute if (name == "none") != (kind == "none"))
    if others and limits.recompute_layers is None:
        rule = "recomputation" if kind == "none" else "no recomputation"
        changes.append((rule, lambda one: replace(one, recompute=others)))
    if found.state.offload:
        changes.append(("optimizer on the devices", lambda one: replace(one, offload=False)))
    found_there = [Variant(name=name, request=with_constraints(request, change)) for name, change in changes]
    return (*found_there, *_other_devices(request, device))


def _other_devices(request: SearchRequest, device: str) -> list[Variant]:
    """Plans on the other types of devices alone."""
    return [
        Variant(name=f"on {own.device}", request=replace(request, spaces=(own,)))
        for own in request.spaces
        if own.device != device
    ]


def _at_most(name: Number, value: int) -> Change:
    return lambda limits: replace(limits, most={**limits.most, name: min(value, limits.most.get(name, value))})


def _at_least(name: Number, value: int) -> Change:
    return lambda limits: replace(limits, least={**limits.least, name: max(value, limits.least.get(name, value))})
