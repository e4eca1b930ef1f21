"""Clusters from what a user writes: a short form (`profiles.reference_nodes`), or a cluster file in YAML; and back into
the file's form. What the user does not write comes from the device's reference node, and `Cluster.notes` says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.cluster import Cluster, NodeGroup, Site, SiteLink
from profiles.cluster_description import describe_cluster
from profiles.errors import InputError
from profiles.files import read_text
from profiles.given import given_under, name_given, plain_object
from profiles.hardware import load_device, load_link
from profiles.limits import LIMITS
from profiles.network import Network
from profiles.network_file import network_beside, read_hosts, read_network
from profiles.pcie import read_pcie
from profiles.reference_nodes import (
    LOCAL,
    LocalDevice,
    default_nodes,
    fastest_nic,
    from_short_form,
    is_short_form,
    local_device_of,
    local_note,
    reference_note,
)
from profiles.vocabulary import Device, Link, LinkKind, ReferenceNode
from profiles.yaml_files import line_of, parse_yaml

if TYPE_CHECKING:
    from profiles.cluster_schema import ClusterModel, DeviceModel, LinkModel, NodesModel, SiteModel
    from profiles.topology_tree import HostTree

BESIDE = "@"
"""Stands between a cluster and the file of the tree beside it."""


def load_cluster(text: str, *, local_device: LocalDevice | None = None) -> Cluster:
    """Return the cluster that `text` means: a short form, the path of a YAML file, or what `name_cluster` returned.

    `local_device` is asked only where `text` names `local`. InputError says which file, which key, what was found and
    what was expected.

    `CLUSTER@FILE` is that cluster with the tree of its network out of FILE (`profiles.topology_reading`).

    >>> cluster = load_cluster("v100-32gb:2x4")
    >>> len(cluster.slots), cluster.sites[0].nodes[0].island_size
    (8, 4)
    """
    base, file = _apart(text)
    if not file:
        return _load(text, local_device, None)
    from profiles.topology_reading import read_topology

    tree = read_topology(Path(file))
    cluster = _load(base, local_device, tree)
    return replace(cluster, text=text, notes=(*cluster.notes, *(f"{file}: {note}" for note in tree.notes)))


def _apart(text: str) -> tuple[str, str]:
    """A cluster and the file of the tree beside it, empty where there is none."""
    base, _, file = text.rpartition(BESIDE)
    named = given_under(base) is not None or is_file(base) or is_short_form(base.split("+")[-1].strip())
    return (base, file) if file and named else (text, "")


def is_file(text: str) -> bool:
    """Return whether a cluster's name, without the tree beside it, is that of a cluster file."""
    return text.endswith((".yaml", ".yml"))


def files_of(text: str) -> tuple[Path, ...]:
    """Return the files that a cluster is read from: a cluster file, a tree beside the cluster, both or none."""
    base, file = _apart(text)
    return tuple(Path(name) for name in (base if is_file(base) else "", file) if name)


def is_at_hand(text: str) -> bool:
    """Return whether all files that a cluster is read from are there; a name that no file can have is of none."""
    try:
        return all(path.exists() for path in files_of(text))
    except (OSError, ValueError):
        return False


def _load(text: str, local_device: LocalDevice | None, tree: HostTree | None) -> Cluster:
    given = given_under(text)
    if given is not None:
        return _from_file(given, text=text, where="cluster", local_device=local_device, tree=tree)
    if is_file(text):
        content = read_text(Path(text), limit=LIMITS.yaml_bytes)
        data = parse_yaml(content, where=text)
        with _on_line(content, text):
            return _from_file(data, text=text, where=text, local_device=local_device, tree=tree)
    cluster = from_short_form(text, local_device)
    return (
        cluster if tree is None else replace(cluster, sites=tuple(_under(tree, site, text) for site in cluster.sites))
    )


def _under(tree: HostTree, site: Site, text: str) -> Site:
    nodes = sum(group.count for group in site.nodes)
    return replace(site, network=network_beside(tree, site.network, nodes, text=text))


def name_cluster(value: Mapping[str, Any] | Cluster) -> str:
    """Return the text under which `load_cluster`, and a plan, have the cluster that a Python caller gives: a record, or
    the mapping that its cluster file would hold. Raise InputError where it is none."""
    data = plain_object(describe_cluster(value) if isinstance(value, Cluster) else value, where="cluster")
    with_schema = {"schema": "cellplan.cluster/1", **data}
    return name_given("cluster", json.dumps(data, sort_keys=True), lambda _name: with_schema)


