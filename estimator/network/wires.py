"""All cables of a site as arrays, and what can be read off them: what tiers carry, how many equal ways there are.

Nodes come first, then switches, tier by tier. A cable carries its rate in each direction; parallel cables are one row
with their number. Of a site whose cluster file tells levels or pods alone, each part is a switch with one uplink that
is as wide as the file says: there is no telling how many cables it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from profiles.cluster import Site
from profiles.network import Network
from profiles.records import dataclass
from profiles.wiring import Clos, Torus, Wired

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

ALL_NICS, BETWEEN_SWITCHES = -1, -2
"""What stands in place of the number of a NIC: a row for all of a node's, a row that no node is at."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """So many switches of one kind."""

    name: str
    switches: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Wires:
    """A site's network. `ends` are the vertices that each row of cables joins, (rows, 2), the lower one first where one
    is nearer to the nodes; `counts` how many parallel cables a row is; `bytes_per_s` what one of them carries, one
    direction; `nics` which of its node's NICs a row leaves from (`ALL_NICS`, `BETWEEN_SWITCHES`); of these each node
    has `node_nics`."""

    nodes: int
    tiers: tuple[Tier, ...]
    names: tuple[str, ...]
    ends: Integers
    counts: Integers
    bytes_per_s: Floats
    nics: Integers
    node_nics: Integers

    @cached_property
    def tier_of(self) -> Integers:
        """Of each vertex: 0 for a node, else the number of its switch's tier, from 1."""
        sizes = [self.nodes, *(tier.switches for tier in self.tiers)]
        return np.repeat(np.arange(len(sizes)), sizes)

    @property
    def vertices(self) -> int:
        """Nodes and switches."""
        return len(self.names)

    @cached_property
    def around(self) -> tuple[Integers, Integers, Integers]:
        """Of each vertex the rows of cables at it and the vertices that they lead to, one vertex after the other, and
        where each one's begin."""
        rows = np.arange(len(self.ends))
        at = np.concatenate([self.ends[:, 0], self.ends[:, 1]])
        to = np.concatenate([self.ends[:, 1], self.ends[:, 0]])
        order = np.argsort(at, kind="stable")
        begins = np.searchsorted(at[order], np.arange(self.vertices + 1))
        return np.concatenate([rows, rows])[order], to[order], begins


class _Collector:
    """Collects rows of cables."""

    def __init__(self) -> None:
        self._parts: list[tuple[Integers, Integers, Integers, Floats, Integers]] = []

    def add(
        self, lower: Integers, upper: Integers, count: Integers | int, bytes_per_s: Floats | float, nics: Integers | int
    ) -> None:
        lower, upper, number, rates, of = np.broadcast_arrays(lower, upper, count, bytes_per_s, nics)
        self._parts.append((lower, upper, number, rates.astype(np.float64), of))

    def wires(self, node_nics: Integers, tiers: Sequence[tuple[str, int]], names: Sequence[str]) -> Wires:
        columns = [
            np.concatenate(column) if column else np.empty(0, np.int64) for column in zip(*self._parts, strict=True)
        ]
        lower, upper, counts, rates, nics = columns if columns else [np.empty(0, np.int64)] * 5
        return Wires(
            nodes=len(node_nics),
            tiers=tuple(Tier(name=name, switches=count) for name, count in tiers),
            names=tuple(names),
            ends=np.stack([lower, upper], axis=1),
            counts=counts,
            bytes_per_s=np.asarray(rates, dtype=np.float64),
            nics=nics,
            node_nics=node_nics,
        )


def wires_of(site: Site) -> Wires:
    """Return the wires of a site: line rates, not what copies reach of them."""
    names = list(site.network.hosts) or [f"node{number}" for number in range(sum(group.count for group in site.nodes))]
    nics = np.array([group.nics for group in site.nodes for _ in range(group.count)])
    rate = np.array([group.nic_bytes_per_s(site.fabric_link) for group in site.nodes for _ in range(group.count)])
    wiring = site.network.wiring
    if isinstance(wiring, Clos):
        return _clos(wiring, names, nics, rate)
    if isinstance(wiring, Torus):
        return _torus(wiring, names, nics)
    if isinstance(wiring, Wired):
        return _wired(wiring, names, nics, rate)
    return _tree(site.network, names, nics, rate)


