"""A cluster as it is free now: what Slurm or Kubernetes prints of its nodes, turned into a cluster to plan on.

The file is the output of one of

    sinfo -N -O NodeList:40,Gres:80,GresUsed:80,StateLong     (any sinfo with a header and nodes, state and GRES)
    scontrol show node -d                                     (also without -d, with -o)
    sinfo --json, scontrol show node --json
    kubectl get nodes,pods -A -o json                         (or nodes and pods in two files)

Free are the GPUs that no job holds, on nodes that take jobs: down, drained, reserved, planned for another job, cordoned
and tainted nodes have none. A node's free GPUs come first in its order, and the nodes with most of them first among
those that are alike: the first free devices of the cluster are then as whole as they can be.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from planner.one_job.free_devices.kubernetes import read_kubernetes
from planner.one_job.free_devices.nodes import FreeNode, FreeNodes, brief, count_nodes, in_catalogue
from planner.one_job.free_devices.slurm import read_slurm_json, read_slurm_text
from profiles.cluster import Cluster, NodeGroup, Site
from profiles.cluster_file import load_cluster
from profiles.errors import InputError, NothingFits
from profiles.files import parse_json, read_json, read_text
from profiles.network import Network
from profiles.records import dataclass


def cluster_with_free(
    cluster: Cluster | None, path: Path, *, pods: Path | None = None, lenient: bool = False
) -> Cluster:
    """`cluster` with those devices free that the file at `path` says are; without a cluster, that of the file.

    With a cluster whose nodes have names, each node that the file names is the one of that name, wherever it stands in
    the tree of the network; one that the cluster lacks is wrong, or left out where `lenient`. With another cluster it
    is the next one with that device and as many of them (or more: the file then counts less in it). What the file says
    replaces what `cluster` said of `free`; nodes of `cluster` that the file does not name are not free.

    Without a cluster, nodes are the catalogue's reference nodes of the devices that GRES types or node labels name,
    with as many as the file counts, on one fabric, as the short form takes them; `text` is that short form. `pods` is
    the output of `kubectl get pods -A -o json`, where it is a file of its own. Everything that was assumed or left out
    is in the cluster's notes.

    InputError says which file, which node or line, and what was expected; NothingFits that nothing is free.
    """
    free_nodes = read_free_nodes(path, pods=pods)
    where = str(path)
    if not any(node.free for node in free_nodes.nodes):
        total = sum(node.devices for node in free_nodes.nodes)
        reasons = "".join(f"; {note}" for note in free_nodes.notes)
        raise NothingFits(f"{where}: none of the {total} GPUs is free{reasons}")
    if cluster is None:
        cluster, kept = _cluster_of(free_nodes.nodes, where)
        free_nodes = replace(free_nodes, nodes=kept)
    return with_free_nodes(cluster, free_nodes, where, lenient=lenient)


def read_free_nodes(path: Path, *, pods: Path | None = None) -> FreeNodes:
    """What the file at `path` says of nodes and their GPUs, in whichever of the forms it is."""
    where = str(path)
    text = read_text(path)
    if not text.lstrip().startswith(("{", "[")):
        _refuse_pods(pods)
        return read_slurm_text(text, where)
    data = parse_json(text, where=where)
    if isinstance(data, dict) and ("sinfo" in data or "nodes" in data):
        _refuse_pods(pods)
        return read_slurm_json(data, where)
    if isinstance(data, dict) and ("items" in data or data.get("kind") == "Node"):
        return read_kubernetes(data, where, (_object(pods), str(pods)) if pods else None)
    keys = brief(list(data)) if isinstance(data, dict) else type(data).__name__
    expected = "`nodes` or `sinfo` of Slurm's --json, or the List of `kubectl get nodes -o json`"
    raise InputError(where=where, found=keys or "an empty object", expected=expected)


def _refuse_pods(pods: Path | None) -> None:
    if pods is not None:
        expected = "none beside Slurm's nodes (pods belong to kubectl's)"
        raise InputError(where=str(pods), found="a file of pods", expected=expected)


def _object(path: Path) -> Mapping[str, Any]:
    data = read_json(path)
    if not isinstance(data, dict):
        expected = "the List of `kubectl get pods -A -o json`"
        raise InputError(where=str(path), found=type(data).__name__, expected=expected)
    return data


# Without a cluster


def _cluster_of(nodes: Sequence[FreeNode], where: str) -> tuple[Cluster, tuple[FreeNode, ...]]:
    """The cluster that the nodes make up, all of it free, and those of them that it holds."""
    _check_types(nodes, where)
    nodes_of_catalogue = [node for node in nodes if in_catalogue(node.device)]
    usable = {(node.device, node.devices) for node in nodes_of_catalogue if node.free}
    kept = tuple(node for node in nodes_of_catalogue if (node.device, node.devices) in usable)
    notes = count_nodes(
        (f"{node.name} ({node.said})" for node in nodes if not in_catalogue(node.device)),
        f"{where}: GPUs that the catalogue does not have are left out",
    ) + count_nodes(
        (
            f"{node.name} ({node.devices} {node.device})"
            for node in nodes_of_catalogue
            if (node.device, node.devices) not in usable
        ),
        f"{where}: nodes of a kind of which none has a free GPU are left out",
    )
    if not kept:
        expected = "a type that `cellplan hardware list` knows, or --cluster, which says what the nodes are"
        raise InputError(where=where, found="; ".join(notes), expected=expected)
    kinds = Counter((node.device, node.devices) for node in kept)
    base = load_cluster("+".join(f"{device}:{count}x{devices}" for (device, devices), count in kinds.items()))
    racks = [
        f"{where}: does not say which nodes share a rack of {group.island_size} {group.device.name}; taken in its order"
        for site in base.sites
        for group in site.nodes
        if group.island_size > group.devices and group.count > 1
    ]
    known_by_device = tuple(replace(node, said=node.device) for node in kept)
    return replace(base, notes=(*base.notes, *notes, *_read_as(kept, where), *racks)), known_by_device


def _check_types(nodes: Sequence[FreeNode], where: str) -> None:
    for node in nodes:
        if not node.device:
            raise InputError(
                where=where,
                key=f"node {node.name}",
                found=f"{node.devices} GPUs of no type",
                expected="a type, as in gpu:a100:8 or the label nvidia.com/gpu.product; or --cluster, which says what"
                " the nodes are",
            )


def _read_as(nodes: Sequence[FreeNode], where: str) -> Iterator[str]:
    """Which devices names that say too little are taken for, each once."""
    for said, device in dict.fromkeys((node.said, node.device) for node in nodes):
        if _plain(said) != device and device.startswith(_plain(said)):
            yield f"{where}: {said} is read as {device}"


# With one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A node of the cluster, and what is free of it. `number` counts through the site as the cluster has its nodes;
    `name` is empty where the file does not name it."""

    number: int = 0
    name: str = ""
    free: int = 0


