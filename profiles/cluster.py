"""A cluster as records: sites of nodes of devices, and which link joins any two of its devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from profiles.vocabulary import Device, Link


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` equal nodes. An island is the set of devices that the fast link joins; `nics` is per node."""

    count: int
    device: Device
    devices: int
    island_link: Link
    island_size: int
    host_link: Link
    nic_link: Link
    nics: int
    free: int | None = None
    price_per_device_hour: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Nodes under one fabric. `oversubscription` >= 1 divides the bandwidth between nodes."""

    name: str
    nodes: tuple[NodeGroup, ...]
    fabric_link: Link
    oversubscription: float = 1.0
    pods: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """The thin link between two sites."""

    between: tuple[str, str]
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlot:
    """One place for a rank: `node` counts through the site, `index` within the node."""

    site: str
    node: int
    index: int
    group: int
    device: str


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Sites and the links between them. `text` is what the user wrote (a short form or a file's name)."""

    text: str
    sites: tuple[Site, ...]
    site_links: tuple[SiteLink, ...] = ()

    @cached_property
    def slots(self) -> tuple[DeviceSlot, ...]:
        """All device places in order: site, then node, then index within the node."""
        found: list[DeviceSlot] = []
        for site in self.sites:
            node = 0
            for number, group in enumerate(site.nodes):
                for _ in range(group.count):
                    found += [
                        DeviceSlot(site=site.name, node=node, index=i, group=number, device=group.device.name)
                        for i in range(group.devices)
                    ]
                    node += 1
        return tuple(found)

    @property
    def device_types(self) -> tuple[str, ...]:
        """Names of the device types, in order of first appearance."""
        return tuple(dict.fromkeys(group.device.name for site in self.sites for group in site.nodes))

    def site(self, name: str) -> Site:
        """The site called `name`; KeyError if there is none."""
        return next(s for s in self.sites if s.name == name)

    def group_of(self, slot: DeviceSlot) -> NodeGroup:
        """The node group that `slot` belongs to."""
        return self.site(slot.site).nodes[slot.group]
