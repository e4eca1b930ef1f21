"""What a plan puts on each uplink above the nodes: bytes an iteration and how fast, every axis by itself.

The bytes are those of `planner.one_job.pods.traffic`, the ways those of the estimator
(`estimator.communication.uplinks`): a collective goes around a ring of its nodes in the order of the ranks, an exchange
between all pairs, messages from each rank to its partner. Groups of all stages count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from estimator.communication.uplinks import (
    FabricArrays,
    Floats,
    Integers,
    Seats,
    add_loads,
    fabric_arrays,
    groups_of,
    meet,
    no_loads,
    seats_of,
)
from estimator.pricing.rank_groups import GroupAxis, group_layout
from estimator.pricing.recipe import Setup
from planner.one_job.pods.traffic import AxisBytes, neighbours, stage_bytes
from planner.shared.plan_network import AxisOnNetwork, AxisOnUplink, PlanNetwork, UplinkName, UplinkUse
from profiles.cluster import Cluster
from profiles.records import dataclass, replace

BINDS_BEYOND = 1 + 1e-9
"""Uplinks that carry exactly what the NICs below send do not bind, whatever rounding says."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Doors:
    """Where traffic is counted, by depth: out of the boxes of nodes, then out of the parts of each level. `rates` are
    bytes/s one direction, 0 where nothing sends; a part of depth i + 1 is called `names[i]`, None where the site has no
    such level."""

    arrays: FabricArrays
    rates: tuple[Floats, ...]
    names: tuple[tuple[UplinkName | None, ...], ...]


class _Tally:
    """What one axis puts on the doors, (2, parts) by depth, out and in; and in how many parts its groups are."""

    def __init__(self, doors: _Doors) -> None:
        self.sent: list[Floats] = [np.zeros((2, len(rates))) for rates in doors.rates]
        self.parts_met = [1] * len(doors.rates)

    def met(self, parts_met: Sequence[int]) -> None:
        """Note groups in so many parts."""
        self.parts_met = [max(before, now) for before, now in zip(self.parts_met, parts_met, strict=True)]


def network_use(setup: Setup, iteration_time_s: float) -> PlanNetwork | None:
    """Return what `setup` puts on the uplinks of its cluster an iteration of `iteration_time_s` seconds; None where
    nothing is known above the nodes. Raise InputError where a stage cannot be held so."""
    if not any(site.network.levels for site in setup.cluster.sites):
        return None
    doors = _doors(setup.cluster)
    tallies = _tallies(setup, doors)
    return PlanNetwork(
        levels=_level_names(setup.cluster),
        axes=tuple(_describe_axis(axis, tally, doors) for axis, tally in tallies.items()),
        uplinks=_describe_uplinks(tallies, doors, iteration_time_s),
    )


def _level_names(cluster: Cluster) -> tuple[str, ...]:
    depth = max(len(site.network.levels) for site in cluster.sites)
    names: list[dict[str, None]] = [{} for _ in range(depth)]
    for site in cluster.sites:
        for level, here in zip(site.network.levels, names, strict=False):
            here[level.name] = None
    return tuple("/".join(here) for here in names)


def _doors(cluster: Cluster) -> _Doors:
    fabric = fabric_arrays(cluster)
    boxes = _boxes(cluster)
    names: list[list[UplinkName | None]] = [[] for _ in fabric.part_of]
    ratios: list[list[float]] = [[] for _ in fabric.part_of]
    for site in cluster.sites:
        for depth in range(len(fabric.part_of)):
            levels = site.network.levels[depth : depth + 1]
            names[depth] += [
                UplinkName(site=site.name, level=level.name, part=part.name) for level in levels for part in level.parts
            ] or [None]
            ratios[depth] += [part.oversubscription for level in levels for part in level.parts] or [1.0]
    below = [
        np.bincount(part_of, fabric.nic_bytes_per_s, minlength=len(ratio))
        for part_of, ratio in zip(fabric.part_of, ratios, strict=True)
    ]
    of_boxes = np.bincount(boxes, fabric.nic_bytes_per_s, minlength=len(boxes)).astype(np.float64)
    return _Doors(
        arrays=replace(
            fabric,
            part_of=(boxes, *fabric.part_of),
            seconds_per_byte=(np.zeros(len(boxes)), *fabric.seconds_per_byte),
            spreads=((), *fabric.spreads),
            hops_s=(0.0, *fabric.hops_s),
        ),
        rates=(of_boxes, *(rate / np.array(ratio) for rate, ratio in zip(below, ratios, strict=True))),
        names=tuple(map(tuple, names)),
    )


