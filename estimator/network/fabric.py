"""A cluster's network as its jobs find it: links, the rule of ways, which NIC each device sends by, who needs none."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from estimator.network.links import Links, links_of_cluster, name_among_sites
from estimator.network.pcie_links import PcieWays, with_pcie
from estimator.network.wires import Integers
from profiles.cluster import Cluster, NodeGroup, Site
from profiles.errors import InputError
from profiles.pcie import nics_by_device
from profiles.records import dataclass, replace
from profiles.routing import Routing, RoutingKind
from profiles.wiring import Clos, Torus


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank of a job sits: the number of its node through all sites, and its device in that."""

    node: int
    device: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl:
    """How NCCL opens connections: queue pairs for each (NCCL_IB_QPS_PER_CONNECTION), and whether every message is cut
    up among them (NCCL_IB_SPLIT_DATA_ON_QPS) or they take messages in turn."""

    queue_pairs: int = 1
    split_data: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.queue_pairs <= 128:
            raise ValueError(f"{self.queue_pairs} queue pairs for a connection; expected 1 to 128")


@dataclass(frozen=True, kw_only=True, eq=False)
class Fabric:
    """`links`, and how they are taken. `box_of_node` is equal for nodes that one island joins: between them nothing
    passes the network. NIC `nic_of_device[device_begins[n] + d]`, numbered through the network, is that of device d of
    node n, -1 where it has none. `hands_over`: a device whose NIC is not on the rail of the receiver hands its data
    over to one in its node whose NIC is (NCCL's PXN), as it must where nothing joins rails."""

    links: Links
    routing: Routing
    box_of_node: Integers
    device_begins: Integers
    nic_of_device: Integers
    hands_over: bool = False
    nccl: Nccl = Nccl()
    pcie: PcieWays | None = None

    def device(self, seat: Seat) -> int:
        """Return the number of a device through all nodes. Raise ValueError for a seat that there is not."""
        nodes = len(self.device_begins) - 1
        if (
            0 <= seat.node < nodes
            and 0 <= seat.device < self.device_begins[seat.node + 1] - self.device_begins[seat.node]
        ):
            return int(self.device_begins[seat.node]) + seat.device
        raise ValueError(f"device {seat.device} of node {seat.node}; expected a device of one of {nodes} nodes")

    @cached_property
    def device_of_nic(self) -> Integers:
        """The first device that sends by each NIC; -1 for none."""
        devices = np.full(self.links.nics, -1)
        sends = np.flatnonzero(self.nic_of_device >= 0)[::-1]
        devices[self.nic_of_device[sends]] = sends
        return devices

    @cached_property
    def node_numbers(self) -> dict[str, int]:
        """The number of each node by its name."""
        return {name: number for number, name in enumerate(self.links.names[: self.links.nodes])}


def fabric_of(cluster: Cluster, *, routing: Routing | None = None, nccl: Nccl | None = None) -> Fabric:
    """Return the network of a cluster; `routing` is its own where none is given (`routing_of`), and knows the ways that
    the cluster's file knows."""
    groups = [group for site in cluster.sites for group in site.nodes]
    nodes = np.array([group.count for group in groups])
    devices = np.repeat([group.devices for group in groups], nodes)
    links, pcie = with_pcie(groups, links_of_cluster(cluster))
    sent_by = [nics_by_device(group.pcie, devices=group.devices, nics=group.nics) for group in groups]
    begins = np.concatenate([[0], np.cumsum(devices)])
    own = np.concatenate([np.tile(by_device, group.count) for by_device, group in zip(sent_by, groups, strict=True)])
    first = np.repeat(links.nic_begins[:-1], devices)
    return Fabric(
        links=links,
        routing=_with_known_paths(routing, cluster) if routing else routing_of(cluster),
        box_of_node=_boxes(groups),
        device_begins=begins,
        nic_of_device=np.where(own >= 0, first + own, -1),
        hands_over=all(_has_apart_rails(site) for site in cluster.sites),
        nccl=nccl or Nccl(),
        pcie=pcie,
    )


def _boxes(groups: list[NodeGroup]) -> Integers:
    """The first node of the island that spans each node, else the node itself."""
    boxes: list[Integers] = []
    first = 0
    for group in groups:
        rack = max(1, group.island_size // group.devices)
        boxes.append(first + np.arange(group.count) // rack * rack)
        first += group.count
    return np.concatenate(boxes)


def _has_apart_rails(site: Site) -> bool:
    wiring = site.network.wiring
    return isinstance(wiring, Clos) and wiring.attachment == "rail"


def routing_of(cluster: Cluster) -> Routing:
    """Return how a cluster's network routes: as its file says, else in a torus by dimension order, over InfiniBand by
    destination, and by ECMP elsewhere. Raise InputError for sites that say it differently."""
    own = [(site, _among_sites(cluster, site, site.network.routing)) for site in cluster.sites if site.network.routing]
    ways = {(routing.kind or _own_kind(site), routing.hash, routing.seed) for site, routing in own}
    if len(ways) > 1:
        found = " and ".join(f"{kind} by {name}, seed {seed}" for kind, name, seed in sorted(ways))
        expected = "one way for all sites of a cluster: routing in each site's fabric"
        raise InputError(where=f"cluster {cluster.text}", key="fabric.routing", found=found, expected=expected)
    kind, name, seed = next(iter(ways), (_own_kind(cluster.sites[0]), Routing().hash, Routing().seed))
    return Routing(
        kind=kind,
        hash=name,
        seed=seed,
        paths=tuple(path for _, routing in own for path in routing.paths),
        addresses=tuple(pair for _, routing in own for pair in routing.addresses),
    )


def _among_sites(cluster: Cluster, site: Site, routing: Routing) -> Routing:
    """What a site's file says with its names as they are among all sites."""
    if len(cluster.sites) == 1:
        return routing

    def name(own: str) -> str:
        return name_among_sites(site, own)

    paths = (
        replace(
            path,
            source=name(path.source),
            destination=name(path.destination),
            through=tuple(map(name, path.through)),
        )
        for path in routing.paths
    )
    addresses = tuple((address, name(own)) for address, own in routing.addresses)
    return replace(routing, paths=tuple(paths), addresses=addresses)


def _own_kind(site: Site) -> RoutingKind:
    if isinstance(site.network.wiring, Torus):
        return "dimension-order"
    return "infiniband" if site.fabric_link.kind == "infiniband" else "ecmp"


def _with_known_paths(routing: Routing, cluster: Cluster) -> Routing:
    """The routing that is asked for, with the ways that the cluster's file knows."""
    own = routing_of(cluster)
    return replace(routing, kind=routing.kind or own.kind, paths=(*routing.paths, *own.paths))
