"""Which rank goes on which node, where nodes give different numbers of devices, so that least is sent between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import cast

import numpy as np
from numpy.typing import NDArray

from estimator.communication.phases import Algorithm, PhasedOp, bytes_across, bytes_between, collective_phases

MOST_EXACT = 16
"""Ranks up to which the least is found by going through all ways."""
MOST_SWAPPED = 128
"""Ranks up to which, beyond that, two of them change places as long as that gains."""

Masks = NDArray[np.int64]
"""Sets of ranks, as bits."""
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


@lru_cache(maxsize=65536)
def least_across(algorithm: Algorithm, counts: tuple[int, ...]) -> float:
    """Return the bytes between nodes that give `counts` devices, of an all-reduce of one byte in the best order of its
    ranks."""
    return bytes_across(collective_phases(algorithm, "all_reduce", sum(counts)), best_order(algorithm, counts))


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
    """The sets of ranks with most between their own: Bellman's recursion over the ranks that the first nodes have."""
    kept = _kept_inside(weights)
    best: dict[int, NDArray[np.float64]] = {}
    seated = 0
    for size in sizes:
        value = np.full(len(kept), -np.inf)
        for sets, splits in _splits(len(weights), seated, size):
            value[sets] = _last_and_rest(kept, best.get(seated), sets, splits).max(axis=1)
        seated += size
        best[seated] = value
    found: list[int] = []
    left = np.array([len(kept) - 1])
    for size in reversed(sizes):
        seated -= size
        splits = _subsets(left, size)
        found.append(int(splits[0, _last_and_rest(kept, best.get(seated), left, splits)[0].argmax()]))
        left = left ^ found[-1]
    # Of nodes that give equally many the first has the lowest rank.
    found.sort(key=lambda ranks: (-ranks.bit_count(), ranks & -ranks))
    return tuple(next(node for node, ranks in enumerate(found) if ranks >> rank & 1) for rank in range(len(weights)))


def _last_and_rest(
    kept: NDArray[np.float64], before: NDArray[np.float64] | None, sets: Masks, splits: Masks
) -> NDArray[np.float64]:
    """Most that stays inside where the last node of each set has each of the splits."""
    return kept[splits] if before is None else kept[splits] + before[sets[:, None] ^ splits]


def _splits(ranks: int, seated: int, size: int) -> Iterator[tuple[Masks, Masks]]:
    """Sets of `seated` + `size` ranks, each with all of its subsets of `size`; some thousands at a time."""
    counted = np.array([mask.bit_count() for mask in range(1 << ranks)])
    sets = np.flatnonzero(counted == seated + size)
    at_once = max(1, 100_000 // comb(seated + size, size))
    for first in range(0, len(sets), at_once):
        part = sets[first : first + at_once]
        yield part, _subsets(part, size)


def _subsets(sets: Masks, size: int) -> Masks:
    """For each of the sets, all of one number of ranks, its subsets of `size`."""
    bits = np.array([[1 << rank for rank in range(int(one).bit_length()) if one >> rank & 1] for one in sets])
    chosen = np.array(list(combinations(range(bits.shape[1]), size)))
    return cast("Masks", bits[:, chosen].sum(axis=2))


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
