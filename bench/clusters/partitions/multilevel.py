"""A partitioner in several levels: merge along heavy edges, cut the small graph, refine on the way back.

Coarsening is heavy-edge matching (Karypis & Kumar 1998), the smallest graph is cut by growing parts greedily, every
level is refined by `bench.clusters.partitions.refine`. Several seeded starts make a pool, of which the best are
annealed (`bench.clusters.partitions.anneal`): refinement alone stays behind where the graph has little
structure. Then pairs of the pool are combined: what both leave together is merged, so that only what they cut
differently is decided anew (Sanders & Schulz 2012, KaFFPaE). Work is limited by counts, so that the same seed gives the
same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from bench.clusters.partitions.anneal import anneal
from bench.clusters.partitions.refine import refine
from planner.many_jobs.scheduling.sites.partition import Ints, Partition, PartitionGraph, measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried: `starts` from nothing, `tries` at the smallest graph of each, the best `anneals` of them
    annealed by `steps` a node, `combinations` of two of the best `pool`, `passes` of refinement a level, each ended by
    `patience` moves without a better state."""

    starts: int = 4
    tries: int = 1
    anneals: int = 3
    steps: int = 2200
    pool: int = 8
    combinations: int = 30
    passes: int = 4
    patience: int = 60


HOT, COLD = 2.5, 0.25
"""First and last temperature of annealing, in means of an edge's traffic."""


def effort_for(nodes: int) -> Effort:
    """The default: about as much as the time that a decision may take allows, on graphs of so many nodes."""
    if nodes <= 200:
        return Effort()
    if nodes <= 800:
        return Effort(starts=2, anneals=2, steps=3700, combinations=8)
    return Effort(starts=2, anneals=2, steps=2000, combinations=4)


def partition_graph(
    graph: PartitionGraph,
    capacities: Sequence[int],
    *,
    seed: int = 0,
    effort: Effort | None = None,
    watch: Callable[[Partition], bool] | None = None,
) -> Partition:
    """Parts within `capacities` that cut little traffic; `excess` above 0 where none was found that fits.

    `watch` sees the best so far, and ends the search by True. ValueError without parts.
    """
    if not capacities:
        raise ValueError("partition_graph: no capacities; expected one for each part")
    rng, known = Random(seed), effort or effort_for(graph.nodes)
    if len(capacities) == 1 or not graph.nodes:
        return measure(graph, [0] * graph.nodes, capacities)
    pool: list[Partition] = []
    for _ in range(known.starts):
        _admit(pool, _start(graph, capacities, rng, known), known.pool)
        if watch is not None and watch(pool[0]):
            return pool[0]
    for found in pool[: known.anneals]:
        _admit(pool, _annealed(graph, capacities, found, rng, known), known.pool)
        if watch is not None and watch(pool[0]):
            return pool[0]
    for number in range(known.combinations):
        if number % 4 == 3 or len(pool) == 1:
            # One alone: merged inside its parts another way, then refined on every level.
            pair = (pool[rng.randrange(len(pool))],)
        else:
            one, other = sorted(rng.sample(range(len(pool)), 2))
            pair = (pool[one], pool[other])  # type: ignore[assignment]
        _admit(pool, _combine(graph, capacities, pair, rng, known), known.pool)
        if watch is not None and watch(pool[0]):
            break
    return pool[0]


def _admit(pool: list[Partition], found: Partition, most: int) -> None:
    """Into the pool, which stays sorted and without doubles; in place of its worst where that is worse."""
    if any(one.key == found.key for one in pool):
        return
    pool.append(found)
    pool.sort(key=lambda one: one.key)
    del pool[most:]


def _start(graph: PartitionGraph, capacities: Sequence[int], rng: Random, effort: Effort) -> Partition:
    levels = _coarsen(graph, capacities, rng, keep=None)
    small = levels[-1][0]
    best: tuple[tuple[int, int], list[int]] | None = None
    for _ in range(effort.tries):
        parts = _grow(small, capacities, rng)
        refine(small, parts, capacities, rng, passes=effort.passes, patience=effort.patience)
        key = measure(small, parts, capacities).key
        if best is None or key < best[0]:
            best = key, parts
    assert best is not None
    return _uncoarsen(levels, best[1], capacities, rng, effort)


def _annealed(
    graph: PartitionGraph, capacities: Sequence[int], found: Partition, rng: Random, effort: Effort
) -> Partition:
    parts = list(found.parts)
    mean = float(graph.traffic.mean()) if len(graph.traffic) else 1.0
    anneal(graph, parts, capacities, rng, steps=effort.steps * graph.nodes, hot=HOT * mean, cold=COLD * mean)
    refine(graph, parts, capacities, rng, passes=effort.passes, patience=effort.patience)
    return measure(graph, parts, capacities)


def _combine(
    graph: PartitionGraph, capacities: Sequence[int], parents: Sequence[Partition], rng: Random, effort: Effort
) -> Partition:
    """At least as good as the first parent."""
    kinds = np.zeros(graph.nodes, dtype=np.int64)
    for parent in parents:
        kinds = kinds * len(capacities) + np.array(parent.parts)
    levels = _coarsen(graph, capacities, rng, keep=kinds)
    parts = np.array(parents[0].parts)
    for _, into in levels[1:]:
        smaller = np.zeros(int(into.max()) + 1, dtype=np.int64)
        smaller[into] = parts
        parts = smaller
    return _uncoarsen(levels, parts.tolist(), capacities, rng, effort)


