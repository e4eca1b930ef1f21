"""Ways in a torus: along one dimension after the other, the shorter way round, as a TPU pod's routers go."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from estimator.network.links import Links
from estimator.network.missing_ways import no_way
from estimator.network.wires import Integers


def torus_steps(links: Links, sources: Integers, destinations: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Yield connections, between these NICs, and links that they take: step by step along the first dimension, then the
    next. Of two ways round that are equally long the one with growing coordinates; where a link of it is down, the
    other one. Raise NoWayError where both have one that is down."""
    nodes = links.node_of_nic[sources].copy()
    ends = np.unravel_index(links.node_of_nic[destinations], links.dimensions)
    for axis, size in enumerate(links.dimensions):
        if size == 1:
            continue
        onward = _onward(links, axis)
        there = ends[axis] - np.unravel_index(nodes, links.dimensions)[axis]
        ahead, back = there % size, -there % size
        forward = ahead <= back
        ways = {
            way: _along(links, axis, nodes, steps, onward, forward=way) for way, steps in ((True, ahead), (False, back))
        }
        blocked = {way: _blocked(links, of, link, len(nodes)) for way, (of, link) in ways.items()}
        stuck = np.flatnonzero(blocked[True] & blocked[False] & (there != 0))
        if len(stuck):
            raise no_way(links, int(sources[stuck[0]]), int(destinations[stuck[0]]))
        forward = np.where(forward, ~blocked[True], blocked[False])
        for way, (of, link) in ways.items():
            kept = forward[of] == way
            yield of[kept], link[kept]
        nodes = _moved(nodes, axis, there, links.dimensions)


def _onward(links: Links, axis: int) -> Integers:
    """Of each node the link to the next one along a dimension: cables stand by dimension, by the node that they begin
    at; a dimension of two has one cable for both ways."""
    dimensions, nodes = links.dimensions, links.nodes
    before = sum(nodes if size > 2 else nodes // 2 for size in dimensions[:axis] if size > 1)
    if dimensions[axis] > 2:
        return 2 * (before + np.arange(nodes))
    coordinates = list(np.unravel_index(np.arange(nodes), dimensions))
    second = coordinates[axis] == 1
    coordinates[axis] = np.zeros(nodes, dtype=np.int64)
    place = np.ravel_multi_index(coordinates, [1 if number == axis else size for number, size in enumerate(dimensions)])
    onward: Integers = 2 * (before + place) + second
    return onward


def _along(
    links: Links, axis: int, nodes: Integers, steps: Integers, onward: Integers, *, forward: bool
) -> tuple[Integers, Integers]:
    """Connections and their links for so many steps along a dimension."""
    of = np.repeat(np.arange(len(nodes)), steps)
    step = np.arange(len(of)) - np.repeat(np.cumsum(steps) - steps, steps)
    if forward:
        return of, onward[_moved(nodes[of], axis, step, links.dimensions)]
    at = _moved(nodes[of], axis, -step - 1, links.dimensions)
    # The way back into a node is the other direction of its link onward.
    back: Integers = onward[at] ^ 1
    return of, back


def _moved(nodes: Integers, axis: int, steps: Integers, dimensions: tuple[int, ...]) -> Integers:
    coordinates = list(np.unravel_index(nodes, dimensions))
    coordinates[axis] = (coordinates[axis] + steps) % dimensions[axis]
    moved: Integers = np.ravel_multi_index(coordinates, dimensions)
    return moved


def _blocked(links: Links, of: Integers, link: Integers, count: int) -> Integers:
    blocked = np.zeros(count, dtype=bool)
    blocked[of[links.bytes_per_s[link] == 0]] = True
    return blocked
