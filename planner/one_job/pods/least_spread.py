"""Ours, exact: the placement of least alpha * widest DP group + beta * widest PP group, in pods (eq. 2 itself).

What can be reached is asked for one pair (d, p) at a time: columns of at most d pods, rows of at most p. Rows that stay
whole (p = 1) fit into the d largest pods or nowhere, columns that do (d = 1) likewise. Stacks of pods by column groups
and Arnold's own placement, both ways round, reach pairs between; counting refutes others. Pairs that are left and
better than the best reached are asked of all ways to share the pods out to groups, of the sharper count of
`planner.one_job.pods.pairs`, then of the exact search, which is given up after a fixed number of steps: the least value
of such pairs is the bound then.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from planner.one_job.pods.consolidation import closed_form
from planner.one_job.pods.counting import is_refuted
from planner.one_job.pods.families import FamilySearch, OutOfSteps
from planner.one_job.pods.pairs import is_refuted_by_pairs
from planner.one_job.pods.records import ROUNDING, Cells, Placement, PodRequest, spreads_of, transposed
from planner.one_job.pods.stacks import MOST_PODS_TO_CHOOSE, chosen_stack, greedy_stack
from profiles.vocabulary import Infeasible

METHOD = "spread"

MOST_PODS_TO_SEARCH = 8
STEPS_OF_SMALL, STEPS = 200_000, 2_000
SMALL_CELLS = 24
"""The exact search has so many steps: many where the job is small, so that it ends there."""

Pair = tuple[int, int]
"""The most pods that a column, and that a row, touches."""


def place_by_spread(request: PodRequest) -> Placement | Infeasible:
    """Return the placement of least spread with a bound on all others; Infeasible where the free nodes do not hold the
    job."""
    shortage = request.shortage()
    if shortage is not None:
        return shortage
    search = _Search(request)
    search.reach()
    bound = search.settle()
    return Placement(method=METHOD, request=request, cells=search.best(), bound=bound)


class _Search:
    """The pairs reached so far, each with a placement."""

    def __init__(self, request: PodRequest) -> None:
        self.request, self.room = request, request.room
        self.reached: dict[Pair, Cells] = {}
        self.pods = sum(size > 0 for size in self.room)
        small = request.cells <= SMALL_CELLS
        self.families = FamilySearch(STEPS_OF_SMALL if small else STEPS)

    def best(self) -> Cells:
        """Return the placement of least value; of equal ones that of fewer pods in all."""
        return self.reached[min(self.reached, key=lambda pair: (self.value(pair), sum(pair), pair))]

    def value(self, pair: Pair) -> float:
        """Return eq. 2 of a pair."""
        return self.request.value(*pair)

    def better(self, pair: Pair) -> bool:
        """Return whether a pair is worth less than all that were reached."""
        return not self.reached or self.value(pair) < min(map(self.value, self.reached)) - ROUNDING

    def keep(self, cells: Cells | None) -> None:
        """Note a placement, if there is one."""
        if cells is not None:
            spreads = spreads_of(cells)
            self.reached.setdefault((spreads.dp, spreads.pp), cells)

    def reach(self) -> None:
        """Reach what is cheap to reach: Arnold's placement and stacks, each both ways round."""
        request, room = self.request, self.room
        self.keep(_line(request))
        for one, back in ((request, False), (turned(request), True)):
            layout = closed_form(one)
            if layout is not None:
                self.keep(transposed(layout.cells) if back else layout.cells)
        for groups in range(1, min(self.pods, request.columns) + 1):
            most = sum(self.better((d, groups)) for d in range(1, self.pods + 1))
            if most:
                self.keep(greedy_stack(room, request.rows, request.columns, groups, most=most))
        for groups in range(1, min(self.pods, request.rows) + 1):
            most = sum(self.better((groups, p)) for p in range(1, self.pods + 1))
            if most:
                cells = greedy_stack(room, request.columns, request.rows, groups, most=most)
                self.keep(None if cells is None else transposed(cells))

    def settle(self) -> float:
        """Ask for every pair that is better than the best reached, the best first, and return the least value of those
        that are neither reached nor refuted."""
        bound = None
        for pair in sorted(self._not_counted_out(), key=lambda pair: (self.value(pair), pair)):
            if not self.better(pair):
                break
            if self._reaches(pair) or self._pairs_refute(pair):
                continue
            try:
                if self._searches():
                    self.keep(self.families.place(self.room, self.request.rows, self.request.columns, *pair))
                    continue
            except OutOfSteps:
                pass
            bound = self.value(pair) if bound is None else bound
        least = min(map(self.value, self.reached))
        return least if bound is None else min(bound, least)

    def _not_counted_out(self) -> list[Pair]:
        """The pairs better than the best reached that counting does not refute. What refutes (d, p) refutes fewer."""
        most_d, most_p = min(self.pods, self.request.rows), min(self.pods, self.request.columns)
        left: list[Pair] = []
        for p in range(1, most_p + 1):
            worth = [d for d in range(1, most_d + 1) if self.better((d, p))]
            low, high = 0, len(worth)
            while low < high and not self._is_refuted((worth[-1], p)):
                middle = (low + high) // 2
                if self._is_refuted((worth[middle], p)):
                    low = middle + 1
                else:
                    high = middle
                if low == high:
                    left += [(d, p) for d in worth[low:]]
        return left

    def _is_refuted(self, pair: Pair) -> bool:
        """Whether a pair is impossible: exactly where a line stays in one pod, else by counting."""
        (d, p), request = pair, self.request
        if p == 1:
            return sum(sorted((size // request.columns for size in self.room), reverse=True)[:d]) < request.rows
        if d == 1:
            return sum(sorted((size // request.rows for size in self.room), reverse=True)[:p]) < request.columns
        return is_refuted(tuple(sorted(self.room, reverse=True)), request.rows, request.columns, d, p)

    def _pairs_refute(self, pair: Pair) -> bool:
        """Whether the sharper count refutes a pair, where lines of one direction touch two pods."""
        (d, p), request = pair, self.request
        across = d == 2 and is_refuted_by_pairs(self.room, request.columns, request.rows, p)
        return across or (p == 2 and is_refuted_by_pairs(self.room, request.rows, request.columns, d))

    def _reaches(self, pair: Pair) -> bool:
        """Whether sharing the pods out to groups reaches a pair; notes the placement."""
        (d, p), request = pair, self.request
        if self.pods > MOST_PODS_TO_CHOOSE and self.request.cells > sum(
            sorted(self.room, reverse=True)[:MOST_PODS_TO_CHOOSE]
        ):
            return False
        cells = chosen_stack(self.room, request.rows, request.columns, d, p)
        if cells is None:
            other = chosen_stack(self.room, request.columns, request.rows, p, d)
            cells = None if other is None else transposed(other)
        self.keep(cells)
        return cells is not None

    def _searches(self) -> bool:
        """Whether the exact search is worth its while."""
        return self.pods <= MOST_PODS_TO_SEARCH


def turned(request: PodRequest) -> PodRequest:
    """Return the request with rows and columns exchanged, and what they weigh."""
    return replace(request, rows=request.columns, columns=request.rows, alpha=request.beta)


def _line(request: PodRequest) -> Cells:
    """The cells row after row, the largest pods first: a placement that always exists."""
    line = list(chain.from_iterable([pod] * request.room[pod] for pod in request.largest_first))
    width = request.columns
    return tuple(tuple(line[first : first + width]) for first in range(0, request.cells, width))
