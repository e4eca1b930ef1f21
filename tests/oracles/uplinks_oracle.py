"""Every byte of every group walked over every link of the tree above the nodes, one step at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from profiles.cluster import Cluster, DeviceSlot

Part = tuple[str, int, int]
"""Site, level, number of the part."""
Sent = dict[tuple[Part, str], float]
"""Bytes by uplink and direction."""


def walk(cluster: Cluster, sender: DeviceSlot, receiver: DeviceSlot, size: float, sent: Sent) -> None:
    """Put `size` bytes on each uplink from one node to another: up out of every part that holds the sender alone, down
    into every one that holds the receiver alone."""
    for slot, other, way in ((sender, receiver, "up"), (receiver, sender, "down")):
        others = cluster.site(other.site).network.path(other.node)
        for level, part in enumerate(cluster.site(slot.site).network.path(slot.node)):
            if slot.site != other.site or others[level] != part:
                sent[(slot.site, level, part), way] += size


def ring(members: Sequence[DeviceSlot]) -> list[DeviceSlot]:
    """The first rank of each node, in the order of the ranks."""
    order: dict[tuple[str, int], DeviceSlot] = {}
    for slot in members:
        order.setdefault((slot.site, slot.node), slot)
    return list(order.values())


def parents(count: int) -> list[tuple[int, int]]:
    """Children and parents of both binary trees over so many: in the first, a number whose lowest bit is b has children
    at half of b to either side, as far as there are such, else nearer ones."""

    def first_tree(number: int, reach: int) -> list[tuple[int, int]]:
        edges = []
        for step in (-1, 1):
            half, child = reach // 2, number + step * (reach // 2)
            while half and child >= count:
                half //= 2
                child = number + half
            if half and child < count:
                edges += [(child, number), *first_tree(child, half)]
        return edges

    top = 1
    while top < count:
        top *= 2
    begin = top // 2
    edges = [(begin, 0), *first_tree(begin, begin)] if count > 1 else []
    if count % 2 == 0:
        return edges + [(count - 1 - child, count - 1 - parent) for child, parent in edges]
    return edges + [((child + 1) % count, (parent + 1) % count) for child, parent in edges]


def bytes_sent(cluster: Cluster, groups: Sequence[Sequence[DeviceSlot]], way: str) -> Sent:
    """What all groups put on the uplinks, each given one byte."""
    sent: Sent = defaultdict(float)
    for members in groups:
        order = ring(members)
        count = len(members)
        if way == "ring" and len(order) > 1:
            for here, there in zip(order, [*order[1:], order[0]], strict=True):
                walk(cluster, here, there, 1.0, sent)
        elif way == "tree":
            for child, parent in parents(len(order)):
                walk(cluster, order[child], order[parent], 0.5, sent)
                walk(cluster, order[parent], order[child], 0.5, sent)
        elif way == "exchange":
            for here in members:
                for there in members:
                    walk(cluster, here, there, 1 / count, sent)
        elif way == "once":
            for part in {link for link, _ in bytes_sent(cluster, [members], "exchange")}:
                sent[part, "up"] += 1.0
                sent[part, "down"] += 1.0
    return sent


def seconds_of(cluster: Cluster, part: Part) -> float:
    """Seconds of a byte through the uplinks of a part; 0 where they are as wide as the NICs below."""
    site, network = cluster.site(part[0]), cluster.site(part[0]).network
    over = network.levels[part[1]].parts[part[2]].oversubscription
    groups = [group for group in site.nodes for _ in range(group.count)]
    fabric = site.fabric_link.bandwidth_bytes_per_s * site.fabric_link.efficiency
    rates = [
        group.nics * min(fabric, group.nic_link.bandwidth_bytes_per_s * group.nic_link.efficiency) for group in groups
    ]
    below = sum(rate for node, rate in enumerate(rates) if network.path(node)[part[1]] == part[2])
    return over / below if over > 1 else 0.0


def slowest_s(cluster: Cluster, sent: Sent, used: Sent) -> float:
    """Seconds of the busiest of the uplinks that are `used`."""
    return max((sent[link] * seconds_of(cluster, link[0]) for link in used), default=0.0)
