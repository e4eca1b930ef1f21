"""Whether cells fit into a tree, by trying every place for each of them."""

from __future__ import annotations

from collections.abc import Sequence


def all_fit(free: frozenset[int], wanted: Sequence[int]) -> bool:
    """Whether pieces of these sizes, the largest first, find room on free devices, each from a multiple of its size
    on."""
    if not wanted:
        return True
    size, rest = wanted[0], wanted[1:]
    for first in range(0, max(free, default=-1) + 1, size):
        piece = frozenset(range(first, first + size))
        if piece <= free and all_fit(free - piece, rest):
            return True
    return False
