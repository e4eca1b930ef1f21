"""Which ranks of a stage form the groups of each axis, where the slowest of them sits, and how many share its links."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, get_args

from estimator.communication.algorithms import algorithm_lines
from estimator.communication.groups import Group, describe_group, describe_unshared, group_key, with_above
from estimator.communication.renumbered import SlotRun
from estimator.communication.runs import Run, describe_run, lay_out, run_key, seat_key
from estimator.communication.uplinks import shares_uplinks
from estimator.pricing.company import Company
from estimator.pricing.recipe import StageSetup
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass

GroupAxis = Literal["tp", "cp", "dp", "ep", "etp", "expert_dp", "shard", "replicate"]

REFERENCE_BYTES = 2.0**28
"""The slowest group of an axis is the one that gathers this many bytes last: enough for its links to matter."""


MOST_IN_MASK = 62
"""Devices of a node that a bit mask holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisGroup:
    """The slowest group of an axis, and how many groups of that axis have ranks where it has (`concurrent_groups` of
    `time_collective`): those of the same stage alone, counted on the node where they are most."""

    group: Group
    concurrent: int


def axis_groups(
    cluster: Cluster,
    stage: StageSetup,
    axis: GroupAxis | int,
    beside: Sequence[StageSetup] = (),
    company: Company | None = None,
) -> AxisGroup:
    """The slowest group of `axis` in `stage`, while all groups of that axis in the stages of `company` are busy too
    (None: in `stage` alone), which share uplinks above the nodes. `beside` are these stages where their degrees differ
    from those of `stage`.

    Ranks count tp fastest, then cp, then dp. `dp` is the dp * cp ranks of one tp index, which hold the same weights
    and sum their gradients; `shard` are runs of `stage.sharded_over` of these, `replicate` the ranks that hold the same
    part across such runs (ZeRO, HSDP). The experts fold all ranks anew, as Megatron does: `etp` fastest, then `ep`,
    then `expert_dp`, the ranks that hold the same experts. A number is for groups of so many consecutive ranks.

    Raises:
        ValueError: an unknown axis, or ep * etp does not divide the stage's ranks.
        InputError: the group spans nodes without NICs, or sites that no link joins.
    """
    stride, size = group_layout(stage, axis)
    if size > 1 and shares_uplinks(cluster):
        company = company or Company((stage.slots,))
        layouts = [group_layout(one, axis) for one in beside] or [(stride, size)] * len(company.stages)
        above = company.above(cluster, stage.slots, (stride, size), layouts)
        slowest = _slowest_on(*company.in_a_row(cluster, stage.slots), stride, size)
        return AxisGroup(group=with_above(slowest.group, above), concurrent=slowest.concurrent)
    return _slowest_on(cluster, stage.slots, stride, size)


def _slowest_on(cluster: Cluster, slots: tuple[DeviceSlot, ...], stride: int, size: int) -> AxisGroup:
    """The slowest group where no uplink is shared, or those that are do not count."""
    start = first_of_run(cluster, slots)
    if start is None:
        return _slowest(cluster, slots, stride, size)
    return _slowest_of_run(cluster, _alike(cluster, start, len(slots)), len(slots), stride, size)


def group_ranks(stage: StageSetup, axis: GroupAxis) -> Iterator[tuple[int, ...]]:
    """The ranks of every group of `axis`, as positions in `stage.slots`."""
    stride, size = group_layout(stage, axis)
    for start in _starts(len(stage.slots), stride, size):
        yield tuple(range(start, start + stride * size, stride))


def place_key(cluster: Cluster, slots: Sequence[DeviceSlot]) -> Hashable:
    """Return what every group of a stage's ranks depends on, beside degrees: where `slots` sit, equal for runs of slots
    that sit alike."""
    start = first_of_run(cluster, slots)
    if start is None:
        return tuple(slots)
    first, last = slots[0], slots[-1]
    if repeats_after(cluster) is not None or (first.site, first.group) != (last.site, last.group):
        return len(slots), _alike(cluster, start, len(slots))
    return _key_in_group(cluster, first, len(slots)) or (len(slots), start)