def _clos(clos: Clos, names: list[str], nics: Integers, nic_rate: Floats) -> Wires:
    nodes, cables = len(names), _Collector()
    place = np.arange(nodes)
    leaf = nodes
    if clos.attachment == "one":
        cables.add(place, leaf + place // clos.nodes_below, *_side_by_side(nics, nic_rate), ALL_NICS)
    else:
        of, nic = _each_nic(nics)
        group = of // clos.nodes_below
        under = clos.leaves if clos.attachment == "rail" else 2
        cables.add(of, leaf + group * under + nic % under, 1, nic_rate[of], nic)
    leaves = leaf + np.arange(clos.pods * clos.leaves)
    above = leaf + len(leaves)
    if clos.aggregations:
        pod = np.repeat(np.arange(clos.pods), clos.leaves)
        for number in range(clos.aggregations):
            up = above + pod * clos.aggregations + number
            cables.add(leaves, up, clos.leaf_cables, clos.leaf_bytes_per_s, BETWEEN_SWITCHES)
        middle = above + np.arange(clos.pods * clos.aggregations)
        plane, size = np.arange(len(middle)) % clos.aggregations, clos.tops // clos.aggregations
        for number in range(size):
            top = above + len(middle) + plane * size + number
            cables.add(middle, top, clos.top_cables, clos.top_bytes_per_s, BETWEEN_SWITCHES)
    else:
        for number in range(clos.tops):
            cables.add(
                leaves, np.full(len(leaves), above + number), clos.leaf_cables, clos.leaf_bytes_per_s, BETWEEN_SWITCHES
            )
    return cables.wires(nics, clos.switches, [*names, *_switch_names(clos)])


def _side_by_side(nics: Integers, nic_rate: Floats) -> tuple[Integers, Floats]:
    """A node's NICs as parallel cables, and what one carries: of a node without any one cable of nothing."""
    return np.maximum(nics, 1), np.where(nics > 0, nic_rate, 0.0)


def _each_nic(nics: Integers) -> tuple[Integers, Integers]:
    """The node and the number in it of every NIC."""
    of = np.repeat(np.arange(len(nics)), nics)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(nics) - nics, nics)


def _switch_names(clos: Clos) -> Iterator[str]:
    for tier, count in clos.switches:
        yield from (f"{tier}{number}" for number in range(count))


def _torus(torus: Torus, names: list[str], nics: Integers) -> Wires:
    cables, place = _Collector(), np.arange(len(names)).reshape(torus.dimensions)
    for axis, size in enumerate(torus.dimensions):
        if size > 1:
            after = np.roll(place, -1, axis=axis)
            first = place if size > 2 else np.take(place, [0], axis=axis)
            second = after if size > 2 else np.take(after, [0], axis=axis)
            cables.add(first.ravel(), second.ravel(), 1, torus.bytes_per_s, ALL_NICS)
    return cables.wires(nics, (), names)


def _wired(wired: Wired, names: list[str], nics: Integers, nic_rate: Floats) -> Wires:
    """Switches in the tiers that their distance from the nodes makes. A node with more cables than its NICs fill shares
    out among them what these send."""
    far = wired.tiers
    deepest = max(far, default=0)
    order = sorted(range(len(wired.switches)), key=lambda switch: far[switch])
    number = {wired.nodes + switch: wired.nodes + place for place, switch in enumerate(order)}
    cables = _Collector()
    ends = np.sort([[number.get(end, end) for end in each.ends] for each in wired.cables], axis=1)
    counts = np.array([each.count for each in wired.cables])
    rates = np.array([each.bytes_per_s for each in wired.cables], dtype=np.float64)
    at_node = ends[:, 0] < wired.nodes
    sums = np.bincount(ends[at_node, 0], (counts * rates)[at_node], minlength=wired.nodes)
    rates[at_node] *= np.minimum(1.0, nics * nic_rate / np.maximum(sums, 1e-300))[ends[at_node, 0]]
    cables.add(ends[:, 0], ends[:, 1], counts, rates, np.where(at_node, ALL_NICS, BETWEEN_SWITCHES))
    tiers = [(f"tier {tier}", far.count(tier)) for tier in range(1, deepest + 1)]
    return cables.wires(nics, tiers, [*names, *(wired.switches[switch].name for switch in order)])


def _tree(network: Network, names: list[str], nics: Integers, nic_rate: Floats) -> Wires:
    nodes, cables = len(names), _Collector()
    below, first = np.arange(nodes), nodes
    tiers: list[tuple[str, int]] = []
    (count, up), sent = _side_by_side(nics, nic_rate), nics * nic_rate
    for level in network.levels:
        part_of = np.array(level.part_of)
        cables.add(below, first + part_of, count, up, BETWEEN_SWITCHES if tiers else ALL_NICS)
        sent = np.bincount(part_of, sent, minlength=len(level.parts)).astype(np.float64)
        count, up = np.ones(1, np.int64), sent / np.array([part.oversubscription for part in level.parts])
        below = first + np.arange(len(level.parts))
        first += len(level.parts)
        tiers.append((level.name, len(level.parts)))
        names = [*names, *(part.name for part in level.parts)]
    cables.add(below, np.full(len(below), first), count, up, BETWEEN_SWITCHES if tiers else ALL_NICS)
    return cables.wires(nics, [*tiers, ("above", 1)], [*names, "above"])