Level = tuple[PartitionGraph, Ints]
"""A graph, and where in it the nodes of the one before are."""


def _coarsen(graph: PartitionGraph, capacities: Sequence[int], rng: Random, keep: Ints | None) -> list[Level]:
    """The graph, and smaller ones. With `keep` nodes are merged only with those of the same number."""
    levels: list[Level] = [(graph, np.arange(graph.nodes))]
    target = max(24, 4 * len(capacities)) if keep is None else 8
    heaviest = max(1, min(min(capacities) // 2, 3 * int(graph.loads.sum()) // (2 * target)))
    heaviest = max(heaviest, int(graph.loads.max()))
    while levels[-1][0].nodes > target:
        current = levels[-1][0]
        into = _match(current, heaviest, rng, None if keep is None else keep.tolist())
        smaller = int(into.max()) + 1
        if smaller > 0.95 * current.nodes:
            break
        levels.append((merge(current, into), into))
        if keep is not None:
            kinds = np.zeros(smaller, dtype=np.int64)
            kinds[into] = keep
            keep = kinds
    return levels


def _match(graph: PartitionGraph, heaviest: int, rng: Random, keep: list[int] | None) -> Ints:
    """Each node with the neighbour to which it sends most, as far as that is free and both are not too heavy."""
    first, other, weight = graph.neighbours
    loads: list[int] = graph.loads.tolist()
    order = list(range(graph.nodes))
    rng.shuffle(order)
    into = [-1] * graph.nodes
    count = 0
    for node in order:
        if into[node] >= 0:
            continue
        best, most = -1, 0.0
        for place in range(first[node], first[node + 1]):
            there = other[place]
            if (
                into[there] < 0
                and loads[node] + loads[there] <= heaviest
                and (keep is None or keep[node] == keep[there])
            ):
                # Light nodes first, so that loads stay even (the weight of an edge by what it joins).
                value = weight[place] ** 2 / max(1, loads[node] * loads[there])
                if value > most:
                    best, most = there, value
        into[node] = count
        if best >= 0:
            into[best] = count
        count += 1
    return np.array(into)


def _uncoarsen(
    levels: list[Level], parts: list[int], capacities: Sequence[int], rng: Random, effort: Effort
) -> Partition:
    for place in range(len(levels) - 1, -1, -1):
        graph = levels[place][0]
        refine(graph, parts, capacities, rng, passes=effort.passes, patience=effort.patience)
        if place:
            parts = np.array(parts)[levels[place][1]].tolist()
    return measure(levels[0][0], parts, capacities)


def _grow(graph: PartitionGraph, capacities: Sequence[int], rng: Random) -> list[int]:
    """Parts grown from random nodes: the emptiest part, by share of its capacity, takes the node that sends most to it
    and still fits; what fits nowhere goes where most room is."""
    first, other, weight = graph.neighbours
    loads: list[int] = graph.loads.tolist()
    parts, room = [-1] * graph.nodes, list(capacities)
    pulls: list[dict[int, int]] = [{} for _ in room]
    left = set(range(graph.nodes))
    shuffled = list(left)
    rng.shuffle(shuffled)
    open_parts = set(range(len(room)))
    while left:
        if not open_parts:
            node = max(left, key=lambda one: loads[one])
            part = max(range(len(room)), key=room.__getitem__)
        else:
            part = max(open_parts, key=lambda one: (room[one] / max(1, capacities[one]), -one))
            fitting = [(pull, -node) for node, pull in pulls[part].items() if loads[node] <= room[part]]
            if fitting:
                node = -max(fitting)[1]
            else:
                node = next((one for one in shuffled if one in left and loads[one] <= room[part]), -1)
                if node < 0:
                    open_parts.discard(part)
                    continue
        parts[node] = part
        room[part] -= loads[node]
        left.discard(node)
        for pull in pulls:
            pull.pop(node, None)
        for place in range(first[node], first[node + 1]):
            there = other[place]
            if parts[there] < 0:
                pulls[part][there] = pulls[part].get(there, 0) + weight[place]
    return parts


def merge(graph: PartitionGraph, into: Ints) -> PartitionGraph:
    """The graph in which nodes with the same number in `into` (0, 1, ... without gaps) are one."""
    nodes = int(into.max()) + 1
    loads = np.zeros(nodes, dtype=np.int64)
    np.add.at(loads, into, graph.loads)
    ends = np.sort(into[graph.edges], axis=1)
    kept = ends[:, 0] != ends[:, 1]
    keys, which = np.unique(ends[kept, 0] * nodes + ends[kept, 1], return_inverse=True)
    traffic = np.zeros(len(keys), dtype=np.int64)
    np.add.at(traffic, which.ravel(), graph.traffic[kept])
    return PartitionGraph(loads=loads, edges=np.stack([keys // nodes, keys % nodes], axis=1), traffic=traffic)
