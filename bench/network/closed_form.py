"""The closed form of a collective beside the flows that it is made of, on a fabric whose every cable is there.

    python -m bench.network closed-form [--most 4096] [--bytes 1e9]

One group alone: ranks 0, 1, ... in the cluster's order, 2 to 4,096 of them. The closed form is
`estimator.communication.algorithms`. Flow level: NCCL's connections for the collective, each on its way, all flows in
lockstep, so that the fullest link sets its pace; what passes inside nodes, and latency, are the closed form's own, as
are the shares of a NIC that trees and exchanges reach (0.92 of NCCL's model, `exchange_efficiency`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from estimator.communication.algorithms import TREE_SHARE, Line, algorithm_lines
from estimator.communication.groups import Group, describe_group
from estimator.network.connections import loads_of
from estimator.network.fabric import Fabric, Seat, fabric_of
from estimator.network.queue_pairs import connections_of
from estimator.network.traffic import Exchange
from profiles.cluster import Cluster, DeviceSlot
from profiles.cluster_file import load_cluster, name_cluster
from profiles.records import dataclass, replace
from profiles.vocabulary import CollectiveOp

WITHIN = 0.02
WHY = """Trees between two boxes: each sends the other all bytes once (of three, the busiest sends them one and a half
times); the closed form has every tree send them twice, as the busiest box of four or more does, and as NCCL's own model
has it when it chooses. Where a tree was forced on two nodes, they were sent once (C00744: 33.5 MB in 0.81 ms over 400
Gb/s); where NCCL chose, large sums on two nodes took what the ring takes (C00724 and C00726: a tree that sends once,
and is chosen, would be 46 and 43% too quick)."""
FORMS: tuple[tuple[CollectiveOp, str], ...] = (
    ("all_reduce", "ring"),
    ("all_reduce", "tree"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
    ("all_to_all", "exchange"),
    ("send_recv", "message"),
)
LARGEST_EXCHANGE = 512
"""Of an all_to_all's ranks: it has a connection for each two."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cluster, what to call it, and why both may differ there ("": nothing is oversubscribed)."""

    name: str
    cluster: Cluster
    why: str = ""