def _boxes(cluster: Cluster) -> Integers:
    """The box of every node, called by its first one: itself, or the rack that one island joins."""
    boxes: list[int] = []
    for site in cluster.sites:
        for group in site.nodes:
            rack = max(1, group.island_size // group.devices)
            first = len(boxes)
            boxes += [first + number - number % rack for number in range(group.count)]
    return np.array(boxes, dtype=np.int64)


def _tallies(setup: Setup, doors: _Doors) -> dict[str, _Tally]:
    seats = [seats_of(setup.cluster, stage.slots) for stage in setup.stages]
    nodes = np.concatenate([each.nodes for each in seats])
    first = [0]
    for each in seats:
        first.append(first[-1] + len(each.nodes))
    tallies: dict[str, _Tally] = {}
    for part in stage_bytes(setup):
        tally = tallies.setdefault(part.axis, _Tally(doors))
        if part.axis in ("pp", "tied"):
            _add_messages(tally, setup, part, nodes, first, doors)
        else:
            _add_groups(tally, setup, part, seats[part.stage], doors)
    if "pp" in tallies:
        tallies["pp"].met(_chains_met(seats, doors))
    return tallies


def _add_groups(tally: _Tally, setup: Setup, part: AxisBytes, seats: Seats, doors: _Doors) -> None:
    """Count the collectives of one kind on one axis of a stage."""
    stride, size = group_layout(setup.stages[part.stage], cast("GroupAxis", part.axis))
    groups = groups_of(len(seats.nodes), stride, size)
    loads = no_loads(doors.arrays)
    add_loads(loads, doors.arrays, seats, groups)
    # Loads of rings are in what a rank sends its neighbour, those of exchanges in what it was given.
    exchanged = part.op == "all_to_all"
    unit_bytes = part.sent_bytes * (size / (size - 1) if exchanged else 1)
    for sent, load in zip(tally.sent, loads.by_way["exchange" if exchanged else "ring"], strict=True):
        sent += load * unit_bytes
    tally.met(meet(doors.arrays, seats, groups).parts_met)


def _add_messages(
    tally: _Tally, setup: Setup, part: AxisBytes, nodes: Integers, first: Sequence[int], doors: _Doors
) -> None:
    """Count what the ranks of a stage send to their partners in others."""
    for senders, receivers, share in neighbours(setup, part, first):
        met = []
        for sent, part_of in zip(tally.sent, doors.arrays.part_of, strict=True):
            ends = part_of[nodes[senders]], part_of[nodes[receivers]]
            apart = ends[0] != ends[1]
            for way, end in enumerate(ends):
                sent[way] += np.bincount(end[apart], minlength=sent.shape[1]) * (part.sent_bytes * share)
            met.append(1 + int(apart.any()))
        tally.met(met)


def _chains_met(seats: Sequence[Seats], doors: _Doors) -> list[int]:
    """In how many parts a pipeline is at most: stages of other sizes are joined in proportion."""
    most = max(len(each.nodes) for each in seats)
    steps = np.arange(most)
    chains = np.stack([each.nodes[steps * len(each.nodes) // most] for each in seats])
    met = []
    for part_of in doors.arrays.part_of:
        in_order = np.sort(part_of[chains], axis=0)
        met.append(1 + int((in_order[1:] != in_order[:-1]).sum(axis=0).max(initial=0)))
    return met


def _describe_axis(axis: str, tally: _Tally, doors: _Doors) -> AxisOnNetwork:
    seconds = [
        np.divide(sent.max(axis=0), rate, out=np.zeros(len(rate)), where=rate > 0)
        for sent, rate in zip(tally.sent, doors.rates, strict=True)
    ]
    nic_s = float(seconds[0].max())
    uplink_s, depth = max((float(row.max()), -depth) for depth, row in enumerate(seconds[1:]))
    busiest = doors.names[-depth][int(seconds[1 - depth].argmax())]
    reaches = [
        table.share(parts, message=axis == "pp")
        for parts, tables in zip(tally.parts_met, doors.arrays.spreads, strict=True)
        for table in tables
    ]
    return AxisOnNetwork(
        axis=axis,
        parts_met=tuple(tally.parts_met[1:]),
        reach=min(reaches, default=1.0),
        nic_s=nic_s,
        uplink_s=uplink_s,
        binds=busiest if uplink_s > nic_s * BINDS_BEYOND else None,
    )


def _describe_uplinks(tallies: dict[str, _Tally], doors: _Doors, iteration_time_s: float) -> tuple[UplinkUse, ...]:
    uses = []
    for depth, names in enumerate(doors.names, start=1):
        for number, name in enumerate(names):
            axes = tuple(
                AxisOnUplink(axis=axis, up_bytes=float(up), down_bytes=float(down))
                for axis, (up, down) in ((axis, tally.sent[depth][:, number]) for axis, tally in tallies.items())
                if up or down
            )
            if name is None or not axes:
                continue
            up_bytes, down_bytes = sum(each.up_bytes for each in axes), sum(each.down_bytes for each in axes)
            rate = float(doors.rates[depth][number])
            uses.append(
                UplinkUse(
                    uplink=name,
                    up_bytes=up_bytes,
                    down_bytes=down_bytes,
                    bytes_per_s=max(up_bytes, down_bytes) / iteration_time_s,
                    capacity_bytes_per_s=rate if rate > 0 else None,
                    axes=axes,
                )
            )
    return tuple(uses)
