"""How far every switch is from where a packet goes, for many destinations at once, and which of its links lead there.

Distances are found breadth first from 64 destinations at a time, a bit each, as in "The More the Merrier: Efficient
Multi-Source Graph Traversal" (Then et al., VLDB 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from estimator.network.links import Links
from estimator.network.wires import Integers
from profiles.records import dataclass

Hops = NDArray[np.int16]

NO_WAY = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """States that packets are in, and the links that lead from one into another: `heads[begins[s] : begins[s + 1]]`
    are the states after s, by `links`. A state is a vertex; where ways lead up before they lead down and never up
    again, there are two of each: s = vertex while it may still go up, vertex + `vertices` once it may not."""

    vertices: int
    states: int
    begins: Integers
    heads: Integers
    links: Integers


@lru_cache(maxsize=8)
def switch_graph(links: Links, *, up_down: bool = False) -> Graph:
    """Return the graph of the links between switches that are up."""
    tails, heads = links.ends.T
    is_switch = links.tier_of > 0
    kept = np.flatnonzero(is_switch[tails] & is_switch[heads] & (links.bytes_per_s > 0))
    tails, heads, vertices = tails[kept], heads[kept], len(links.names)
    states = vertices
    if up_down:
        # Of two switches of one tier the later one is above.
        ranks = links.tier_of * vertices + np.arange(vertices)
        up = ranks[heads] > ranks[tails]
        tails, heads, kept = (
            np.concatenate([tails, tails[~up] + vertices]),
            np.concatenate([np.where(up, heads, heads + vertices), heads[~up] + vertices]),
            np.concatenate([kept, kept[~up]]),
        )
        states = 2 * vertices
    order = np.argsort(tails, kind="stable")
    begins = np.searchsorted(tails[order], np.arange(states + 1))
    return Graph(vertices=vertices, states=states, begins=begins, heads=heads[order], links=kept[order])


def hops_to(graph: Graph, destinations: Sequence[Integers]) -> Hops:
    """Return how many links each state is away from the nearest switch of each destination, (destinations, states);
    `NO_WAY` where none leads."""
    hops = np.full((len(destinations), graph.states), NO_WAY, dtype=np.int16)
    for start in range(0, len(destinations), 64):
        batch = destinations[start : start + 64]
        seen = np.zeros(graph.states, dtype=np.uint64)
        for bit, switches in enumerate(batch):
            seen[switches] |= np.uint64(1 << bit)
            if graph.states > graph.vertices:
                seen[switches + graph.vertices] |= np.uint64(1 << bit)
        # A state is as far as the nearest of those after it and one more: bits pass from heads to tails.
        fresh, far = seen.copy(), 0
        rows = hops[start : start + len(batch)]
        while fresh.any():
            _note(rows, fresh, far)
            far += 1
            fresh = _spread(graph, fresh) & ~seen
            seen |= fresh
    return hops


def _note(rows: Hops, fresh: NDArray[np.uint64], far: int) -> None:
    """Write the distance of states whose bits are new."""
    states = np.flatnonzero(fresh)
    bits = np.unpackbits(fresh[states].astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    which, bit = np.nonzero(bits[:, : len(rows)])
    rows[bit, states[which]] = far


def _spread(graph: Graph, fresh: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Of each state the bits of all states after it."""
    spread = np.zeros(graph.states, dtype=np.uint64)
    with_any = np.flatnonzero(np.diff(graph.begins))
    if len(with_any):
        spread[with_any] = np.bitwise_or.reduceat(fresh[graph.heads], graph.begins[with_any])
    return spread


def ways_on(graph: Graph, hops: Hops, keys: Integers, states: Integers) -> tuple[Integers, Integers]:
    """Return, for packets to `keys` (rows of `hops`) at `states`, each above 0 away, the edges of the graph that lead
    nearer, one packet's after the other's, and where each one's begin."""
    counts = graph.begins[states + 1] - graph.begins[states]
    # In parts that stay in the processor's cache: a packet looks at all cables of its switch.
    parts = np.searchsorted(np.cumsum(counts), np.arange(0, counts.sum(), EDGES_AT_ONCE))
    bounds = np.unique(np.concatenate([parts, [0, len(states)]]))
    nearer, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start, end in pairwise(bounds.tolist()):
        edges, own = _nearer(graph, hops, keys[start:end], states[start:end], counts[start:end])
        nearer.append(edges)
        found.append(own)
    return np.concatenate(nearer), np.concatenate([[0], np.cumsum(np.concatenate(found))])


EDGES_AT_ONCE = 1 << 17
"""So many edges are looked at together, and those of one packet more."""


def _nearer(graph: Graph, hops: Hops, keys: Integers, states: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The edges that lead nearer, and how many of them each packet has."""
    begins = np.cumsum(counts) - counts
    edges = np.arange(counts.sum()) + np.repeat(graph.begins[states] - begins, counts)
    row = keys * graph.states
    distances = hops.ravel()
    nearer = distances[np.repeat(row, counts) + graph.heads[edges]] == np.repeat(distances[row + states] - 1, counts)
    return edges[nearer], np.add.reduceat(nearer, begins, dtype=np.int64)
