"""A cluster's network in figures: its tiers of switches, what they carry, and how many equal ways lead through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from estimator.network.figures import equal_ways, halves_bytes_per_s, tier_figures
from estimator.network.wires import wires_of
from profiles.cluster import Cluster, Site
from profiles.errors import InputError
from profiles.host_lists import fold_hosts
from profiles.numerals import read_whole


def describe_site_network(site: Site, between: Sequence[str] = ()) -> dict[str, Any]:
    """Return what `network show --json` says of a site, with the ways from one of two nodes to the other."""
    wires, network = wires_of(site), site.network
    nodes = [group.count for group in site.nodes]
    nics = sum(group.count * group.nics * group.nic_bytes_per_s(site.fabric_link) for group in site.nodes)
    halves = halves_bytes_per_s(wires)
    first, second = _between(site, between, wires.nodes)
    ways, cables = equal_ways(wires, first, second)
    wiring = network.wiring
    return {
        "name": site.name,
        "topology": wiring.kind if wiring is not None else "levels" if network.levels else "one switch",
        "hosts": fold_hosts(network.hosts) if network.hosts else None,
        "nodes": sum(nodes),
        "devices": sum(group.count * group.devices for group in site.nodes),
        "nic_bytes_per_s": nics,
        "tiers": [
            {
                "name": tier.name,
                "switches": tier.switches,
                "ports": tier.ports,
                "cables_up": tier.cables_up,
                "below_bytes_per_s": tier.below_bytes_per_s,
                "up_bytes_per_s": tier.up_bytes_per_s,
                "oversubscription": tier.oversubscription,
            }
            for tier in tier_figures(wires)
        ],
        "halves_bytes_per_s": halves,
        "ways": {"between": [wires.names[first], wires.names[second]], "equal": ways, "cables": cables},
        "levels": [
            {
                "name": level.name,
                "parts": len(level.parts),
                "oversubscription": max(part.oversubscription for part in level.parts),
            }
            for level in network.levels
        ],
    }


def site_of_nodes(cluster: Cluster, between: Sequence[str]) -> str | None:
    """Return the name of the site that has both nodes, of several the first; None where none are named. Raise
    InputError where no site has both."""
    if not between:
        return None
    for site in cluster.sites:
        nodes = sum(group.count for group in site.nodes)
        if all(_place(site, node, nodes) is not None for node in between):
            return site.name
    expected = "two nodes of one site of the cluster, by name, or by number from 0"
    raise InputError(where=f"cluster {cluster.text}", key="--between", found=",".join(between), expected=expected)


def _between(site: Site, between: Sequence[str], nodes: int) -> tuple[int, int]:
    places = [_place(site, node, nodes) for node in between]
    first, second = places if places else (0, nodes - 1)
    return first or 0, second or 0


def _place(site: Site, node: str, nodes: int) -> int | None:
    """The number of a node that is named, or numbered; None of one that the site has not."""
    if node in site.network.hosts:
        return site.network.hosts.index(node)
    try:
        number = read_whole(node)
    except ValueError:
        return None
    return number if number < nodes else None
