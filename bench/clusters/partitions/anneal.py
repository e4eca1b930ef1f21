"""Better partitions by simulated annealing: moves, and swaps where a part is full (Johnson et al. 1989).

A step takes a node and the part of one of its neighbours. Where there is room the node moves, else it changes places
with a node of that part; what makes the cut d worse happens with probability exp(-d / T), T falling by even factors.
The best state on the way is kept, and capacities are never exceeded more than they were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from planner.many_jobs.scheduling.sites.partition import PartitionGraph


def anneal(
    graph: PartitionGraph,
    parts: list[int],
    capacities: Sequence[int],
    rng: Random,
    *,
    steps: int,
    hot: float,
    cold: float,
) -> int:
    """Change `parts` in place; how much the cut fell, at least 0. `hot` and `cold` are the first and last temperature,
    in units of traffic."""
    first, other, weight = graph.neighbours
    loads: list[int] = graph.loads.tolist()
    neighbours = [other[first[node] : first[node + 1]] for node in range(graph.nodes)]
    weights = [weight[first[node] : first[node + 1]] for node in range(graph.nodes)]
    state = _State(parts, capacities, loads, neighbours, weights)
    room, sent, members, traffic = state.room, state.sent, state.members, state.traffic
    random, exp, count = rng.random, math.exp, graph.nodes
    cooler = (cold / hot) ** (1 / max(1, steps))
    temperature, current, best, kept = hot, 0, 0, parts[:]
    for _ in range(steps):
        temperature *= cooler
        node = int(random() * count)
        near = neighbours[node]
        if not near:
            continue
        own, target = parts[node], parts[near[int(random() * len(near))]]
        if own == target:
            continue
        row = sent[node]
        worse = row[own] - row[target]
        if room[target] >= loads[node]:
            if worse > 0 and random() >= exp(-worse / temperature):
                continue
            state.move(node, own, target)
        else:
            there = members[target]
            partner = there[int(random() * len(there))]
            more = loads[node] - loads[partner]
            if room[target] < more or room[own] < -more:
                continue
            back = sent[partner]
            worse += back[target] - back[own] + 2 * traffic[node].get(partner, 0)
            if worse > 0 and random() >= exp(-worse / temperature):
                continue
            state.move(node, own, target)
            state.move(partner, target, own)
        current += worse
        if current < best:
            best, kept = current, parts[:]
    parts[:] = kept
    return -best


class _State:
    """Parts, the room in each, its members, and what each node sends to each part."""

    def __init__(
        self,
        parts: list[int],
        capacities: Sequence[int],
        loads: list[int],
        neighbours: list[list[int]],
        weights: list[list[int]],
    ) -> None:
        self.parts, self.loads, self.neighbours, self.weights = parts, loads, neighbours, weights
        self.room = list(capacities)
        self.sent = [[0] * len(self.room) for _ in parts]
        self.members: list[list[int]] = [[] for _ in self.room]
        self.place = [0] * len(parts)
        self.traffic = [dict(zip(*pair, strict=True)) for pair in zip(neighbours, weights, strict=True)]
        for node, part in enumerate(parts):
            self.room[part] -= loads[node]
            self.place[node] = len(self.members[part])
            self.members[part].append(node)
            for there, size in self.traffic[node].items():
                self.sent[node][parts[there]] += size

    def move(self, node: int, own: int, target: int) -> None:
        """The node from one part to another."""
        self.parts[node] = target
        load = self.loads[node]
        self.room[own] += load
        self.room[target] -= load
        left, last = self.members[own], self.members[own].pop()
        if last != node:
            left[self.place[node]] = last
            self.place[last] = self.place[node]
        self.place[node] = len(self.members[target])
        self.members[target].append(node)
        for there, size in zip(self.neighbours[node], self.weights[node], strict=True):
            row = self.sent[there]
            row[own] -= size
            row[target] += size