def with_free_nodes(cluster: Cluster, free_nodes: FreeNodes, where: str, *, lenient: bool) -> Cluster:
    """Return the cluster with the free devices that the file `where` names, nodes with most of them first. Raise as
    `cluster_with_free`."""
    named = all(site.network.hosts for site in cluster.sites)
    given, absent = (
        _match_by_name(cluster, free_nodes.nodes, where, lenient=lenient)
        if named
        else _match(cluster, free_nodes.nodes, where)
    )
    sites: list[Site] = []
    shown: list[str] = []
    for site in cluster.sites:
        groups: list[NodeGroup] = []
        members: list[_Place] = []
        for number, group in enumerate(site.nodes):
            places = [
                replace(given.get((site.name, number, node), _Place()), number=len(members) + node)
                for node in range(group.count)
            ]
            for part, nodes in _parts(group, places, site.network):
                groups.append(part)
                members += nodes
        called = f"{site.name} " if len(cluster.sites) > 1 else ""
        shown += [f"{called}{node} {place.name} ({place.free})" for node, place in enumerate(members) if place.free]
        hosts = tuple(site.network.hosts[place.number] for place in members) if site.network.hosts else ()
        sites.append(replace(site, nodes=tuple(groups), network=replace(site.network, hosts=hosts)))
    unnamed = sum(group.count for site in cluster.sites for group in site.nodes) - len(given)
    notes = tuple(_notes(cluster, free_nodes, given, absent, unnamed, where))
    total = sum(place.free for place in given.values())
    if not total:
        raise NothingFits("; ".join((f"{where}: nothing is free of {cluster.text}", *notes)))
    summary = f"{where}: devices free: {total}, on nodes (by number, with how many) {brief(shown)}"
    return replace(cluster, sites=tuple(sites), notes=(*cluster.notes, *notes, summary))


