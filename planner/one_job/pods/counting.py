"""What no placement can beat: a bound on spreads by counting cells.

Let no column touch more than d pods and no row more than p. A pod that meets r rows and c columns holds at most r * c
cells, and no more than it has room for. Rows meet p pods each, so that r sums to at most p * rows over the pods, and c
to at most d * columns. Hence, for any price x >= 0 of meeting a row,

    cells <= x * p * rows + max over c of sum over pods of max over r of (min(room, r * c) - x * r)

where c sums to at most d * columns, and (d, p) is impossible where the right side is below rows * columns for some x.
The inner maximum has r at 0, at floor(room / c) or one above; the outer one is a knapsack over the pods; the whole is
convex in x with its corners at whole numbers up to the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@lru_cache(maxsize=4096)
def is_refuted(room: tuple[int, ...], rows: int, columns: int, d: int, p: int) -> bool:
    """Return whether counting shows that no placement into pods with so much `room` has columns of at most `d` pods and
    rows of at most `p`."""
    if columns > rows:
        rows, columns, d, p = columns, rows, p, d
    sizes = [size for size in room if size]
    if d >= len(sizes) and p >= len(sizes):
        return sum(sizes) < rows * columns
    held: dict[int, float] = {}

    def cells(price: int) -> float:
        if price not in held:
            held[price] = _most_cells(sizes, rows, columns, d, price) + price * p * rows
        return held[price]

    return _reaches_below(cells, columns, rows * columns)


def _reaches_below(convex: Callable[[int], float], last: int, wanted: float) -> bool:
    """Whether a convex function is below `wanted` at one of 0, 1, ..., last."""
    low, high = 0, last
    while high - low > 2:
        middle = (low + high) // 2
        here, there = convex(middle), convex(middle + 1)
        if min(here, there) < wanted:
            return True
        if here <= there:
            high = middle
        else:
            low = middle + 1
    return any(convex(place) < wanted for place in range(low, high + 1))


def _most_cells(sizes: Sequence[int], rows: int, columns: int, d: int, price: int) -> float:
    """The knapsack: pods' widths c sum to at most d * columns, each worth its cells less the price of its rows."""
    budget = d * columns
    best = np.zeros(budget + 1)
    for size in sizes:
        worth = _worth(size, rows, columns, price)
        taken = best.copy()
        for width in range(1, columns + 1):
            if worth[width] > 0 and width <= budget:
                np.maximum(taken[width:], best[: budget + 1 - width] + worth[width], out=taken[width:])
        best = taken
    return float(best[budget])


@lru_cache(maxsize=65536)
def _worth(size: int, rows: int, columns: int, price: int) -> tuple[float, ...]:
    """What a pod is worth at each width: the best of its whole rows, and of these and a part of one."""
    values = [0.0]
    for width in range(1, columns + 1):
        full = min(rows, size // width)
        worth = full * (width - price)
        if full < rows and size % width:
            worth = max(worth, size - price * (full + 1))
        values.append(float(max(0, worth)))
    return tuple(values)
