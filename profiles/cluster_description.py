"""A cluster back into the form of the cluster file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from profiles.cluster import Cluster, NodeGroup, Site
from profiles.hardware import device_names, link_names, load_device, load_link
from profiles.host_lists import fold_hosts
from profiles.network_file import describe_network
from profiles.pcie import describe_pcie
from profiles.vocabulary import Device, Link


def describe_cluster(cluster: Cluster) -> dict[str, Any]:
    """Return the cluster file's form of `cluster`: loading it gives the same sites and links between them."""
    return {
        "schema": "cellplan.cluster/1",
        "sites": [
            {
                "name": site.name,
                "nodes": _describe_all_nodes(site),
                "fabric": {"link": _describe_link(site.fabric_link), **describe_network(site.network)},
            }
            for site in cluster.sites
        ],
        "links_between_sites": [{**asdict(link), "between": list(link.between)} for link in cluster.site_links],
    }


def _describe_all_nodes(site: Site) -> list[dict[str, Any]]:
    """A site's groups of nodes, with their names where they have any."""
    described, first = [], 0
    for group in site.nodes:
        names = site.network.hosts[first : first + group.count]
        described.append(_describe_nodes(group) | ({"names": fold_hosts(names)} if names else {}))
        first += group.count
    return described


def _describe_nodes(group: NodeGroup) -> dict[str, Any]:
    described: dict[str, Any] = {
        "count": group.count,
        "device": _describe_device(group.device),
        "devices": group.devices,
        "island": {"link": _describe_link(group.island_link), "size": group.island_size},
        "nics": {"count": group.nics, "link": _describe_link(group.nic_link)},
        "host_link": _describe_link(group.host_link),
        "free": "all" if group.free is None else group.free,
        "price_per_device_hour": group.price_per_device_hour,
        "power_w": group.power_w,
        "pcie": describe_pcie(group.pcie) or None,
    }
    return {key: value for key, value in described.items() if value is not None}


def _describe_device(device: Device) -> str | dict[str, Any]:
    if device.name in device_names() and load_device(device.name) == device:
        return device.name
    fields = {**asdict(device), "peak_flops_per_s": dict(device.peak_flops_per_s)}
    return {
        k: value for k, value in fields.items() if k not in ("reference_node", "margin_bytes") and value is not None
    }


def _describe_link(link: Link) -> str | dict[str, Any]:
    return link.name if link.name in link_names() and load_link(link.name) == link else asdict(link)