# Cluster file


@contextmanager
def _inside(where: str, key: str) -> Iterator[None]:
    """Names the file and the full key in what the records and the catalogue find wrong."""
    try:
        yield
    except InputError as error:
        full = ".".join(step for step in (key, error.key) if step)
        raise InputError(where=where, key=full, found=error.found, expected=error.expected) from None


@contextmanager
def _on_line(content: str, file: str) -> Iterator[None]:
    """Names the line of what is wrong with a key of the cluster file, whose `content` was read."""
    try:
        yield
    except InputError as error:
        line = line_of(content, error.key) if error.key and error.where == file else None
        if line is None:
            raise
        where = f"{file}, line {line}"
        raise InputError(where=where, key=error.key, found=error.found, expected=error.expected) from None


def _from_file(data: Any, *, text: str, where: str, local_device: LocalDevice | None, tree: HostTree | None) -> Cluster:
    from profiles.cluster_schema import ClusterModel
    from profiles.schema import validate

    if not isinstance(data, dict):
        raise InputError(
            where=where, found=f"{type(data).__name__}, no mapping", expected="schema: cellplan.cluster/1 and sites"
        )
    written: ClusterModel = validate(ClusterModel, data, where=where)
    reader = _FileReader(where=where, local_device=local_device, tree=tree)
    sites = tuple(reader.site(site, f"sites[{number}]") for number, site in enumerate(written.sites))
    links = []
    for number, link in enumerate(written.links_between_sites):
        with _inside(where, f"links_between_sites[{number}]"):
            first, second = link.between
            links.append(
                SiteLink(
                    between=(first, second),
                    bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                    latency_s=link.latency_s,
                )
            )
    with _inside(where, ""):
        return Cluster(text=text, sites=sites, site_links=tuple(links), notes=tuple(reader.notes))


