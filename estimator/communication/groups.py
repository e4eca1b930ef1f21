"""Where the ranks of a collective sit, and which links join them, level by level."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import cast

from estimator.communication.levels import Level, effective, level_of, slowest_level
from estimator.communication.site_routes import SiteRoutes
from estimator.communication.uplinks import Above, alone, shares_uplinks, without_tree
from profiles.cluster import Cluster, DeviceSlot, NodeGroup, Site
from profiles.errors import InputError
from profiles.records import dataclass, replace

MOST_KNOWN, LARGEST_KNOWN = 20_000, 256
"""So many groups of so many ranks at most are kept for who asks again."""
NOTHING_ABOVE = Above(uplinks=None, hops_s=0.0, collective_reach=1.0, message_reach=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxKind:
    """So many boxes of a group with so many ranks each, and what goes through the NICs of one as `Level` has it."""

    ranks: int
    count: int
    bandwidth_bytes_per_s: float
    shared_bytes_per_s: float

    def of(self, level: Level) -> Level:
        """Return the fabric's level of a group whose boxes are all like these."""
        return replace(
            level, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s, shared_bytes_per_s=self.shared_bytes_per_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The place of a collective's ranks. `even` means parts of equal size at every level; `levels` go from inside out
    and leave out those with a single member. `boxes`, those with most ranks first: what has NICs of its own, where not
    all of it on one site has as many ranks."""

    ranks: int
    nodes: int
    even: bool
    levels: tuple[Level, ...]
    boxes: tuple[BoxKind, ...] = ()

    def inside_one_part(self) -> Group:
        """Return the same group as it is where it meets one part of the fabric alone."""
        levels = tuple(level.inside_one_part() for level in self.levels)
        return self if levels == self.levels else replace(self, levels=levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank. `box` is what has NICs of its own: the rank's node, or its island where that spans nodes."""

    slot: DeviceSlot
    node_group: NodeGroup
    site: Site
    island: Hashable
    box: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What the group has in one box: `ranks`, `nodes`, and bytes/s through the NICs that its ranks send by for it
    alone, and through all of them for all groups like it, of which the box can host `hosted`."""

    place: Place
    ranks: int
    nodes: tuple[int, ...]
    bandwidth_bytes_per_s: float
    shared_bytes_per_s: float
    hosted: int


def describe_group(cluster: Cluster, slots: Sequence[DeviceSlot]) -> Group:
    """Return the group whose ranks sit on `slots`. Their order matters over three sites or more alone: a ring visits
    the sites in the order of its ranks. Asked again, it is the same one.

    An island larger than a node spans nodes, as in a rack of them. Where devices differ, the slowest one's links count.

    Raises:
        ValueError: no slots, or one of them twice.
        InputError: the group spans nodes without NICs, or sites that no link joins.
    """
    key, cached_groups = tuple(slots), cluster.known_groups
    group = cached_groups.get(key)
    if group is None:
        if len(cached_groups) >= MOST_KNOWN:
            cached_groups.clear()
        group = _describe_group(cluster, key)
        if len(key) <= LARGEST_KNOWN:
            cached_groups[key] = group
    return cast("Group", group)


def _describe_group(cluster: Cluster, slots: tuple[DeviceSlot, ...]) -> Group:
    if shares_uplinks(cluster):
        return with_above(describe_unshared(without_tree(cluster), slots), alone(cluster, slots))
    return describe_unshared(cluster, slots)


def with_above(group: Group, above: Above) -> Group:
    """Return `group`, as it is with nothing above the nodes, with what is above them."""
    if above == NOTHING_ABOVE:
        return group
    over = "fabric" if any(level.kind == "fabric" for level in group.levels) else "site"
    levels = (_under(level, above) if level.kind == over else level for level in group.levels)
    return replace(group, levels=tuple(levels))


def _under(level: Level, above: Above) -> Level:
    quick_s = level.quick_latency_s
    return replace(
        level,
        latency_s=level.latency_s + above.hops_s,
        quick_latency_s=None if quick_s is None else quick_s + above.hops_s,
        hops_s=above.hops_s,
        collective_reach=above.collective_reach,
        message_reach=above.message_reach,
        above=above.uplinks,
    )


def group_key(cluster: Cluster, slots: Sequence[DeviceSlot]) -> Hashable:
    """Return what decides what `describe_unshared` says of `slots`: equal keys, equal groups."""
    islands: Counter[tuple[Hashable, Hashable, str, int]] = Counter()
    inside: defaultdict[Hashable, list[Place]] = defaultdict(list)
    on_site: defaultdict[str, set[int]] = defaultdict(set)
    for slot in slots:
        place = locate(cluster, slot)
        islands[place.box, place.island, slot.site, slot.group] += 1
        inside[place.box].append(place)
        on_site[slot.site].add(slot.node)
    boxes: defaultdict[Hashable, list[int]] = defaultdict(list)
    kinds: dict[Hashable, tuple[str, int]] = {}
    for (box, _, site, group), ranks in islands.items():
        boxes[box].append(ranks)
        kinds[box] = (site, group)
    alike = Counter(
        (kinds[box], len({place.slot.node for place in inside[box]}), nics_under(inside[box]), tuple(sorted(ranks)))
        for box, ranks in boxes.items()
    )
    hops = tuple((site, cluster.site(site).network.hops_s(here)) for site, here in on_site.items())
    return frozenset(alike.items()), hops


def describe_unshared(cluster: Cluster, slots: Sequence[DeviceSlot]) -> Group:
    """Return the group of `slots` with nothing said of uplinks that several nodes share. Raise as `describe_group`."""
    slots = tuple(slots)
    _check_distinct(slots)
    places = [locate(cluster, slot) for slot in slots]
    boxes = boxes_of(places)
    check_nics(cluster, boxes)
    builders: tuple[Callable[[int], Level], ...] = (
        lambda members: slowest_level("island", (place.node_group.island_link for place in places), members),
        lambda members: slowest_level("host", (place.node_group.host_link for place in places), members),
        lambda _: fabric_level(boxes),
        lambda _: _site(cluster, places, boxes),
    )
    ladder: tuple[list[Hashable], ...] = (
        list(slots),
        [place.island for place in places],
        [place.box for place in places],
        [slot.site for slot in slots],
        [cluster.text] * len(slots),
    )
    levels: list[Level] = []
    even = True
    for build, inner, outer in zip(builders, ladder[:-1], ladder[1:], strict=True):
        ranks_inside = Counter(inner)
        members = Counter(above for _, above in set(zip(inner, outer, strict=True)))
        even = even and len(set(ranks_inside.values())) == 1 and len(set(members.values())) == 1
        most = max(members.values())
        if most > 1:
            level = build(most)
            levels.append(
                replace(
                    level,
                    members=most,
                    ranks_inside=max(ranks_inside.values()),
                    # A torus' level already holds the steps through one place of it.
                    crossings=level.crossings * len(members) or members.total() - len(members),
                )
            )
    return Group(
        ranks=len(slots),
        nodes=len({(slot.site, slot.node) for slot in slots}),
        even=even,
        levels=tuple(levels),
        boxes=uneven_boxes([(box, 1) for box in boxes]) if levels and levels[-1].kind == "fabric" else (),
    )


def _check_distinct(slots: tuple[DeviceSlot, ...]) -> None:
    if not slots or len(set(slots)) != len(slots):
        raise ValueError(
            f"describe_group: found {len(slots)} slots of which {len(set(slots))} differ, expected no slot twice"
        )


def pair_key(cluster: Cluster, first_slot: DeviceSlot, second_slot: DeviceSlot) -> Hashable:
    """Return what decides the group of two slots: equal keys, equal groups, as the nodes of a `NodeGroup` are alike."""
    places = [locate(cluster, slot) for slot in (first_slot, second_slot)]
    first, second = ((place.island, place.box) for place in places)
    same = tuple(a == b for a, b in zip(first, second, strict=True))
    site = places[0].site
    way = site.network.crossing_key(first_slot.node, second_slot.node) if site is places[1].site else None
    return (
        first_slot.site,
        first_slot.group,
        second_slot.site,
        second_slot.group,
        first_slot.node == second_slot.node,
        same,
        way,
    )


def locate(cluster: Cluster, slot: DeviceSlot) -> Place:
    """Return where a slot is: its site, its kind of node, and which box and island it is in."""
    site = cluster.site(slot.site)
    node_group = site.nodes[slot.group]
    box: Hashable = (slot.site, slot.node)
    island: Hashable = (slot.site, slot.node, slot.index // node_group.island_size)
    if node_group.island_size > node_group.devices:
        first_node = sum(group.count for group in site.nodes[: slot.group])
        number = (slot.node - first_node) * node_group.devices + slot.index
        box = island = (slot.site, "island", slot.group, number // node_group.island_size)
    return Place(slot=slot, node_group=node_group, site=site, island=island, box=box)


def boxes_of(places: list[Place]) -> list[Box]:
    """Return the boxes that these places are in, each once."""
    by_box: dict[Hashable, list[Place]] = {}
    for place in places:
        by_box.setdefault(place.box, []).append(place)
    boxes = []
    for inside in by_box.values():
        place, ranks = inside[0], len(inside)
        nodes = tuple(sorted({place.slot.node for place in inside}))
        nics = place.node_group.nics * len(nodes)
        nic = _nic_bytes_per_s(place.node_group, place.site)
        # The host link's efficiency is that of copies between devices; between a device and a NIC its line rate limits
        # (8 B200 behind 63 GB/s each send 47.7 GB/s: C00403, stas00/ml-engineering).
        host = place.node_group.host_link.bandwidth_bytes_per_s
        boxes.append(
            Box(
                place=place,
                ranks=ranks,
                nodes=nodes,
                bandwidth_bytes_per_s=min(min(ranks, nics_under(inside)) * nic, ranks * host),
                shared_bytes_per_s=nics * nic,
                hosted=max(1, place.node_group.devices * len(nodes) // ranks),
            )
        )
    return boxes


def nics_under(inside: Sequence[Place]) -> int:
    """Return how many NICs the ranks at these places of one box can send by (`NodeGroup.nics_under`)."""
    devices: defaultdict[int, list[int]] = defaultdict(list)
    for place in inside:
        devices[place.slot.node].append(place.slot.index)
    return sum(inside[0].node_group.nics_under(own) for own in devices.values())


def nic_bytes_per_s(cluster: Cluster, slot: DeviceSlot) -> float:
    """Return the bytes/s that leave the node of `slot` through all of its NICs."""
    node_group = cluster.group_of(slot)
    return node_group.nics * _nic_bytes_per_s(node_group, cluster.site(slot.site))


def _nic_bytes_per_s(node_group: NodeGroup, site: Site) -> float:
    return min(effective(node_group.nic_link), effective(site.fabric_link))


def check_nics(cluster: Cluster, boxes: list[Box]) -> None:
    """Raise InputError where one of several boxes has no NIC to reach the others by."""
    without = next((box.place for box in boxes if box.place.node_group.nics < 1), None)
    if without is not None and len(boxes) > 1:
        raise InputError(
            where=cluster.text,
            key=f"nics of the {without.slot.device} nodes in site {without.site.name}",
            found=f"{without.node_group.nics} on a node that has to reach another",
            expected="at least 1",
        )


def ways_above(site: Site, first: int, last: int) -> Hashable:
    """Return which levels of a tree that repeats two nodes of a site, and with them all between, share a part of."""
    return tuple(row[first] == row[last] for row in site.network.part_of_node)


def fabric_level(boxes: list[Box]) -> Level:
    """Return the level that joins boxes of one site, or of each of several, by their NICs."""
    nodes_by_site: defaultdict[str, set[int]] = defaultdict(set)
    for box in boxes:
        nodes_by_site[box.place.site.name].update(box.nodes)
    thinned = _thinned(boxes, nodes_by_site)
    hops_s = max(box.place.site.network.hops_s(nodes_by_site[box.place.site.name]) for box in boxes)
    nics = sorted({box.place.node_group.nic_link for box in boxes}, key=lambda link: (effective(link), link.name))
    fabrics = sorted({box.place.site.fabric_link for box in boxes} - {*nics}, key=lambda link: link.name)
    level = level_of("fabric", [*nics, *fabrics])
    return replace(
        level,
        latency_s=level.latency_s + hops_s,
        quick_latency_s=None if level.quick_latency_s is None else level.quick_latency_s + hops_s,
        bandwidth_bytes_per_s=min(box.bandwidth_bytes_per_s / by for box, by in zip(boxes, thinned, strict=True)),
        shared_bytes_per_s=min(box.shared_bytes_per_s / by for box, by in zip(boxes, thinned, strict=True)),
        hosted=min(box.hosted for box in boxes),
    )


def _thinned(boxes: Sequence[Box], nodes_by_site: Mapping[str, set[int]]) -> list[float]:
    return [box.place.site.network.thinned(nodes_by_site[box.place.site.name], box.nodes) for box in boxes]


def uneven_boxes(counted: Sequence[tuple[Box, int]]) -> tuple[BoxKind, ...]:
    """Return the boxes of one site, so many of each, as a group has them: none where all have as many ranks."""
    boxes = [box for box, _ in counted]
    if len({box.ranks for box in boxes}) == 1:
        return ()
    nodes = {boxes[0].place.site.name: {node for box in boxes for node in box.nodes}}
    kinds: Counter[tuple[int, float, float]] = Counter()
    for (box, count), by in zip(counted, _thinned(boxes, nodes), strict=True):
        kinds[box.ranks, box.bandwidth_bytes_per_s / by, box.shared_bytes_per_s / by] += count
    return tuple(
        BoxKind(ranks=ranks, count=count, bandwidth_bytes_per_s=alone, shared_bytes_per_s=shared)
        for (ranks, alone, shared), count in sorted(kinds.items(), reverse=True)
    )


def _site(cluster: Cluster, places: Sequence[Place], boxes: list[Box]) -> Level:
    """Sites joined by a ring in the order of the ranks (see `estimator.communication.site_routes`), whose links all
    crossing groups share. The level's name is the thinnest link's two sites."""
    through_nics: defaultdict[str, float] = defaultdict(float)
    ranks: Counter[str] = Counter()
    for box in boxes:
        through_nics[box.place.site.name] += box.bandwidth_bytes_per_s
        ranks[box.place.site.name] += box.ranks
    order = tuple(dict.fromkeys(place.site.name for place in places))
    routes = routes_of(cluster)
    ring = routes.ring(order)
    if ring is None:
        apart = next(other for other in order if routes.route(order[0], other) is None)
        raise InputError(
            where=cluster.text,
            key="links_between_sites",
            found=f"no way between {' and '.join(sorted((order[0], apart)))}",
            expected="links that join all sites of a group",
        )
    return Level(
        kind="site",
        link="-".join(sorted(ring.thinnest.between)),
        bandwidth_bytes_per_s=min(ring.bandwidth_bytes_per_s, *through_nics.values()),
        latency_s=ring.latency_s,
        shared_bytes_per_s=ring.bandwidth_bytes_per_s,
        hosted=min(
            sum(group.count * group.devices for group in cluster.site(name).nodes) // count
            for name, count in ranks.items()
        ),
    )


def routes_of(cluster: Cluster) -> SiteRoutes:
    """Return the cluster's routes between sites, made once."""
    routes = cluster.known_groups.get(SiteRoutes)
    if routes is None:
        routes = cluster.known_groups[SiteRoutes] = SiteRoutes(links=cluster.site_links)
    return cast("SiteRoutes", routes)