def named_by(cluster: Cluster, free_nodes: FreeNodes, where: str) -> Cluster:
    """Return a cluster whose nodes have names: as they are, or by the file `where`, whose nodes are matched as
    `cluster_with_free` says; nodes that it does not name are called by their numbers. Raise InputError as that."""
    if all(site.network.hosts for site in cluster.sites):
        return cluster
    given, _ = _match(cluster, free_nodes.nodes, where)
    sites = []
    for site in cluster.sites:
        places = [
            given.get((site.name, number, node), _Place()).name
            for number, group in enumerate(site.nodes)
            for node in range(group.count)
        ]
        hosts = tuple(name or f"{site.name}-{node}" for node, name in enumerate(places))
        sites.append(replace(site, network=replace(site.network, hosts=hosts)))
    return replace(cluster, sites=tuple(sites))


def _notes(
    cluster: Cluster,
    free_nodes: FreeNodes,
    given: Mapping[tuple[str, int, int], _Place],
    absent: Sequence[str],
    unnamed: int,
    where: str,
) -> Iterator[str]:
    """What was assumed and left out."""
    yield from (f"{where}: {note}" for note in free_nodes.notes)
    twice = [name for name, times in Counter(node.name for node in free_nodes.nodes).items() if times > 1]
    yield from count_nodes(twice, f"{where}: nodes with several types of GPU, each type as a node of its own")
    yield from count_nodes(absent, f"{where}: nodes that {cluster.text} does not have are left out")
    if unnamed:
        yield f"{where}: nodes of {cluster.text} that it does not name and count as not free: {unnamed}"
    if any(
        group.island_size > group.devices and 0 < place.free < group.devices
        for (site, number, _), place in given.items()
        for group in (cluster.site(site).nodes[number],)
    ):
        yield f"{where}: partly free nodes of a rack count as joined to its others by NICs"


def _match(
    cluster: Cluster, nodes: Sequence[FreeNode], where: str
) -> tuple[dict[tuple[str, int, int], _Place], list[str]]:
    """The file's nodes by (site, group, node of the group), and the names of those that the cluster does not have."""
    left: defaultdict[str, defaultdict[int, deque[tuple[str, int, int]]]] = defaultdict(lambda: defaultdict(deque))
    held: defaultdict[str, set[str]] = defaultdict(set)
    for site in cluster.sites:
        for number, group in enumerate(site.nodes):
            left[group.device.name][group.devices].extend((site.name, number, node) for node in range(group.count))
            held[group.device.name].add(site.name)
    given: dict[tuple[str, int, int], _Place] = {}
    absent: list[str] = []
    for node in nodes:
        device = _device_of(node, cluster, where)
        sizes = left[device] if device else {}
        fitting = [size for size in sorted(sizes) if size >= node.devices]
        if not device or not fitting:
            absent.append(f"{node.name} ({node.devices} {node.said or 'GPUs'})")
            continue
        if len(held[device]) > 1:
            stated = f"{device} in {' and '.join(sorted(held[device]))}, and no word of where node {node.name} is"
            raise InputError(where=where, found=stated, expected=f"a cluster with {device} in one site")
        size = next((size for size in fitting if sizes[size]), None)
        if size is None:
            there = sum(slot.index == 0 and slot.device == device for slot in cluster.slots)
            stated = f"more nodes with {device} than {cluster.text} has"
            expected = f"at most its {there}, or no --cluster: the nodes are then the file's"
            raise InputError(where=where, key=f"node {node.name}", found=stated, expected=expected)
        given[sizes[size].popleft()] = _Place(name=node.name, free=node.free)
    return given, absent


