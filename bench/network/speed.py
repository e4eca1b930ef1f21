"""How fast ways are found: `speed`.

One all-reduce over all GPUs of a three-tier Clos, every connection of it with its own way: rings through the nodes in
their order, in which most of it stays under a leaf, or in one that is drawn, in which all of it passes the cores. CPU
seconds of this process, the least of so many runs; the memory is the process's highest so far. Connections that are
sprayed over the cores one by one are left out: each is on a thousand links. The baseline is the same walk in plain
Python, a dictionary and a loop for each packet, on as many connections as it does in some seconds.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from estimator.network.connections import Seat, transfer_of
from estimator.network.fabric import fabric_of
from estimator.network.links import Links
from estimator.network.queue_pairs import connections_of
from estimator.network.traffic import Exchange
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.routing import Routing, RoutingKind

Result = TypeVar("Result")

DEVICES = 8
KINDS: tuple[RoutingKind, ...] = ("ecmp", "spray", "infiniband")
SIZES = ((2_048, 32), (12_512, 92))
"""Nodes, in so many pods: 16,384 and 100,096 GPUs."""
BASELINE_FLOWS = 500


def main(argv: Sequence[str]) -> None:
    """Print a row for each fabric and rule."""
    parser = argparse.ArgumentParser(prog="bench.network speed", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(argv)
    print("| GPUs | links | ring | rule | read and built, s | connections | in lockstep, s | each by itself, s | MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for nodes, pods in SIZES:
        for drawn in (False, True):
            for kind in KINDS:
                print(_row(nodes, pods, kind, options.runs, drawn=drawn), flush=True)
    fabric = fabric_of(clos(*SIZES[0]), routing=Routing(kind="ecmp"))
    flows = connections_of(all_reduce(SIZES[0][0]), seats(SIZES[0][0]), fabric).flows
    some = flows.at(np.arange(BASELINE_FLOWS))
    pairs = list(zip(some.sources.tolist(), some.destinations.tolist(), some.ports.tolist(), strict=True))
    around = neighbours(fabric.links)
    took_s, _ = timed(lambda: [walk_plainly(fabric.links, around, *pair) for pair in pairs], 1)
    each_s = took_s / len(pairs)
    print(
        f"\nplain Python, {len(pairs)} of the connections of 16,384 GPUs: {took_s:.1f} s, {each_s * 1e3:.1f} ms each;"
        f" {each_s * len(flows):.0f} s for all {len(flows):,}"
    )


def _row(nodes: int, pods: int, kind: RoutingKind, runs: int, *, drawn: bool) -> str:
    built_s, fabric = timed(lambda: fabric_of(clos(nodes, pods), routing=Routing(kind=kind)), runs)
    where, exchange = seats(nodes, drawn=drawn), all_reduce(nodes)
    together_s, _ = timed(lambda: transfer_of(exchange, where, fabric, model="collective"), runs)
    connections, apart = len(connections_of(exchange, where, fabric)), "-"
    if not (drawn and kind == "spray"):
        apart_s, _ = timed(lambda: transfer_of(exchange, where, fabric, model="flow"), runs)
        apart = f"{apart_s:.2f}"
    highest_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"| {nodes * DEVICES:,} | {fabric.links.count:,} | {'drawn' if drawn else 'in order'} | {kind} |"
        f" {built_s:.2f} | {connections:,} | {together_s:.2f} | {apart} | {highest_mib:,.0f} |"
    )


def clos(nodes: int, pods: int) -> Cluster:
    """Three tiers without oversubscription: 8 nodes of 8 NICs under a leaf, 64 cables up from it."""
    leaves = -(-nodes // pods // 8)
    topology = {
        "kind": "clos3",
        "pods": pods,
        "leaves": leaves,
        "aggregations": 8,
        "cores": 64,
        "cables": 8,
        "core_cables": leaves,
    }
    group = {"count": nodes, "device": "h100"}
    site = {"name": "site", "nodes": [group], "fabric": {"link": "ib-ndr400", "topology": topology}}
    return load_cluster(name_cluster({"sites": [site]}))


def seats(nodes: int, *, drawn: bool = False) -> list[Seat]:
    """All devices, node by node in the cluster's order, or in one that is drawn (seed 0)."""
    order = np.random.default_rng(0).permutation(nodes) if drawn else np.arange(nodes)
    return [Seat(node=node, device=device) for node in order.tolist() for device in range(DEVICES)]


def all_reduce(nodes: int) -> Exchange:
    """A GB over all devices; its time is of no matter here."""
    ranks = tuple(range(nodes * DEVICES))
    return Exchange(axis="dp", op="all_reduce", size_bytes=1e9, groups=(ranks,), alone_s=0.05)


def timed(work: Callable[[], Result], runs: int) -> tuple[float, Result]:
    """The least CPU seconds of some runs, and what the last returned."""
    least = float("inf")
    for _ in range(runs):
        begun = time.process_time()
        result = work()
        least = min(least, time.process_time() - begun)
    return least, result


Around = dict[int, list[tuple[int, int]]]
"""Of each switch the switches at its cables, with the links."""


def neighbours(links: Links) -> Around:
    """Return which switches are at the cables of each."""
    around: Around = {}
    for link, (start, end) in enumerate(links.ends.tolist()):
        if start >= links.nodes and end >= links.nodes:
            around.setdefault(start, []).append((end, link))
    return around


def walk_plainly(links: Links, around: Around, source: int, destination: int, port: int) -> list[int]:
    """Hop by hop over what a search breadth first from the destination's switch says is nearer."""
    (first,), (last,) = (
        links.ports[links.port_begins[nic] : links.port_begins[nic + 1]].tolist() for nic in (source, destination)
    )
    at, goal = int(links.ends[first, 1]), int(links.ends[last, 1])
    far, front = {goal: 0}, deque([goal])
    while front:
        vertex = front.popleft()
        for after, _ in around[vertex]:
            if after not in far:
                far[after] = far[vertex] + 1
                front.append(after)
    way = [first]
    while at != goal:
        nearer = [(after, link) for after, link in around[at] if far[after] == far[at] - 1]
        at, link = nearer[hash((at, source, destination, port)) % len(nearer)]
        way.append(link)
    return [*way, last ^ 1]