def group_layout(stage: StageSetup, axis: GroupAxis | int) -> tuple[int, int]:
    """Return the distance between neighbours of a group of `axis`, and its ranks: groups fill runs of distance * ranks.
    Raise ValueError for an unknown axis, or experts that do not divide the stage's ranks."""
    if isinstance(axis, int):
        return 1, axis
    ranks, tp, shard, experts = len(stage.slots), stage.tp, stage.sharded_over, stage.ep * stage.etp
    if axis not in get_args(GroupAxis):
        raise ValueError(f"axis_groups: found {axis!r}, expected one of {', '.join(get_args(GroupAxis))}")
    if ranks % experts:
        raise ValueError(f"axis_groups: ep={stage.ep} * etp={stage.etp} does not divide the stage's {ranks} ranks")
    layouts: dict[str, tuple[int, int]] = {
        "tp": (1, tp),
        "cp": (tp, stage.cp),
        "dp": (tp, stage.cp * stage.dp),
        "etp": (1, stage.etp),
        "ep": (stage.etp, stage.ep),
        "expert_dp": (experts, ranks // experts),
        "shard": (tp, shard),
        "replicate": (tp * shard, stage.replicas),
    }
    return layouts[axis]


def _key_in_group(cluster: Cluster, first: DeviceSlot, ranks: int) -> Hashable:
    """Where a run of that many slots sits that begins with `first`, all in one group of equal nodes among others; None
    where the parts of the fabric are unequal."""
    site = cluster.site(first.site)
    nodes, period = site.nodes[first.group], site.network.period
    if period is None:
        return None
    place = (first.node - sum(group.count for group in site.nodes[: first.group])) * nodes.devices + first.index
    return ranks, first.site, first.group, first.node % period, place % math.lcm(nodes.devices, nodes.island_size)


def _starts(ranks: int, stride: int, size: int) -> Iterator[int]:
    """The first rank of every group."""
    for block in range(0, ranks, stride * size):
        yield from range(block, block + stride)


def first_of_run(cluster: Cluster, slots: Sequence[DeviceSlot]) -> int | None:
    """Return where in the cluster's order the slots stand, if they follow it without a gap; else None."""
    if isinstance(slots, SlotRun):
        return slots.start
    first = slots[0]
    start = 0
    for site in cluster.sites:
        if site.name == first.site:
            for group in site.nodes[: first.group]:
                start += group.count * group.devices
            earlier = sum(group.count for group in site.nodes[: first.group])
            start += (first.node - earlier) * site.nodes[first.group].devices + first.index
            break
        start += sum(group.count * group.devices for group in site.nodes)
    return start if cluster.slots[start : start + len(slots)] == tuple(slots) else None


def _alike(cluster: Cluster, start: int, ranks: int) -> int:
    """The first place where a run of that many slots sits as the one from `start` does; itself where devices differ."""
    period = repeats_after(cluster)
    return start if period is None or start + ranks > len(cluster.slots) else start % period


def repeats_after(cluster: Cluster) -> int | None:
    """After so many slots everything repeats: nodes, islands that span nodes, parts of the fabric. None where nodes or
    parts are unequal."""
    site = cluster.sites[0]
    if len(cluster.sites) > 1 or len(site.nodes) > 1 or site.network.period is None:
        return None
    return math.lcm(site.nodes[0].devices * site.network.period, site.nodes[0].island_size)


def _period_in_island(cluster: Cluster, start: int, ranks: int) -> int | None:
    """After so many slots groups of these sit as before, where they are whole nodes of one island; else None."""
    group = cluster.sites[0].nodes[0]
    islands = start // group.island_size, (start + ranks - 1) // group.island_size
    whole_nodes = not (start % group.devices or ranks % group.devices)
    return group.devices if whole_nodes and islands[0] == islands[1] else None


@lru_cache(maxsize=8192)
def _slowest_of_run(cluster: Cluster, start: int, ranks: int, stride: int, size: int) -> AxisGroup:
    return _slowest_of(cluster, cluster.slots[start : start + ranks], stride, size, start)


@lru_cache(maxsize=256)
def _slowest(cluster: Cluster, slots: tuple[DeviceSlot, ...], stride: int, size: int) -> AxisGroup:
    return _slowest_of(cluster, slots, stride, size)


def _slowest_of(
    cluster: Cluster,
    slots: tuple[DeviceSlot, ...],
    stride: int,
    size: int,
    start: int | None = None,
) -> AxisGroup:
    """The slowest of the groups; of a run on equal nodes only those are looked at that sit differently, of others those
    that are described otherwise (`group_key`)."""
    if size == 1:
        return AxisGroup(group=describe_group(cluster, slots[:1]), concurrent=1)
    firsts = list(_starts(len(slots), stride, size))
    period = repeats_after(cluster)
    described: dict[tuple[Group, int], None] = {}
    if start is not None and period is not None:
        last = firsts[-1]
        period = _period_in_island(cluster, start, len(slots)) or period
        firsts = [*{(start + first) % period: first for first in reversed(firsts)}.values(), last]
        group = cluster.sites[0].nodes[0]
        if group.island_size <= group.devices <= MOST_IN_MASK:
            whole = lay_out(cluster, start, 1, len(slots))
            runs: dict[Hashable, tuple[Run, int]] = {}
            for first in firsts:
                run = lay_out(cluster, start + first, stride, size)
                on_node = whole.ranks_on_node[run.nodes - whole.nodes[0]]
                busy = int((-(-on_node // run.ranks_on_node)).max())
                runs.setdefault((run_key(cluster, run), busy), (run, busy))
            described = {(describe_run(cluster, run), busy): None for run, busy in runs.values()}
            firsts = []
        else:
            seats = {seat_key(cluster, start, len(slots), first, stride, size): first for first in reversed(firsts)}
            firsts = [*reversed(seats.values())]
    on_node = Counter((slot.site, slot.node) for slot in slots) if firsts else Counter()
    unshared: dict[Hashable, Group] = {}
    for first in firsts:
        members = slots[first : first + stride * size : stride]
        inside = Counter((slot.site, slot.node) for slot in members)
        busy = max(-(-on_node[node] // count) for node, count in inside.items())
        key = group_key(cluster, members)
        if key not in unshared:
            unshared[key] = describe_unshared(cluster, members)
        described[unshared[key], busy] = None
    candidates = [AxisGroup(group=group, concurrent=busy) for group, busy in described]
    return max(candidates, key=_reference_s)


def _reference_s(found: AxisGroup) -> float:
    if found.group.ranks == 1:
        return 0.0
    lines = algorithm_lines("all_gather", found.group, found.concurrent)
    return min(line.seconds(REFERENCE_BYTES) for line in lines)
