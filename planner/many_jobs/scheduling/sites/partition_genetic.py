"""A genetic search over partitions, after DT-FM (Yuan et al. 2022), as the baseline that SpiderFlow compares with.

Steady state: two parents at random, a child that takes each node's part from one of them, repaired to the capacities,
then a local search by moves and swaps (Kernighan & Lin 1970); it replaces the worst of the population if it is better.
DT-FM's costs are of its own pipelines; here they are the traffic cut, so that all methods minimise the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from random import Random

from planner.many_jobs.scheduling.sites.partition import Partition, PartitionGraph, measure
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Breeding:
    """Size of the population, children at most, and the share of a child's nodes that get a random part."""

    population: int = 64
    children: int = 100_000
    mutated: float = 0.02


def breed_partition(
    graph: PartitionGraph,
    capacities: Sequence[int],
    *,
    seed: int = 0,
    breeding: Breeding | None = None,
    watch: Callable[[Partition], bool] | None = None,
) -> Partition:
    """Return the best partition of the population in the end. `watch` sees the best so far after each child, and ends
    the search by True."""
    effort, rng = breeding or Breeding(), Random(seed)
    by_key = attrgetter("key")
    count = len(capacities)
    population: list[Partition] = []
    for _ in range(effort.population):
        parts = [rng.randrange(count) for _ in range(graph.nodes)]
        population.append(_raised(graph, parts, capacities, rng))
        if watch is not None and watch(min(population, key=by_key)):
            return min(population, key=by_key)
    for _ in range(effort.children):
        first, second = rng.sample(population, 2)
        child = [a if rng.random() < 0.5 else b for a, b in zip(first.parts, second.parts, strict=True)]
        for node in range(graph.nodes):
            if rng.random() < effort.mutated:
                child[node] = rng.randrange(count)
        raised = _raised(graph, child, capacities, rng)
        worst = max(range(len(population)), key=lambda place: population[place].key)
        if raised.key < population[worst].key and all(raised.key != each.key for each in population):
            population[worst] = raised
        if watch is not None and watch(min(population, key=by_key)):
            break
    return min(population, key=by_key)


def _raised(graph: PartitionGraph, parts: list[int], capacities: Sequence[int], rng: Random) -> Partition:
    """The child after repair and one round of moves and swaps over all nodes."""
    first, other, weight = graph.neighbours
    loads: list[int] = graph.loads.tolist()
    room = list(capacities)
    for node, part in enumerate(parts):
        room[part] -= loads[node]
    order = list(range(graph.nodes))
    rng.shuffle(order)
    for node in order:
        here = parts[node]
        sent = [0] * len(room)
        for place in range(first[node], first[node + 1]):
            sent[parts[other[place]]] += weight[place]
        if room[here] < 0:
            fitting = [part for part in range(len(room)) if part != here and room[part] >= loads[node]]
            target = max(fitting, key=lambda part: sent[part], default=here)
        else:
            wanted = max(range(len(room)), key=lambda part: sent[part])
            target = wanted if sent[wanted] > sent[here] else here
        if target == here:
            continue
        if room[target] >= loads[node]:
            room[here] += loads[node]
            room[target] -= loads[node]
            parts[node] = target
        else:
            _swap(node, target, parts, loads, room, sent, (first, other, weight), rng)
    return measure(graph, parts, capacities)


def _swap(
    node: int,
    target: int,
    parts: list[int],
    loads: list[int],
    room: list[int],
    sent: list[int],
    lists: tuple[list[int], list[int], list[int]],
    rng: Random,
) -> None:
    """Change places with one of a few nodes of `target` if that cuts less."""
    first, other, weight = lists
    here = parts[node]
    there = [other_node for other_node, part in enumerate(parts) if part == target]
    for partner in rng.sample(there, min(8, len(there))):
        more = loads[node] - loads[partner]
        if room[target] < more or room[here] < -more:
            continue
        gain = sent[target] - sent[here]
        for place in range(first[partner], first[partner + 1]):
            if other[place] == node:
                gain -= 2 * weight[place]
            elif parts[other[place]] == here:
                gain += weight[place]
            elif parts[other[place]] == target:
                gain -= weight[place]
        if gain > 0:
            parts[node], parts[partner] = target, here
            room[target] -= more
            room[here] += more
            return
