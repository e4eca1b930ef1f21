"""Which devices of a pool stand for those that a job of some size would get, and the tree above them alone."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.sites.buddy import near_devices
from planner.many_jobs.sites.domains import domain_of_site
from profiles.cluster import DeviceSlot, Site
from profiles.network import FabricLevel, FabricPart, Network, SpreadTable
from profiles.records import dataclass


def near_slots(site: Site, pool: Sequence[DeviceSlot], devices: int) -> tuple[DeviceSlot, ...]:
    """Return so many of `pool`, devices of one type on a site, near each other as the buddy rule has it and part by
    part of the site's network; the first of them where no price depends on which."""
    if site.network.is_flat or devices >= len(pool):
        return tuple(pool[:devices])
    domain, slots = domain_of_site(site, pool[0].device)
    places = set(pool)
    chosen = near_devices(domain, (number for number, slot in enumerate(slots) if slot in places), devices)
    assert chosen is not None, "fewer are wanted than there are"
    return tuple(slots[number] for number in chosen)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LevelShape:
    """A level of a tree but for names: the part of each member of the level below, in order, and of each part how much
    thinner than the NICs below its uplinks are; `spread` are the shares of its table, collectives' and messages'."""

    part_of: tuple[int, ...]
    oversubscription: tuple[float, ...]
    hop_latency_s: float = 0.0
    spread: tuple[tuple[float, ...], ...] = ()


TreeShape = tuple[LevelShape, ...]


def tree_of_nodes(site: Site, nodes: Sequence[int]) -> TreeShape:
    """Return the tree above some nodes of a site, in this order, as if nothing else were there: uplinks stay as wide as
    they are, so that their oversubscription falls with the NICs below. Parts are numbered in the order of the nodes. ()
    where no price depends on it."""
    if site.network.is_flat and site.network.most_oversubscribed == 1:
        return ()
    rates = [group.nics * group.nic_bytes_per_s(site.fabric_link) for group in site.nodes for _ in range(group.count)]
    shapes = []
    below: Sequence[int] = tuple(nodes)
    for level, row in zip(site.network.levels, site.network.part_of_node, strict=True):
        members = [row[node] for node in below]
        parts = list(dict.fromkeys(members))
        numbers = {part: number for number, part in enumerate(parts)}
        here = dict.fromkeys(parts, 0.0)
        whole = dict.fromkeys(parts, 0.0)
        for node in nodes:
            here[row[node]] += rates[node]
        for node, part in enumerate(row):
            if part in whole:
                whole[part] += rates[node]
        shapes.append(
            LevelShape(
                part_of=tuple(numbers[part] for part in members),
                oversubscription=tuple(
                    level.parts[part].oversubscription * (here[part] / whole[part] if whole[part] else 1.0)
                    for part in parts
                ),
                hop_latency_s=level.hop_latency_s,
                spread=(level.spread.collective, level.spread.message) if level.spread else (),
            )
        )
        first = {row[node]: node for node in reversed(below)}
        below = [first[part] for part in parts]
    return tuple(shapes)


def network_of(shape: TreeShape) -> Network:
    """Return the tree of a shape, whose parts are called by their numbers."""
    return Network(
        levels=tuple(
            FabricLevel(
                name=f"level{depth}",
                parts=tuple(
                    FabricPart(name=str(number), oversubscription=ratio)
                    for number, ratio in enumerate(level.oversubscription)
                ),
                part_of=level.part_of,
                hop_latency_s=level.hop_latency_s,
                spread=_spread(level),
            )
            for depth, level in enumerate(shape)
        )
    )


def _spread(level: LevelShape) -> SpreadTable | None:
    if not level.spread:
        return None
    collective, message = level.spread
    return SpreadTable(collective=collective, message=message, source="the site's")