def places(most: int) -> Iterator[Place]:
    """Clusters with room for so many ranks."""
    nodes = max(2, most // 8)
    pods = 4 if nodes >= 16 else 2

    def site(**fabric: object) -> Cluster:
        return _cluster([{"count": nodes, "device": "h100", "devices": 8}], fabric)

    def clos(**topology: object) -> Cluster:
        return site(topology={"kind": "clos2", "leaves": pods, **topology}, routing={"kind": "spray"})

    yield Place(name="nothing above the NICs", cluster=site())
    yield Place(name="clos2, sprayed", cluster=clos(spines=8, cables=nodes // pods))
    yield Place(name="rail, sprayed", cluster=site(topology=_rail(nodes, pods), routing={"kind": "spray"}))
    yield Place(
        name="clos2, ecmp",
        cluster=site(
            topology={"kind": "clos2", "leaves": pods, "spines": 8, "cables": nodes // pods}, routing={"kind": "ecmp"}
        ),
        why="two connections of one channel hashed onto one cable; the closed form knows no hash",
    )
    yield Place(name="4 to a node", cluster=load_cluster(f"a100-40gb:{max(2, most // 4)}x4"))
    yield Place(name="islands of 72 (NVL72)", cluster=load_cluster(f"gb200:{max(36, -(-most // 72) * 18)}x4"))
    yield Place(name="two sites", cluster=_sites(nodes), why="")
    yield Place(name="pods, oversubscribed 4", cluster=site(pods=pods, oversubscription=4))
    yield Place(name="pods, oversubscribed 64", cluster=site(pods=pods, oversubscription=64))
    yield Place(
        name="clos2, oversubscribed 4, sprayed",
        cluster=clos(spines=2, cables=max(1, nodes // pods)),
    )


def _rail(nodes: int, pods: int) -> dict[str, object]:
    per_pod = nodes // pods
    return {"kind": "rail", "nodes_per_pod": per_pod, "spines": 8, "cables": max(1, -(-per_pod // 8))}


def _cluster(nodes: list[dict[str, object]], fabric: dict[str, object]) -> Cluster:
    written = {
        "schema": "cellplan.cluster/1",
        "sites": [{"name": "here", "nodes": nodes, "fabric": {"link": "ib-ndr400", **fabric}}],
    }
    return load_cluster(name_cluster(written))


def _sites(nodes: int) -> Cluster:
    written = {
        "schema": "cellplan.cluster/1",
        "sites": [
            {
                "name": name,
                "nodes": [{"count": nodes // 2, "device": "h100", "devices": 8}],
                "fabric": {"link": "ib-ndr400"},
            }
            for name in ("north", "south")
        ],
        "links_between_sites": [{"between": ["north", "south"], "bandwidth_bytes_per_s": 1.25e10, "latency_s": 5e-3}],
    }
    return load_cluster(name_cluster(written))


def flow_line(op: CollectiveOp, algorithm: str, group: Group, fabric: Fabric, seats: Sequence[Seat]) -> Line:
    """Return what a collective of one group alone costs whose flows are on the links of a fabric."""
    outside = [level for level in group.levels if level.kind in ("fabric", "site")]
    if not outside:
        return _line(op, algorithm, group)
    levels = (
        replace(level, bandwidth_bytes_per_s=1e30, shared_bytes_per_s=1e30, above=None) if level in outside else level
        for level in group.levels
    )
    inside = _line(op, algorithm, replace(group, levels=tuple(levels), boxes=()))
    tree: Literal["tree"] | None = "tree" if algorithm == "tree" else None
    ranks = tuple(range(len(seats)))
    exchange = Exchange(axis="dp", op=op, size_bytes=1.0, groups=(ranks,), alone_s=1.0, algorithm=tree)
    pairs = connections_of(exchange, seats, fabric)
    loads = loads_of(pairs, fabric, amounts=pairs.sizes, owners=np.zeros(len(pairs), np.int64))
    busy_s = loads.amounts / fabric.links.bytes_per_s[loads.links]
    tiers = fabric.links.tier_of[fabric.links.ends[loads.links]]
    at_node = (tiers == 0).any(axis=1)
    if outside[-1].kind == "site":
        at_node |= (tiers == fabric.links.tier_of.max()).all(axis=1)
    # What of a link an algorithm reaches is told of NICs and of links between sites; others are as full as they can be.
    share = TREE_SHARE if algorithm == "tree" else 1.0
    if algorithm == "exchange":
        share = min(level.exchange_share for level in outside)
    network_s = max(float(busy_s[at_node].max(initial=0.0)) / share, float(busy_s[~at_node].max(initial=0.0)))
    both = inside.seconds_per_byte + network_s if algorithm == "exchange" else max(inside.seconds_per_byte, network_s)
    return replace(inside, seconds_per_byte=both)


def _line(op: CollectiveOp, algorithm: str, group: Group) -> Line:
    """The algorithm in the protocol of large messages."""
    return next(line for line in algorithm_lines(op, group, 1) if line.algorithm == algorithm)


def main(argv: Sequence[str]) -> None:
    """Print a row for each place and form: the ranks at which they differ most."""
    parser = argparse.ArgumentParser(prog="bench.network closed-form")
    parser.add_argument("--most", type=int, default=4096)
    parser.add_argument("--bytes", type=float, default=1e9)
    options = parser.parse_args(argv)
    print(f"{'place':32} {'op':15} {'form':9} {'parts':>5} ranks at worst   closed form    flow level  flow / closed")
    for place in places(options.most):
        fabric = fabric_of(place.cluster)
        for (op, algorithm, parts), (off, ranks, closed_s, at_flow_s) in _worst(
            place.cluster, fabric, options.most, options.bytes
        ).items():
            print(
                f"{place.name:32} {op:15} {algorithm:9} {parts:>5} {ranks:14,} {closed_s * 1e3:10.3f} ms"
                f" {at_flow_s * 1e3:10.3f} ms {at_flow_s / closed_s:14.4f}{'' if off <= WITHIN else '  *'}"
            )
        if place.why:
            print(f"{'':32} {place.why}")
    print("\n* more than 2% apart. " + WHY)


def _worst(
    cluster: Cluster, fabric: Fabric, most: int, size_bytes: float
) -> dict[tuple[CollectiveOp, str, str], tuple[float, int, float, float]]:
    """By form, for groups in two boxes and in more: by how much both differ at most, at how many ranks, and both."""
    found: dict[tuple[CollectiveOp, str, str], tuple[float, int, float, float]] = {}
    every = cluster.slots
    nodes = {place: number for number, place in enumerate(dict.fromkeys((slot.site, slot.node) for slot in every))}
    ranks = 2
    while ranks <= min(most, len(every)):
        for op, algorithm in FORMS:
            if (op == "send_recv" and ranks > 2) or (op == "all_to_all" and ranks > LARGEST_EXCHANGE):
                continue
            slots = _spread(cluster, ranks, apart=op == "send_recv")
            seats = [Seat(node=nodes[slot.site, slot.node], device=slot.index) for slot in slots]
            boxes = len({int(fabric.box_of_node[seat.node]) for seat in seats})
            group = describe_group(cluster, slots)
            closed_s = _line(op, algorithm, group).seconds(size_bytes)
            at_flow_s = flow_line(op, algorithm, group, fabric, seats).seconds(size_bytes)
            key = (op, algorithm, "2" if boxes == 2 else "more")
            row = (abs(at_flow_s / closed_s - 1), ranks, closed_s, at_flow_s)
            if boxes > 1:
                found[key] = max(found.get(key, row), row)
        ranks *= 2
    return found


def _spread(cluster: Cluster, ranks: int, *, apart: bool) -> tuple[DeviceSlot, ...]:
    """The first devices; of two sites as many of each; of two that are to be `apart` the first and the last."""
    every = cluster.slots
    if apart:
        return every[0], every[-1]
    if len(cluster.sites) == 1:
        return every[:ranks]
    return (*every[: ranks // 2], *every[len(every) // 2 :][: ranks // 2])
