"""The tree of a site's network in the forms that cluster managers read: Slurm's `topology.conf`, Kueue's Topology."""

from __future__ import annotations

import re
from collections.abc import Sequence

from profiles.cluster import Site
from profiles.errors import InputError
from profiles.host_lists import fold_hosts
from profiles.network import Network
from profiles.topology_labels import HOSTNAME, LABELS, short_labels
from profiles.yaml_files import yaml_text

LABEL_PREFIX = "cellplan.io/topology-"
"""Before a level's name, the label of nodes that says their part of it where the cluster has none of its own."""


def topology_conf(site: Site) -> str:
    """Return the `topology.conf` of topology/tree that describes a site: a line a switch, leaves first, one switch
    above all. Raise InputError where nodes have no names, or no tree is known."""
    network = _named_tree(site)
    lines = [f"# {site.name}: {' under '.join(level.name for level in network.levels)}, by cellplan"]
    names: list[list[str]] = []
    taken: set[str] = set()
    for depth, level in enumerate(network.levels):
        names.append([_switch_name(part.name, level.name, taken) for part in level.parts])
        below, key = (names[depth - 1], "Switches") if depth else (list(network.hosts), "Nodes")
        parts: list[list[str]] = [[] for _ in level.parts]
        for member, part in zip(below, level.part_of, strict=True):
            parts[part].append(member)
        for name, members in zip(names[depth], parts, strict=True):
            lines.append(f"SwitchName={name} {key}={fold_hosts(members)}")
    top = _switch_name(site.name, "top", taken)
    lines.append(f"SwitchName={top} Switches={fold_hosts(names[-1])}")
    return "\n".join(lines) + "\n"


def kueue_topology(site: Site, labels: Sequence[str] = ()) -> str:
    """Return Kueue's Topology of a site as YAML, and the commands that label its nodes as comments below.

    `labels` are those of the levels, from the nodes up, where the nodes carry them already; else they are made of the
    levels' names. Raise InputError where nodes have no names, no tree is known, or labels are not one a level.
    """
    network = _named_tree(site)
    if labels and len(labels) != len(network.levels):
        stated, expected = f"{len(labels)} labels", f"one for each of {len(network.levels)} levels"
        raise InputError(where=f"site {site.name}", key="labels", found=stated, expected=expected)
    keys = list(labels) or [LABEL_PREFIX + part_label(level.name) for level in network.levels]
    topology = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Topology",
        "metadata": {"name": part_label(site.name).lower()},
        "spec": {"levels": [{"nodeLabel": key} for key in (*reversed(keys), HOSTNAME)]},
    }
    commands = []
    if not labels:
        for number, host in enumerate(network.hosts):
            parts = zip(keys, network.levels, network.path(number), strict=True)
            said = " ".join(f"{key}={part_label(level.parts[part].name)}" for key, level, part in parts)
            commands.append(f"# kubectl label node {host} {said}")
    return yaml_text(topology) + "".join(f"{line}\n" for line in commands)


def _named_tree(site: Site) -> Network:
    network = site.network
    if not network.hosts or not network.levels:
        stated = "no names of nodes" if network.levels else "no tree above the nodes"
        expected = "levels and names in the cluster file, or --topology FILE, which has both"
        raise InputError(where=f"site {site.name}", key="fabric", found=stated, expected=expected)
    return network


def _switch_name(name: str, level: str, taken: set[str]) -> str:
    """`name` with nothing in it that a host list would read otherwise, told apart from those of other levels."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    while plain in taken:
        plain = f"{level}-{plain}"
    taken.add(plain)
    return plain


def level_label(level: str, *, known: bool) -> str:
    """Return the label of nodes that says their part of a level: where nodes carry labels that are `known`, the one
    whose last word the level is called by; else the one that is made here.

    >>> level_label("block", known=True), level_label("pod", known=False)
    ('cloud.provider.com/topology-block', 'cellplan.io/topology-pod')
    """
    if known and "/" in level:
        return level
    labels = (label for family in LABELS for label in family if known and short_labels((label,)) == (level,))
    return next(labels, LABEL_PREFIX + part_label(level))


def part_label(name: str) -> str:
    """Return `name` as a label's value may be: letters, digits, dots, dashes, 63 of them at most."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name).strip("-_.")[:63] or "x"
