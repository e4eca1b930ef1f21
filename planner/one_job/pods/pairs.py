"""What no placement can beat where the lines of one direction touch at most two pods: a sharper count.

Let N lines (columns, where d = 2) of L cells touch two pods each, and the L lines across at most P. A line is an edge
between its two pods, or a loop. g of a pod is how many lines it is on, h how many lines across it touches: it holds at
most g * h cells; g sums to at most 2 N, h to at most P * L, and h of an edge's two ends to at least L, of a loop to L.

Any larger pod may stand in for one that is used, so that the u largest pods are. Take a least half-integral cover of
the edges (Nemhauser and Trotter 1975): F pods at 1, M at 1/2, I at 0, nu = |F| + |M| / 2. By duality h sums to at least
nu * L, so that nu <= P. If u >= 2 P, either

A. u = 2 P, and all pods fall into pairs whose h sum to L exactly (pods of odd cycles have h = L / 2, and pair as well);
B. or |I| > |F| >= 1 and nu <= P - 1/2: pods of I are on lines with pods of F alone, so that g of I sums to at most
   that of F.

For B: were |I| <= |F|, then u <= 2 nu <= 2 P, hence u = 2 P and nu = P, and the sum of h would leave no pod outside the
pairs, which is A; and what h of the pods of I is beyond the pairs leaves less than P * L for nu * L.

Both are counted out as in `planner.one_job.pods.counting`: the cells of A by all pairings, those of B with prices on
the longer of the two sums. Where fewer than 2 P pods may do, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_PODS = 12
"""With more pods the bound is not tried: it would take seconds."""

MOST_CELLS = 1024


@lru_cache(maxsize=4096)
def is_refuted_by_pairs(room: tuple[int, ...], lines: int, length: int, most: int) -> bool:
    """Return whether no placement has so many `lines` of `length` cells on two pods each, and lines across on at most
    `most`."""
    sizes = sorted((size for size in room if size), reverse=True)
    cells = lines * length
    if len(sizes) > MOST_PODS or cells > MOST_CELLS or sum(sizes) < cells:
        return sum(sizes) < cells
    fewest = next(count for count, held in enumerate(accumulate(sizes), start=1) if held >= cells)
    if fewest < 2 * most:
        return False
    if fewest == 2 * most and _most_in_pairs(tuple(sizes[: 2 * most]), lines, length) >= cells:
        return False
    left = {
        (used, full, none)
        for used in range(fewest, len(sizes) + 1)
        for full in range(1, most)
        for none in range(full + 1, used - full + 1)
        if 2 * full + (used - full - none) <= 2 * most - 1
    }
    count_out = _by_price_across if lines < length else _by_price_along
    for held in count_out(sizes, lines, length, most):
        left = {case for case in left if held[case] >= cells - 1e-9}
        if not left:
            return True
    return not left


def _most_in_pairs(sizes: tuple[int, ...], lines: int, length: int) -> float:
    """A: the most cells over all pairings, g of all pods at most twice the lines."""
    budget = 2 * lines

    @cache
    def best(unpaired: tuple[int, ...]) -> Floats:
        if not unpaired:
            return np.zeros(budget + 1)
        first, *others = unpaired
        worth = np.full(budget + 1, -np.inf)
        for other in others:
            rest = best(tuple(pod for pod in others if pod != other))
            np.maximum(worth, _joined(_pair(sizes[first], sizes[other], lines, length), rest), out=worth)
        return worth

    return float(best(tuple(range(len(sizes))))[budget])


@lru_cache(maxsize=4096)
def _pair(one: int, other: int, lines: int, length: int) -> Floats:
    """The most cells of two pods whose h sum to `length`, by what their g sum to."""
    h = np.arange(1, length)
    g = np.arange(1, lines + 1)
    first, second = (np.minimum(size, g[:, None] * here) for size, here in ((one, h), (other, length - h)))
    both = (first[:, None, :] + second[None, :, :]).max(axis=2, initial=0)
    worth = np.full(2 * lines + 1, -np.inf)
    np.maximum.at(worth, (g[:, None] + g[None, :]).ravel(), both.ravel())
    return np.maximum.accumulate(worth)


def _joined(one: Floats, other: Floats) -> Floats:
    """The best sum of both for every budget that they share."""
    size = len(one)
    place = np.arange(size)[:, None] - np.arange(size)[None, :]
    return np.asarray(np.where(place >= 0, one[None, :] + other[np.maximum(place, 0)], -np.inf).max(axis=1))


Held = dict[tuple[int, int, int], float]
"""The most cells by (pods used, pods in F, pods in I)."""


def _by_price_across(sizes: Sequence[int], lines: int, length: int, most: int) -> Iterator[Held]:
    """B at every price of h, g counted out: the state is (pods in F, pods in I, sum of g, g of F less g of I)."""
    budget = 2 * lines
    for price in range(lines + 1):
        table = np.full((most + 1, len(sizes) + 1, budget + 1, 2 * budget + 1), -np.inf)
        table[0, 0, 0, budget] = 0.0
        held: Held = {}
        for used, size in enumerate(sizes, start=1):
            later = np.full_like(table, -np.inf)
            for g in range(1, lines + 1):
                worth = _best_of_h(size, g, price, length)
                here = table[:, :, : budget + 1 - g] + worth
                for target, source in (
                    (later[:, :, g:], here),
                    (later[1:, :, g:, g:], here[:-1, :, :, :-g]),
                    (later[:, 1:, g:, :-g], here[:, :-1, :, g:]),
                ):
                    np.maximum(target, source, out=target)
            table = later
            reached = table[:, :, :, budget:].max(axis=(2, 3)) + price * most * length
            held |= _by_case(used, reached)
        yield held


def _by_price_along(sizes: Sequence[int], lines: int, length: int, most: int) -> Iterator[Held]:
    """B at prices of g and of what g of I has more than F's, h counted out: the state is (pods in F, pods in I, sum of
    h)."""
    budget = most * length
    for price in range(length + 1):
        for more in range(length + 1):
            table = np.full((most + 1, len(sizes) + 1, budget + 1), -np.inf)
            table[0, 0, 0] = 0.0
            held: Held = {}
            for used, size in enumerate(sizes, start=1):
                later = np.full_like(table, -np.inf)
                for h in range(1, min(length, budget) + 1):
                    here = table[:, :, : budget + 1 - h]
                    middle, full, none = (
                        _best_of_h(size, h, each, lines) for each in (price, price - more, price + more)
                    )
                    for target, source in (
                        (later[:, :, h:], here + middle),
                        (later[1:, :, h:], here[:-1] + full),
                        (later[:, 1:, h:], here[:, :-1] + none),
                    ):
                        np.maximum(target, source, out=target)
                table = later
                held |= _by_case(used, table.max(axis=2) + price * 2 * lines)
            yield held


def _by_case(used: int, reached: Floats) -> Held:
    return {
        (used, full, none): float(reached[full, none])
        for full in range(reached.shape[0])
        for none in range(min(used - full + 1, reached.shape[1]))
    }


@lru_cache(maxsize=65536)
def _best_of_h(size: int, g: int, price: int, most: int) -> float:
    """The largest min(size, g * h) - price * h over h from 1 to `most`."""
    ends = {1, most, min(most, max(1, size // g)), min(most, size // g + 1)}
    return float(max(min(size, g * h) - price * h for h in ends))