class _FileReader:
    """Turns the parts of one file into records and collects what was assumed on the way."""

    def __init__(self, *, where: str, local_device: LocalDevice | None, tree: HostTree | None) -> None:
        self.notes: list[str] = []
        self._tree = tree
        self._where = where
        self._ask_local_device = local_device
        self._defined: dict[str, Device] = {}

    def site(self, written: SiteModel, key: str) -> Site:
        nodes = [self._nodes(group, f"{key}.nodes[{number}]") for number, group in enumerate(written.nodes)]
        fabric = written.fabric
        link = self._link(fabric.link, f"{key}.fabric.link", kind="infiniband") if fabric else fastest_nic(nodes)
        if fabric is None:
            self.notes.append(f"{key}.fabric: not given, taken as {link.name} without oversubscription")
        with _inside(self._where, key):
            hosts = read_hosts(written.nodes, self._where)
            tree, network = self._tree, Network(hosts=hosts)
            if fabric is not None and fabric.topology is not None:
                from profiles.wiring_file import read_wired_network

                read_link = partial(self._link, kind="infiniband")
                network = read_wired_network(fabric, nodes, hosts, link, self._where, read_link)
            elif fabric is not None:
                network = read_network(fabric, nodes, hosts, link, self._where, tree if fabric.levels else None)
        if tree is not None and not (fabric and fabric.levels):
            network = network_beside(tree, network, sum(group.count for group in nodes), text=self._where)
        with _inside(self._where, key):
            if fabric is not None and fabric.routing is not None:
                from profiles.routing_file import read_routing

                nics = [group.nics for group in nodes for _ in range(group.count)]
                network = replace(network, routing=read_routing(fabric.routing, network, nics, self._where))
            return Site(name=written.name, nodes=tuple(nodes), fabric_link=link, network=network)

    def _nodes(self, written: NodesModel, key: str) -> NodeGroup:
        given: dict[str, Any] = {
            "free": None if written.free == "all" else written.free,
            "price_per_device_hour": written.price_per_device_hour,
            "power_w": written.power_w,
        }
        if written.island is not None:
            given["island_link"] = self._link(written.island.link, f"{key}.island.link", kind="nvlink")
            given["island_size"] = written.island.size
        if written.nics is not None:
            given["nic_link"] = self._link(written.nics.link, f"{key}.nics.link", kind="ethernet")
            given["nics"] = written.nics.count
        if written.host_link is not None:
            given["host_link"] = self._link(written.host_link, f"{key}.host_link", kind="pcie")
        parts = ("devices", "island", "nics", "host_link")
        missing = [part for part in parts if getattr(written, part) is None]
        if not isinstance(written.device, str):
            return self._inline_nodes(written, key, written.device, given, missing)
        device = self._device(written.device, f"{key}.device", workers=written.devices)
        with _inside(self._where, key):
            base = default_nodes(device, count=written.count, devices=written.devices or device.reference_node.devices)
            group = self._with_pcie(replace(base, **given), written, key)
        if written.device == LOCAL:
            self.notes.append(f"{key}: {local_note(group)}")
        elif missing:
            self.notes.append(f"{key}: {', '.join(missing)} not given; {reference_note(written.device, base)}")
        return group

    def _inline_nodes(
        self, written: NodesModel, key: str, model: DeviceModel, given: dict[str, Any], missing: list[str]
    ) -> NodeGroup:
        """Nodes of a device that the file defines: they are its reference node, so nothing may be left out."""
        if missing:
            expected = "all of devices, island, nics and host_link, since the device is defined in the file"
            raise InputError(where=self._where, key=f"{key}.{missing[0]}", found="nothing", expected=expected)
        node = ReferenceNode(
            devices=written.devices or 0,
            island_link=given["island_link"].name,
            island_size=given["island_size"],
            host_link=given["host_link"].name,
            nic_link=given["nic_link"].name,
            nics=given["nics"],
        )
        device = Device(
            name=model.name,
            memory_bytes=model.memory_bytes,
            memory_bandwidth_bytes_per_s=model.memory_bandwidth_bytes_per_s,
            peak_flops_per_s=tuple(sorted(model.peak_flops_per_s.items())),
            power_w=model.power_w,
            flash_attention=model.flash_attention,
            reference_node=node,
            source=model.source or self._where,
            peak_basis=model.peak_basis,
            contention=tuple(model.contention or ()),
        )
        # The same device on nodes of another shape is one device; its first nodes are the reference.
        first = self._defined.setdefault(device.name, device)
        if replace(device, reference_node=first.reference_node) == first:
            device = first
        with _inside(self._where, key):
            group = NodeGroup(count=written.count, device=device, devices=node.devices, **given)
            return self._with_pcie(group, written, key)

    def _with_pcie(self, group: NodeGroup, written: NodesModel, key: str) -> NodeGroup:
        """The nodes with what hangs under their PCIe switches, whose lanes are the host link's where they do not say
        their own."""
        if written.pcie is None:
            return group
        rates = [
            group.host_link.bandwidth_bytes_per_s
            if row.link is None
            else self._link(row.link, f"{key}.pcie[{number}].link", kind="pcie").bandwidth_bytes_per_s
            for number, row in enumerate(written.pcie)
        ]
        return replace(group, pcie=read_pcie(written.pcie, rates, devices=group.devices, nics=group.nics))

    def _device(self, name: str, key: str, *, workers: int | None) -> Device:
        if name == LOCAL:
            with _inside(self._where, key):
                return local_device_of(workers or 1, self._ask_local_device)
        return load_device(name, where=self._where, key=key)

    def _link(self, written: str | LinkModel, key: str, *, kind: LinkKind) -> Link:
        """A link by name, or as defined in the file; `kind` is what a link at that place usually is."""
        if isinstance(written, str):
            return load_link(written, where=self._where, key=key)
        return Link(
            name=written.name or key.removesuffix(".link"),
            kind=written.kind or kind,
            bandwidth_bytes_per_s=written.bandwidth_bytes_per_s,
            latency_s=written.latency_s,
            efficiency=written.efficiency,
            source=written.source or self._where,
            startup_s=written.startup_s,
            quick_latency_s=written.quick_latency_s,
            quick_efficiency=written.quick_efficiency,
            in_network_efficiency=written.in_network_efficiency,
            exchange_efficiency=written.exchange_efficiency,
            share_by_ranks=written.share_by_ranks,
            torus_dimensions=written.torus_dimensions,
            ramp_exponent=written.ramp_exponent,
        )
