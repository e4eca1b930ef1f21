"""What is near what inside a site: NVLink islands, nodes, racks and pods, one inside the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby

from profiles.cluster import DeviceSlot, NodeGroup, Site
from profiles.records import dataclass

LEVELS = ("device", "island", "node", "rack", "pod", "site")
"""From near to far. A rack is an island of the fast link that spans nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Devices that are near each other at a level: `devices` of them, or `parts` of lower levels. Devices are numbered
    through the parts."""

    level: str
    devices: int = 0
    parts: tuple[Domain, ...] = ()

    def __post_init__(self) -> None:
        lower = LEVELS[: LEVELS.index(self.level)] if self.level in LEVELS[1:] else ()
        if not lower or bool(self.devices) == bool(self.parts) or self.devices < 0:
            raise ValueError(
                f"domain: level {self.level!r}, {self.devices} devices, {len(self.parts)} parts, expected one of"
                f" {LEVELS[1:]} with devices or parts"
            )
        wrong = [part.level for part in self.parts if part.level not in lower]
        if wrong:
            raise ValueError(f"domain: a {wrong[0]} in a {self.level}, expected parts of lower levels")

    @property
    def size(self) -> int:
        """Its devices, those of parts included."""
        return self.devices or sum(part.size for part in self.parts)


def domain_of_site(site: Site, device: str) -> tuple[Domain, tuple[DeviceSlot, ...]]:
    """Return the domains of a site's devices of one type, and those devices in the order that numbers them. Raise
    ValueError if the site has no such device."""
    nodes: list[tuple[int, tuple[int, int], Domain]] = []
    slots: list[Sequence[DeviceSlot]] = []
    pod_of_node = site.network.part_of_node[-1] if site.network.levels and site.network.period != 1 else None
    number = 0
    for position, group in enumerate(site.nodes):
        if group.device.name != device:
            number += group.count
            continue
        per_rack = max(1, group.island_size // group.devices)
        made = node_domain(group.devices, min(group.island_size, group.devices))
        for index in range(group.count):
            rack = (position, index // per_rack if per_rack > 1 else -1 - index)
            nodes.append((pod_of_node[number - index % per_rack] if pod_of_node else 0, rack, made))
            slots.append(_slots(site.name, number, position, group))
            number += 1
    if not nodes:
        raise ValueError(f"site {site.name} has no devices of type {device}")
    order = sorted(range(len(nodes)), key=lambda place: nodes[place][0])
    nodes, slots = [nodes[place] for place in order], [slots[place] for place in order]
    pods = []
    for _, in_pod in groupby(nodes, key=lambda node: node[0]):
        racks: list[Domain] = []
        for (_, rack), in_rack in groupby(in_pod, key=lambda node: node[1]):
            parts = tuple(made for _, _, made in in_rack)
            racks += [Domain(level="rack", parts=parts)] if rack >= 0 else parts
        pods.append(Domain(level="pod", parts=tuple(racks)))
    parts = tuple(pods) if len(pods) > 1 else pods[0].parts
    return Domain(level="site", parts=parts), tuple(chain.from_iterable(slots))


def node_domain(devices: int, island: int) -> Domain:
    """Return a node of islands of so many devices; islands of one device are none."""
    if island == 1 < devices:
        return Domain(level="node", devices=devices)
    return Domain(level="node", parts=(Domain(level="island", devices=island),) * (devices // island))


def _slots(site: str, node: int, group: int, nodes: NodeGroup) -> Sequence[DeviceSlot]:
    name = nodes.device.name
    return [DeviceSlot(site=site, node=node, index=i, group=group, device=name) for i in range(nodes.devices)]
