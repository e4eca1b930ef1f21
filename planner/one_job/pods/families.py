"""The exact search for a placement with columns of at most d pods and rows of at most p.

Give every column j a set S_j of d pods and every row i a set T_i of p pods that it may touch. Cell (i, j) goes to a pod
of both, so that each T must meet each S; by Hall's theorem the cells fit exactly if for every set X of pods the cells
that can go nowhere else, those with T_i and S_j in common inside X alone, are at most the room of X. Columns with one
set are alike, and so are rows: what is searched is how many columns have each S, and for each such family how many rows
have each T.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from planner.one_job.pods.records import Cells, transposed
from planner.one_job.pods.transport import transport

Ints = NDArray[np.int64]


class OutOfSteps(Exception):  # noqa: N818  it is the end of a search, not an error of anybody
    """The search has neither a placement nor a proof that there is none after all its steps."""


class FamilySearch:
    """Searches with so many steps in all, counted and not timed, so that answers do not depend on the machine."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def place(self, room: Sequence[int], rows: int, columns: int, d: int, p: int) -> Cells | None:
        """Return a placement, or None where there is none. Raise `OutOfSteps`."""
        if columns > rows:
            cells = self.place(room, columns, rows, p, d)
            return None if cells is None else transposed(cells)
        order = sorted((pod for pod in range(len(room)) if room[pod]), key=lambda pod: -room[pod])
        sizes = [room[pod] for pod in order]
        search = _Family(self, sizes, rows, columns, min(d, len(order)), min(p, len(order)))
        blocks = search.first()
        return None if blocks is None else _lay_out(blocks, sizes, order)

    def step(self, count: int = 1) -> None:
        """Count steps."""
        self.steps -= count
        if self.steps < 0:
            raise OutOfSteps


class _Family:
    """One question: sizes of the pods, largest first, and how many pods a line may touch."""

    def __init__(self, search: FamilySearch, sizes: list[int], rows: int, columns: int, d: int, p: int) -> None:
        self.search, self.sizes, self.rows, self.columns = search, sizes, rows, columns
        count = len(sizes)
        self.column_sets = [sum(1 << pod for pod in pods) for pods in combinations(range(count), d)]
        self.row_sets = [sum(1 << pod for pod in pods) for pods in combinations(range(count), p)]
        inside = np.arange(1 << count)
        self.inside: Ints = inside
        self.room: Ints = sum(((inside >> pod & 1) * size for pod, size in enumerate(sizes)), np.zeros_like(inside))

    def first(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]] | None:
        """Return (set, columns) and (set, rows) that fit; None where none do."""
        for family in self._families(0, self.columns, self.row_sets):
            rows = self._rows(family)
            if rows is not None:
                return family, rows
        return None

    def _families(self, first: int, left: int, row_sets: list[int]) -> Iterator[list[tuple[int, int]]]:
        """How many columns have which set, while some set of rows meets all of these."""
        if left == 0:
            yield []
            return
        for place in range(first, len(self.column_sets)):
            pods = self.column_sets[place]
            meeting = [rows for rows in row_sets if rows & pods]
            if not meeting:
                continue
            self.search.step()
            for count in range(left, 0, -1):
                for rest in self._families(place + 1, left - count, meeting):
                    yield [(pods, count), *rest]

    def _rows(self, family: list[tuple[int, int]]) -> list[tuple[int, int]] | None:
        """How many rows have which set."""
        row_sets = [rows for rows in self.row_sets if all(rows & pods for pods, _ in family)]
        self.search.step(len(row_sets))
        forced = []
        for rows in row_sets:
            cells = np.zeros_like(self.inside)
            for pods, count in family:
                cells += count * ((rows & pods & ~self.inside) == 0)
            forced.append(cells)
        return self._fill(row_sets, forced, 0, self.rows, self.room)

    def _fill(
        self, row_sets: list[int], forced: list[Ints], first: int, left: int, room: Ints
    ) -> list[tuple[int, int]] | None:
        if left == 0:
            return []
        most = [_most(cells, room) for cells in forced[first:]]
        if sum(most) < left:
            return None
        self.search.step()
        for count in range(min(left, most[0]), max(-1, left - sum(most[1:]) - 1), -1):
            rest = self._fill(row_sets, forced, first + 1, left - count, room - count * forced[first])
            if rest is not None:
                return [(row_sets[first], count), *rest] if count else rest
        return None


def _most(cells: Ints, room: Ints) -> int:
    """How many rows with these forced cells the room allows."""
    needed = cells > 0
    return int((room[needed] // cells[needed]).min())


def _lay_out(blocks: tuple[list[tuple[int, int]], list[tuple[int, int]]], sizes: list[int], order: list[int]) -> Cells:
    """The cells of families of columns and rows, each in a pod of both."""
    columns, rows = blocks
    pairs = [(row, column) for row in range(len(rows)) for column in range(len(columns))]
    chosen = [
        [pod for pod in range(len(sizes)) if rows[row][0] & columns[column][0] & (1 << pod)] for row, column in pairs
    ]
    flow = transport([rows[row][1] * columns[column][1] for row, column in pairs], chosen, sizes)
    assert flow is not None, "Hall's condition holds, so that the cells fit"
    lines: list[list[int]] = [[] for _, count in rows for _ in range(count)]
    starts = [sum(count for _, count in rows[:row]) for row in range(len(rows))]
    for (row, column), pods in zip(pairs, flow, strict=True):
        cells = iter([order[pod] for pod, taken in pods.items() for _ in range(taken)])
        for line in range(starts[row], starts[row] + rows[row][1]):
            lines[line] += [next(cells) for _ in range(columns[column][1])]
    return tuple(map(tuple, lines))
