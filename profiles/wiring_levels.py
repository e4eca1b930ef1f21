"""The tree that switches and cables make above a site's nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from profiles.errors import InputError
from profiles.network import FabricLevel, FabricPart
from profiles.wiring import Cables, Clos, Torus, Wired, Wiring


def levels_of(wiring: Wiring, nic_bytes_per_s: Sequence[float]) -> tuple[FabricLevel, ...]:
    """Return the levels of the tree that switches and cables make above nodes whose NICs send so much together, from
    the nodes up; those of switches that nodes share alone. A torus has none.

    Raises:
        InputError: more nodes than leaves have room for, a node that no cable reaches or that hangs under two unlike
            switches, parts that nothing joins.
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
    """A part for each set of switches that nodes hang under; its uplinks are all other cables of these switches."""
    leaves: list[dict[int, float]] = [{} for _ in range(wired.nodes)]
    cables = [cable for cable in wired.cables if cable.bytes_per_s]
    for cable in cables:
        low, high = sorted(cable.ends)
        if low < wired.nodes <= high:
            leaves[low][high] = leaves[low].get(high, 0.0) + cable.count * cable.bytes_per_s
    for node, rates in enumerate(leaves):
        if not rates:
            raise _wrong("cables", f"none that is up at node {node}", "every node under a switch")
        if len(set(rates.values())) > 1:
            leaves_of = ", ".join(wired.switches[switch - wired.nodes].name for switch in sorted(rates))
            raise _wrong(
                "cables", f"node {node} under {leaves_of} with unequal cables", "equal ones to each of its leaves"
            )
    sets: dict[frozenset[int], int] = {}
    part_of = tuple(sets.setdefault(frozenset(rates), len(sets)) for rates in leaves)
    by_switch: dict[int, frozenset[int]] = {}
    for switches in sets:
        for switch in switches:
            if by_switch.setdefault(switch, switches) != switches:
                shared = wired.switches[switch - wired.nodes].name
                raise _wrong(
                    "cables", f"{shared} shared by nodes under unlike sets of leaves", "the same leaves for all"
                )
    _check_joined(wired, cables)
    if len(sets) == 1:
        return ()
    up = [0.0] * len(sets)
    for cable in cables:
        if min(cable.ends) >= wired.nodes:
            ends = [by_switch.get(end) for end in cable.ends]
            for end in ends if ends[0] != ends[1] else []:
                if end is not None:
                    up[sets[end]] += cable.count * cable.bytes_per_s
    sums = [0.0] * len(sets)
    for node, part in enumerate(part_of):
        sums[part] += nic_bytes_per_s[node]
    names = {part: "+".join(wired.switches[at - wired.nodes].name for at in sorted(its)) for its, part in sets.items()}
    parts = tuple(
        FabricPart(name=names[part], oversubscription=sums[part] / up[part] if sums[part] and up[part] else 1.0)
        for part in range(len(sets))
    )
    return (FabricLevel(name="leaf", parts=parts, part_of=part_of),)


def _check_joined(wired: Wired, cables: Sequence[Cables]) -> None:
    """Raise InputError where no way leads from some node to another."""
    root = list(range(wired.nodes + len(wired.switches)))

    def find(vertex: int) -> int:
        while root[vertex] != vertex:
            root[vertex] = root[root[vertex]]
            vertex = root[vertex]
        return vertex

    for cable in cables:
        root[find(cable.ends[0])] = find(cable.ends[1])
    apart = next((node for node in range(wired.nodes) if find(node) != find(0)), None)
    if apart is not None:
        raise _wrong("cables", f"no way from node 0 to node {apart}", "one fabric that joins all nodes")


def _wrong(key: str, found: object, expected: str) -> InputError:
    return InputError(where="site", key=f"fabric.topology.{key}", found=found, expected=expected)
