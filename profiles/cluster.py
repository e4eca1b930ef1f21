"""A cluster as records: sites of nodes of devices, and which link joins any two of its devices."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from profiles.errors import InputError
from profiles.limits import LIMITS
from profiles.network import PLAIN, Network
from profiles.pcie import PcieSwitch, check_pcie, nics_by_device
from profiles.records import dataclass
from profiles.vocabulary import Device, Link


def _require(holds: bool, *, where: str, key: str, found: object, expected: str) -> None:
    if not holds:
        raise InputError(where=where, key=key, found=found, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` equal nodes of `devices` each, `free` of the group's devices being free (None: all).

    An island is the set of devices that the fast link joins: the whole node, an equal part of it, or, where
    `island_size` is a multiple of `devices`, a rack of several nodes. `nics` is per node. `pcie`: what hangs under each
    PCIe switch of a node; empty where nobody said.
    """

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
    pcie: tuple[PcieSwitch, ...] = ()

    def __post_init__(self) -> None:
        check_pcie(self.pcie, devices=self.devices, nics=self.nics)
        total = self.count * self.devices
        for key, value, least in (
            ("count", self.count, 1),
            ("devices", self.devices, 1),
            ("island.size", self.island_size, 1),
            ("nics.count", self.nics, 0),
            ("price_per_device_hour", self.price_per_device_hour, 0),
            ("power_w", self.power_w, 0),
        ):
            _require(value is None or value >= least, where="nodes", key=key, found=value, expected=f"at least {least}")
        _require(
            not self.devices % self.island_size or not self.island_size % self.devices,
            where="nodes",
            key="island.size",
            found=f"{self.island_size} in a node of {self.devices} devices",
            expected="a divisor of the devices in a node, or a multiple for an island that spans nodes",
        )
        _require(
            self.free is None or 0 <= self.free <= total,
            where="nodes",
            key="free",
            found=self.free,
            expected=f"all, or a number from 0 to the group's {total} devices",
        )

    def nics_under(self, devices: Iterable[int]) -> int:
        """Return how many of a node's NICs its devices with these numbers can send by: those under their PCIe switches;
        where nobody said what hangs under which, all of them."""
        if not self.pcie:
            return self.nics
        by_device = nics_by_device(self.pcie, devices=self.devices, nics=self.nics)
        return len({by_device[device] for device in devices} - {-1})

    def nic_bytes_per_s(self, fabric: Link) -> float:
        """Return the line rate of one of a node's NICs at a fabric of such links, one direction."""
        return min(self.nic_link.bandwidth_bytes_per_s, fabric.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Nodes under one fabric; `network` is the tree above them, and what the nodes are called."""

    name: str
    nodes: tuple[NodeGroup, ...]
    fabric_link: Link
    network: Network = PLAIN

    def __post_init__(self) -> None:
        _require(bool(self.name), where="site", key="name", found="an empty name", expected="a name")
        _require(bool(self.nodes), where="site", key="nodes", found="none", expected="one or more groups of nodes")
        self.network.check(sum(group.count for group in self.nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """The thin link between two sites."""

    between: tuple[str, str]
    bandwidth_bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        first, second = self.between
        _require(first != second, where="site link", key="between", found=f"{first} twice", expected="two sites")
        _require(
            self.bandwidth_bytes_per_s > 0,
            where="site link",
            key="bandwidth_bytes_per_s",
            found=self.bandwidth_bytes_per_s,
            expected="more than 0",
        )
        _require(self.latency_s >= 0, where="site link", key="latency_s", found=self.latency_s, expected="at least 0")


def most_on_one_node(slots: Sequence[DeviceSlot]) -> int:
    """Return how many of `slots` share a node, at most."""
    return max(Counter((slot.site, slot.node) for slot in slots).values())


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
    """Sites and the links between them. `text` is what the user wrote (a short form or a file's name).

    `notes` says what was taken from the catalogue because the user did not write it: assumptions to print.
    """

    text: str
    sites: tuple[Site, ...]
    site_links: tuple[SiteLink, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [site.name for site in self.sites]
        _require(bool(names), where="cluster", key="sites", found="none", expected="one or more sites")
        for number, name in enumerate(names):
            _require(
                name not in names[:number],
                where="cluster",
                key=f"sites[{number}].name",
                found=f"{name!r} a second time",
                expected="each site's own name",
            )
        devices: dict[str, Device] = {}
        for group in (group for site in self.sites for group in site.nodes):
            _require(
                devices.setdefault(group.device.name, group.device) == group.device,
                where="cluster",
                key="device",
                found=f"two different devices called {group.device.name!r}",
                expected="one definition for each name",
            )
        joined: set[frozenset[str]] = set()
        for number, link in enumerate(self.site_links):
            key = f"links_between_sites[{number}].between"
            unknown = [name for name in link.between if name not in names]
            _require(
                not unknown,
                where="cluster",
                key=key,
                found=f"no site called {', '.join(unknown)}",
                expected=f"two of {', '.join(names)}",
            )
            pair = frozenset(link.between)
            _require(
                pair not in joined, where="cluster", key=key, found="the same sites again", expected="each pair once"
            )
            joined.add(pair)
        total = sum(group.count * group.devices for site in self.sites for group in site.nodes)
        LIMITS.devices.check(total, where="cluster", key="sites")
        LIMITS.device_types.check(len(devices), where="cluster", key="sites")

    @cached_property
    def slots(self) -> tuple[DeviceSlot, ...]:
        """All device places in order: site, then node, then index within the node."""
        slots: list[DeviceSlot] = []
        for site in self.sites:
            node = 0
            for number, group in enumerate(site.nodes):
                for _ in range(group.count):
                    slots += [
                        DeviceSlot(site=site.name, node=node, index=i, group=number, device=group.device.name)
                        for i in range(group.devices)
                    ]
                    node += 1
        return tuple(slots)

    @cached_property
    def free_slots(self) -> tuple[DeviceSlot, ...]:
        """The device places that are free: of each group of nodes the first `free`, in the order of `slots`. Of a
        site's devices of one type those of whole nodes come before those of nodes that are partly free, of which those
        with most: no group that a node holds is then cut by a node that is not whole."""
        left = {(site.name, i): group.free for site in self.sites for i, group in enumerate(site.nodes)}
        free_slots = []
        for slot in self.slots:
            free = left[slot.site, slot.group]
            if free is not None:
                if not free:
                    continue
                left[slot.site, slot.group] = free - 1
            free_slots.append(slot)
        return self._whole_nodes_first(free_slots)

    def _whole_nodes_first(self, free_slots: list[DeviceSlot]) -> tuple[DeviceSlot, ...]:
        on_node = Counter((slot.site, slot.node) for slot in free_slots)
        devices = {(site.name, i): group.devices for site in self.sites for i, group in enumerate(site.nodes)}
        partly = {
            (slot.site, slot.node): -on_node[slot.site, slot.node]
            for slot in free_slots
            if on_node[slot.site, slot.node] < devices[slot.site, slot.group]
        }
        if not partly:
            return tuple(free_slots)
        places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for number, slot in enumerate(free_slots):
            places[slot.site, slot.device].append(number)
        ordered = list(free_slots)
        for numbers in places.values():
            members = [free_slots[number] for number in numbers]
            members.sort(key=lambda slot: partly.get((slot.site, slot.node), -math.inf))
            for number, slot in zip(numbers, members, strict=True):
                ordered[number] = slot
        return tuple(ordered)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Counted once: a cluster is the key of caches, and may have thousands of links."""
        return hash((self.text, self.sites, self.site_links, self.notes))

    @cached_property
    def known_groups(self) -> dict[Hashable, object]:
        """A cache of whoever describes groups of slots: nothing of it is part of the cluster."""
        return {}

    @property
    def device_types(self) -> tuple[str, ...]:
        """Names of the device types, in order of first appearance."""
        return tuple(dict.fromkeys(group.device.name for site in self.sites for group in site.nodes))

    def site(self, name: str) -> Site:
        """Return the site called `name`. Raise KeyError if there is none."""
        return self._sites_by_name[name]

    @cached_property
    def _sites_by_name(self) -> dict[str, Site]:
        return {site.name: site for site in self.sites}

    def group_of(self, slot: DeviceSlot) -> NodeGroup:
        """Return the node group that `slot` belongs to."""
        return self.site(slot.site).nodes[slot.group]


def host_of(cluster: Cluster, slot: DeviceSlot) -> str | None:
    """Return what the node of `slot` is called; None where the cluster does not name its nodes."""
    hosts = cluster.site(slot.site).network.hosts
    return hosts[slot.node] if hosts else None


def map_groups(cluster: Cluster, change: Callable[[NodeGroup], NodeGroup]) -> Cluster:
    """Return the cluster with each group of nodes changed."""
    sites = (replace(site, nodes=tuple(map(change, site.nodes))) for site in cluster.sites)
    return replace(cluster, sites=tuple(sites))
