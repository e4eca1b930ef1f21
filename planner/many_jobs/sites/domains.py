"""What is near what inside a site: NVLink islands, nodes, racks and the parts of its network's tree, one inside the
other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any

from profiles.cluster import DeviceSlot, NodeGroup, Site
from profiles.network import Network
from profiles.records import dataclass

LEVELS = ("device", "island", "node", "rack", "pod", "site")
"""From near to far. A rack is an island of the fast link that spans nodes, a pod a part of the lowest level of the
network's tree; those of the levels above are called pod2, pod3, ..., between pods and the site."""


def levels_up_to(highest: int) -> tuple[str, ...]:
    """Return the levels of a site whose tree has so many, from near to far.

    >>> levels_up_to(3)[3:]
    ('rack', 'pod', 'pod2', 'pod3', 'site')
    """
    return (*LEVELS[:-1], *(f"pod{number}" for number in range(2, highest + 1)), LEVELS[-1])


def fabric_level(level: str) -> int:
    """Return which level of the network's tree, from 1, `level` is; 0 for none of them.

    >>> fabric_level("pod"), fabric_level("pod3"), fabric_level("node")
    (1, 3, 0)
    """
    number = level.removeprefix("pod")
    if number == level:
        return 0
    return int(number or 1) if not number or (number.isascii() and number.isdigit()) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Devices that are near each other at a level: `devices` of them, or `parts` of lower levels. Devices are numbered
    through the parts."""

    level: str
    devices: int = 0
    parts: tuple[Domain, ...] = ()

    def __post_init__(self) -> None:
        every = self.levels
        lower = every[: every.index(self.level)] if self.level in every[1:] else ()
        if not lower or bool(self.devices) == bool(self.parts) or self.devices < 0:
            raise ValueError(
                f"domain: level {self.level!r}, {self.devices} devices, {len(self.parts)} parts, expected one of"
                f" {LEVELS[1:]} with devices or parts"
            )
        wrong = [part.level for part in self.parts if part.level not in lower]
        if wrong:
            raise ValueError(f"domain: a {wrong[0]} in a {self.level}, expected parts of lower levels")

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that it may be made of: no part of a part is above it."""
        return levels_up_to(max(fabric_level(each) for each in (self.level, *(part.level for part in self.parts))))

    @property
    def size(self) -> int:
        """Its devices, those of parts included."""
        return self.devices or sum(part.size for part in self.parts)


def domain_of_site(site: Site, device: str) -> tuple[Domain, tuple[DeviceSlot, ...]]:
    """Return the domains of a site's devices of one type, and those devices in the order that numbers them. Raise
    ValueError if the site has no such device."""
    nodes: list[_Node] = []
    slots: list[Sequence[DeviceSlot]] = []
    rows = site.network.part_of_node if site.network.period != 1 else ()
    number = 0
    for position, group in enumerate(site.nodes):
        if group.device.name != device:
            number += group.count
            continue
        per_rack = max(1, group.island_size // group.devices)
        made = node_domain(group.devices, min(group.island_size, group.devices))
        for index in range(group.count):
            rack = (position, index // per_rack if per_rack > 1 else -1 - index)
            place = number - index % per_rack
            nodes.append(((*(row[place] for row in reversed(rows)), rack), made))
            slots.append(_slots(site.name, number, position, group))
            number += 1
    if not nodes:
        raise ValueError(f"site {site.name} has no devices of type {device}")
    order = sorted(range(len(nodes)), key=lambda place: nodes[place][0][:-1])
    nodes, slots = [nodes[place] for place in order], [slots[place] for place in order]
    return Domain(level="site", parts=_parts(nodes, len(rows), 0)), tuple(chain.from_iterable(slots))


def domain_of_nodes(network: Network, nodes: int, devices: int) -> tuple[Domain, tuple[int, ...]]:
    """Return the domains of so many nodes of so many devices each under a network's tree, and the nodes in the order
    that numbers them."""
    rows, made = (network.part_of_node if network.period != 1 else ()), node_domain(devices, devices)
    places = [((*(row[node] for row in reversed(rows)), (0, -1 - node)), made) for node in range(nodes)]
    order = sorted(range(nodes), key=lambda node: places[node][0][:-1])
    return Domain(level="site", parts=_parts([places[node] for node in order], len(rows), 0)), tuple(order)


_Node = tuple[tuple[Any, ...], Domain]
"""Where a node is, the number of its part by level from the highest down and at last its rack; and its domain."""


def _parts(nodes: Sequence[_Node], levels: int, depth: int) -> tuple[Domain, ...]:
    """What `nodes`, which share a part of the `depth` highest of so many levels, are made of; where all are in one part
    below too, what that is made of."""
    groups = [list(inside) for _, inside in groupby(nodes, key=lambda node: node[0][depth])]
    if depth == levels:
        racks: list[Domain] = []
        for in_rack in groups:
            parts = tuple(made for _, made in in_rack)
            racks += [Domain(level="rack", parts=parts)] if in_rack[0][0][depth][1] >= 0 else parts
        return tuple(racks)
    if len(groups) == 1:
        return _parts(nodes, levels, depth + 1)
    level = levels_up_to(levels)[LEVELS.index("pod") + levels - 1 - depth]
    return tuple(Domain(level=level, parts=_parts(inside, levels, depth + 1)) for inside in groups)


def node_domain(devices: int, island: int) -> Domain:
    """Return a node of islands of so many devices; islands of one device are none."""
    if island == 1 < devices:
        return Domain(level="node", devices=devices)
    return Domain(level="node", parts=(Domain(level="island", devices=island),) * (devices // island))


def _slots(site: str, node: int, group: int, nodes: NodeGroup) -> Sequence[DeviceSlot]:
    name = nodes.device.name
    return [DeviceSlot(site=site, node=node, index=i, group=group, device=name) for i in range(nodes.devices)]
