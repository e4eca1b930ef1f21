"""Which rank goes on which node, where nodes give different numbers of devices, so that least is sent between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from estimator.communication.phases import Algorithm, PhasedOp, bytes_between, collective_phases

MOST_EXACT = 16
"""Ranks up to which the least is found by going through all ways."""
MOST_SWAPPED = 128
"""Ranks up to which, beyond that, two of them change places as long as that gains."""

Seats = tuple[int, ...]
"""For each rank the place in the list of nodes of the one that it sits on."""


def best_order(algorithm: Algorithm, counts: Sequence[int], op: PhasedOp = "all_reduce") -> Seats:
    """Return for each rank which node it sits on, where the nodes give `counts` devices, so that the collective sends
    least between them: the least there is for up to 16 ranks, beyond never more than in the order of the nodes.

    A ring sends least in the order of the nodes: it leaves every node once.

    >>> best_order("halving-doubling", (2, 2)), best_order("ring", (2, 2))
    ((0, 1, 0, 1), (0, 0, 1, 1))

    Raises:
        ValueError: a node that gives none, or an algorithm that has no form of `op`.
    """
    if not counts or min(counts) < 1:
        raise ValueError(f"nodes that give {list(counts)} devices; expected 1 or more of each")
    sizes = tuple(sorted(counts, reverse=True))
    places = sorted(range(len(counts)), key=lambda place: (-counts[place], place))
    if algorithm == "ring":
        return node_order(counts)
    return tuple(places[seat] for seat in _of_sizes(algorithm, sizes, op))


def node_order(counts: Sequence[int]) -> Seats:
    """Return the ranks in the order of the nodes."""
    return tuple(node for node, count in enumerate(counts) for _ in range(count))


@lru_cache(maxsize=4096)
def _of_sizes(algorithm: Algorithm, sizes: tuple[int, ...], op: PhasedOp) -> Seats:
    ranks, plain = sum(sizes), node_order(sizes)
    if len(sizes) == 1 or ranks == len(sizes) or algorithm == "exchange":
        return plain
    near = _weights(algorithm, ranks, op)
    if ranks <= MOST_EXACT:
        return _exact(near, sizes)
    orders = [plain]
    if algorithm == "halving-doubling":
        seats = np.empty(ranks, dtype=np.intp)
        seats[list(partners_together(ranks))] = plain
        orders.append(tuple(seats.tolist()))
    if ranks <= MOST_SWAPPED:
        orders = [_swapped(near, order) for order in orders]
    return min(orders, key=lambda order: _across(near, order))


def partners_together(ranks: int) -> Seats:
    """Return the ranks of halving and doubling in an order in which those that exchange most are next to each other.

    >>> partners_together(6)
    (0, 4, 2, 1, 5, 3)
    """
    bits = ranks.bit_length() - 1
    core = 1 << bits
    order: list[int] = []
    for place in range(core):
        rank = int(f"{place:0{bits}b}"[::-1], 2) if bits else 0
        order += [rank, core + rank] if core + rank < ranks else [rank]
    return tuple(order)


def _weights(algorithm: Algorithm, ranks: int, op: PhasedOp) -> NDArray[np.float64]:
    """Bytes between any two ranks, both ways together, of a collective of one byte."""
    weights = np.zeros((ranks, ranks))
    for (sender, receiver), size in bytes_between(collective_phases(algorithm, op, ranks)).items():
        weights[sender, receiver] += size
        weights[receiver, sender] += size
    return weights


def _across(weights: NDArray[np.float64], seats: Seats) -> float:
    sits = np.array(seats)
    return float(weights[sits[:, None] != sits[None, :]].sum())


def _exact(weights: NDArray[np.float64], sizes: tuple[int, ...]) -> Seats:
    """The sets of ranks with most between their own, the lowest rank's first: Bellman's recursion over who is seated.
    Nodes that give equally many are one kind."""
    ranks = len(weights)
    kept = _kept_inside(weights)
    every = np.arange(1 << ranks)
    counted = np.array([mask.bit_count() for mask in range(1 << ranks)])
    of_size = {size: every[counted == size] for size in set(sizes)}
    known: dict[tuple[int, tuple[tuple[int, int], ...]], tuple[float, int]] = {}

    def best(left: int, kinds: tuple[tuple[int, int], ...]) -> tuple[float, int]:
        """Most that stays inside with the ranks of `left` on nodes of `kinds` (size, how many), and the first set."""
        if left.bit_count() == kinds[0][0]:
            return float(kept[left]), left
        if (left, kinds) in known:
            return known[left, kinds]
        first, two_left = left & -left, sum(count for _, count in kinds) == 2
        found = (-1.0, 0)
        for size, _ in kinds:
            masks = of_size[size]
            masks = masks[(masks & ~left == 0) & (masks & first != 0)]
            if two_left:
                values = kept[masks] + kept[left ^ masks]
            else:
                rest = _one_less(kinds, size)
                values = np.array([kept[mask] + best(left ^ mask, rest)[0] for mask in masks.tolist()])
            place = int(values.argmax())
            if values[place] > found[0] + 1e-12:
                found = (float(values[place]), int(masks[place]))
        known[left, kinds] = found
        return found

    kinds = tuple(Counter(sizes).items())
    free = {size: [node for node, count in enumerate(sizes) if count == size] for size, _ in kinds}
    seats, left = [0] * ranks, (1 << ranks) - 1
    while left:
        _, mask = best(left, kinds)
        size = mask.bit_count()
        node = free[size].pop(0)
        for rank in range(ranks):
            if mask >> rank & 1:
                seats[rank] = node
        left ^= mask
        kinds = _one_less(kinds, size)
    return tuple(seats)


def _one_less(kinds: tuple[tuple[int, int], ...], size: int) -> tuple[tuple[int, int], ...]:
    return tuple((kind, count - (kind == size)) for kind, count in kinds if count > (kind == size))


def _kept_inside(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each set of ranks, as bits, the bytes between them."""
    ranks = len(weights)
    kept = np.zeros(1 << ranks)
    masks = np.arange(1 << ranks)
    for rank in range(ranks):
        to_lower = np.zeros(1 << rank)
        for other in range(rank):
            to_lower += weights[rank, other] * (masks[: 1 << rank] >> other & 1)
        kept[1 << rank : 2 << rank] = kept[: 1 << rank] + to_lower
    return kept


def _swapped(weights: NDArray[np.float64], seats: Seats) -> Seats:
    """`seats` with two ranks changing places as long as that gains, the best exchange first (Kernighan and Lin, 1970,
    without their runs)."""
    sits = np.array(seats)
    nodes = int(sits.max()) + 1
    while True:
        to_node = np.stack([weights[:, sits == node].sum(axis=1) for node in range(nodes)], axis=1)
        here = to_node[np.arange(len(sits)), sits]
        gain = to_node[:, sits] - here[:, None]
        gain = gain + gain.T - 2 * weights
        gain[sits[:, None] == sits[None, :]] = 0.0
        best = int(gain.argmax())
        a, b = divmod(best, len(sits))
        if gain[a, b] <= 1e-12:
            return tuple(sits.tolist())
        sits[a], sits[b] = sits[b], sits[a]
