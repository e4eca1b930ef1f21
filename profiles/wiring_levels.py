"""The tree that switches and cables make above a site's nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from profiles.errors import InputError
from profiles.network import FabricLevel, FabricPart, level_names
from profiles.records import replace
from profiles.wiring import Clos, Torus, Wired, Wiring


def levels_of(wiring: Wiring, nic_bytes_per_s: Sequence[float]) -> tuple[FabricLevel, ...]:
    """Return the levels of the tree that switches and cables make above nodes whose NICs send so much together, from
    the nodes up; those of switches that nodes share alone. A torus has none.

    Raises:
        InputError: more nodes than leaves have room for, a node that no cable reaches or that hangs under two switches
            by unequal cables, parts that nothing joins.
    """
    if isinstance(wiring, Torus):
        size = math.prod(wiring.dimensions)
        if size != len(nic_bytes_per_s):
            raise _wrong("dimensions", f"{size} places", f"one for each of the site's {len(nic_bytes_per_s)} nodes")
        return ()
    if isinstance(wiring, Clos):
        return _clos_levels(wiring, nic_bytes_per_s)
    return _wired_levels(wiring, nic_bytes_per_s)


def _clos_levels(clos: Clos, nic_bytes_per_s: Sequence[float]) -> tuple[FabricLevel, ...]:
    room, nodes = clos.groups * clos.nodes_below, len(nic_bytes_per_s)
    if nodes > room:
        raise _wrong("nodes", f"{nodes} nodes", f"at most {room}: {clos.nodes_below} under each of {clos.groups}")
    used = -(-nodes // clos.nodes_below)
    if used > 1 and not (clos.tops or clos.aggregations):
        raise _wrong("spines", 0, f"1 or more: nothing else joins {used} pods")
    part_of = tuple(node // clos.nodes_below for node in range(nodes))
    up = {"one": 1, "rail": clos.leaves, "two": 2}[clos.attachment] * clos.leaf_up_bytes_per_s
    name = "pod" if clos.attachment == "rail" else "leaf"
    levels = [_level(name, part_of, used, [nic_bytes_per_s[node] for node in range(nodes)], up)]
    if clos.aggregations and clos.pods > 1:
        below = clos.groups // clos.pods
        part_of = tuple(part // below for part in range(used))
        sums = [0.0] * used
        for node, rate in enumerate(nic_bytes_per_s):
            sums[node // clos.nodes_below] += rate
        levels.append(_level("pod", part_of, -(-used // below), sums, clos.pod_up_bytes_per_s))
    return tuple(level for level in levels if len(level.parts) > 1)


def _level(name: str, part_of: tuple[int, ...], parts: int, rates: Sequence[float], up: float) -> FabricLevel:
    """A level of so many parts, each with uplinks of `up` bytes/s; `rates` is what sends below, by its members."""
    sums = [0.0] * parts
    for member, part in enumerate(part_of):
        sums[part] += rates[member]
    return FabricLevel(
        name=name,
        parts=tuple(
            FabricPart(name=f"{name}{number}", oversubscription=rate / up if rate and up else 1.0)
            for number, rate in enumerate(sums)
        ),
        part_of=part_of,
    )


def _wired_levels(wired: Wired, nic_bytes_per_s: Sequence[float]) -> tuple[FabricLevel, ...]:
    """Level t has a part for all that hangs together by switches up to tier t; its uplinks are the cables to switches
    of higher tiers. What divides nodes as the level below does is none."""
    _check_nodes(wired)
    cables = [cable for cable in wired.cables if cable.bytes_per_s]
    tier = [0] * wired.nodes + list(wired.tiers)
    joined = _Joined(len(tier))
    levels: list[FabricLevel] = []
    below, sums = tuple(range(wired.nodes)), list(nic_bytes_per_s)
    for number in range(1, max(wired.tiers, default=0) + 1):
        for cable in cables:
            if max(tier[end] for end in cable.ends) == number:
                joined.join(*cable.ends)
        numbers: dict[int, int] = {}
        part_of_node = tuple(numbers.setdefault(joined.root(node), len(numbers)) for node in range(wired.nodes))
        if len(numbers) == 1:
            return tuple(levels)
        up = [0.0] * len(numbers)
        for cable in cables:
            low, high = sorted(cable.ends, key=lambda end: tier[end])
            if tier[low] <= number < tier[high] and joined.root(low) in numbers:
                up[numbers[joined.root(low)]] += cable.count * cable.bytes_per_s
        part_of = tuple(dict(zip(below, part_of_node, strict=True)).values())
        below, sent = part_of_node, [0.0] * len(numbers)
        for member, part in enumerate(part_of):
            sent[part] += sums[member]
        sums = sent
        over = [rate / top if rate and top else 1.0 for rate, top in zip(sums, up, strict=True)]
        if levels and len(numbers) == len(levels[-1].parts):
            levels[-1] = _thinnest(levels[-1], over)
            continue
        name = level_names(len(levels) + 1)[-1]
        own = _switches_of(wired, joined, numbers) if number == 1 else [[] for _ in numbers]
        parts = (
            FabricPart(name=own[part][0] if len(own[part]) == 1 else f"{name}{part}", oversubscription=ratio)
            for part, ratio in enumerate(over)
        )
        levels.append(FabricLevel(name=name, parts=tuple(parts), part_of=part_of))
    apart = next(node for node in range(wired.nodes) if joined.root(node) != joined.root(0))
    raise _wrong("cables", f"no way from node 0 to node {apart}", "one fabric that joins all nodes")


def _thinnest(level: FabricLevel, over: Sequence[float]) -> FabricLevel:
    """The level with the greater oversubscription of each part: the same nodes pass both."""
    parts = (
        replace(part, oversubscription=max(part.oversubscription, ratio))
        for part, ratio in zip(level.parts, over, strict=True)
    )
    return replace(level, parts=tuple(parts))


def nodes_alone(wired: Wired, nodes: Sequence[int]) -> Wired:
    """Return the fabric under these nodes alone, in their order."""
    number = {node: place for place, node in enumerate(nodes)}
    number |= {wired.nodes + switch: len(nodes) + switch for switch in range(len(wired.switches))}
    cables = (
        replace(cable, ends=(number[cable.ends[0]], number[cable.ends[1]]))
        for cable in wired.cables
        if cable.ends[0] in number and cable.ends[1] in number
    )
    return Wired(nodes=len(nodes), switches=wired.switches, cables=tuple(cables))


class _Joined:
    """Which vertices hang together (Tarjan's union-find)."""

    def __init__(self, vertices: int) -> None:
        self._above = list(range(vertices))

    def root(self, vertex: int) -> int:
        while self._above[vertex] != vertex:
            self._above[vertex] = self._above[self._above[vertex]]
            vertex = self._above[vertex]
        return vertex

    def join(self, first: int, second: int) -> None:
        self._above[self.root(first)] = self.root(second)


def _switches_of(wired: Wired, joined: _Joined, numbers: Mapping[int, int]) -> list[list[str]]:
    """The names of the lowest switches of each part."""
    own: list[list[str]] = [[] for _ in numbers]
    for place, (switch, tier) in enumerate(zip(wired.switches, wired.tiers, strict=True)):
        part = numbers.get(joined.root(wired.nodes + place))
        if tier == 1 and part is not None:
            own[part].append(switch.name)
    return own


def _check_nodes(wired: Wired) -> None:
    """Raise InputError for a node that no cable reaches, or that hangs under switches by unequal cables."""
    leaves: list[dict[int, float]] = [{} for _ in range(wired.nodes)]
    for cable in wired.cables:
        low, high = sorted(cable.ends)
        if low < wired.nodes <= high and cable.bytes_per_s:
            leaves[low][high] = leaves[low].get(high, 0.0) + cable.count * cable.bytes_per_s
    for node, rates in enumerate(leaves):
        if not rates:
            raise _wrong("cables", f"none that is up at node {node}", "every node under a switch")
        if len(set(rates.values())) > 1:
            under = ", ".join(wired.switches[switch - wired.nodes].name for switch in sorted(rates))
            raise _wrong("cables", f"node {node} under {under} with unequal cables", "equal ones to each of its leaves")


def _wrong(key: str, found: object, expected: str) -> InputError:
    return InputError(where="site", key=f"fabric.topology.{key}", found=found, expected=expected)
