"""Numbers by a bound that only rises, least first, sorted as far as somebody looks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.amounts import Floats

Integers = NDArray[np.int64]
SORTED_AHEAD = 4096
"""So many numbers are sorted together at least."""


class LeastFirst:
    """The numbers from 0 that are left, each with its bound.

    The order is the one that sorting all of them anew, stably, would give whenever some rise: of equal bounds the
    number that rose last comes first. Sorted are the first ones alone; all others have a bound above theirs.
    """

    def __init__(self, bounds: Floats) -> None:
        self.bounds = bounds
        self._turn = np.arange(len(bounds))
        self._rounds = 0
        self._gone: NDArray[np.bool_] = np.zeros(len(bounds), dtype=np.bool_)
        self._below = math.inf
        self._first, self._edge = self._turn[:0], -math.inf
        self._others = [self._turn.copy()]

    @property
    def ahead(self) -> float:
        """The least bound; infinite where no number is left."""
        self._sort(1)
        return float(self.bounds[self._first[0]]) if len(self._first) else math.inf

    def give_up(self, below: float) -> None:
        """No longer have those with a bound of `below` or more, nor those that rise to it until this is asked again."""
        if below > self._below:
            # Those that were given up stay so.
            self._others = [self._kept(np.concatenate(self._others))]
        self._below = below
        self._first = self._kept(self._first)

    def next(self, count: int, *, until: float) -> Integers:
        """Return the first of them, so many at most, whose bounds are no more than `until`."""
        self._sort(count)
        some = self._first[:count]
        return some[: np.searchsorted(self.bounds[some], until, side="right")]

    def remove(self, count: int) -> None:
        """No longer have the first of them."""
        self._gone[self._first[:count]] = True
        self._first = self._first[count:]

    def left(self, numbers: Integers) -> Integers:
        """Return which of these are left."""
        return numbers[~self._gone[numbers] & (self.bounds[numbers] < self._below)]

    def rise(self, numbers: Integers, bounds: Floats) -> None:
        """Some that are left have these bounds, where they are above their own; those that rise to where others were
        given up, are too."""
        higher = ~(bounds <= self.bounds[numbers])
        numbers, bounds = numbers[higher], bounds[higher]
        order = np.lexsort((self._turn[numbers], self.bounds[numbers]))
        self._rounds += 1
        self._turn[numbers[order]] = np.arange(len(numbers)) - self._rounds * len(self.bounds)
        self.bounds[numbers] = bounds
        first = self._in_order(self._kept(self._first))
        end = int(np.searchsorted(self.bounds[first], self._edge, side="right"))
        self._first = first[:end]
        self._others.append(first[end:])

    def _sort(self, count: int) -> None:
        """At least so many, where there are as many."""
        if len(self._first) >= count or not any(map(len, self._others)):
            return
        others = self._kept(np.concatenate(self._others))
        bounds, wanted = self.bounds[others], max(count, SORTED_AHEAD)
        self._edge = float(np.partition(bounds, wanted)[wanted]) if len(others) > wanted else math.inf
        nearest = bounds <= self._edge
        self._others = [others[~nearest]]
        self._first = np.concatenate([self._first, self._in_order(others[nearest])])

    def _kept(self, numbers: Integers) -> Integers:
        below = self.bounds[numbers] < self._below
        self._gone[numbers[~below]] = True
        return numbers[below]

    def _in_order(self, numbers: Integers) -> Integers:
        return numbers[np.lexsort((self._turn[numbers], self.bounds[numbers]))]