def _match_by_name(
    cluster: Cluster, nodes: Sequence[FreeNode], where: str, *, lenient: bool
) -> tuple[dict[tuple[str, int, int], _Place], list[str]]:
    """As `_match`, on a cluster whose nodes have names: each at its own place."""
    places: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for site in cluster.sites:
        hosts = iter(site.network.hosts)
        for number, group in enumerate(site.nodes):
            for place in range(group.count):
                places[next(hosts)].append((site.name, number, place))
    given: dict[tuple[str, int, int], _Place] = {}
    absent: list[str] = []
    for node in nodes:
        here = places.get(node.name, [])
        key = f"node {node.name}"
        if not here:
            if not lenient:
                expected = f"one of the {len(places)} that the network of {cluster.text} has (or --lenient)"
                raise InputError(where=where, key=key, found="a node of another name", expected=expected)
            absent.append(node.name)
            continue
        if len(here) > 1:
            stated = f"nodes of that name in {' and '.join(site for site, _, _ in here)}"
            raise InputError(where=where, key=key, found=stated, expected="a name in one site")
        group = cluster.site(here[0][0]).nodes[here[0][1]]
        device = _device_of(node, cluster, where) if node.said else group.device.name
        if device != group.device.name or node.devices > group.devices:
            stated = f"{node.devices} {node.said or 'GPUs'}"
            expected = f"{group.devices} {group.device.name} at most, as {cluster.text} has there"
            raise InputError(where=where, key=key, found=stated, expected=expected)
        given[here[0]] = _Place(name=node.name, free=node.free)
    return given, absent


def _device_of(node: FreeNode, cluster: Cluster, where: str) -> str | None:
    """Which device of the cluster a node's GPUs are, None if none of them. InputError where it may be several."""
    names = cluster.device_types
    plain = _plain(node.said)
    if plain in names:
        return plain
    if plain:
        possible = [name for name in names if name == node.device or name.startswith(f"{plain}-")]
    else:
        groups = [group for site in cluster.sites for group in site.nodes if group.devices >= node.devices]
        possible = list(dict.fromkeys(group.device.name for group in groups))
    if len(possible) > 1:
        said = f"{node.devices} GPUs of type {node.said}" if plain else f"{node.devices} GPUs of no type"
        expected = f"a type that tells {' from '.join(possible)}"
        raise InputError(where=where, key=f"node {node.name}", found=said, expected=expected)
    return possible[0] if possible else None


def _plain(said: str) -> str:
    return said.strip().lower().replace("_", "-").removeprefix("nvidia-")


def _parts(group: NodeGroup, places: Sequence[_Place], network: Network) -> Iterator[tuple[NodeGroup, list[_Place]]]:
    """The group in parts of nodes that are equally free: `NodeGroup.free` is the first so many of its devices, so a
    node of which some devices are free is a group of its own.

    Nodes change places only inside a part of the fabric's lowest level and, where islands span nodes, inside a rack; of
    such a rack the whole nodes stay joined, and those partly free count as joined to them by NICs.
    """
    rack = max(1, group.island_size // group.devices)
    spans = group.island_size > group.devices
    runs: list[tuple[bool, int, list[_Place]]] = []
    numbered = list(enumerate(places))
    for _, block in groupby(
        numbered,
        key=lambda numbered: (network.alike_key(numbered[1].number), numbered[0] // rack if spans else 0),
    ):
        ordered = sorted((place for _, place in block), key=lambda place: -place.free)
        whole_rack = len(ordered) == rack
        for free, run in groupby(ordered, key=lambda place: place.free):
            members = list(run)
            partly = 0 < free < group.devices
            for some in [[place] for place in members] if partly else [members]:
                mergeable = not partly and (not spans or (whole_rack and len(some) == rack))
                if runs and mergeable and runs[-1][0] and runs[-1][1] == free:
                    runs[-1][2].extend(some)
                else:
                    runs.append((mergeable, free, some))
    for mergeable, free, members in runs:
        island = group.island_size if not spans or mergeable else group.devices * len(members)
        left = None if free == group.devices else free
        yield replace(group, count=len(members), island_size=island, free=left), members
