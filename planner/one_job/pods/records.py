"""The records of placing a job into pods: what is asked, and what comes out.

A job is a matrix of cells (Arnold, section 5.1): a row is a PP group, a column a DP group, a cell the nodes that stay
together. A group's spread is how many pods it touches.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Literal

from profiles.errors import InputError
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

Proof = Literal["optimal", "bounded", "none"]
"""No placement is better; none is better than the bound; nothing is known of others."""

ROUNDING = 1e-9
"""Values of eq. 2 that differ by less are equal."""

Cells = tuple[tuple[int, ...], ...]
"""The pod of every cell: a row of the matrix each, a pod's place in `PodRequest.free` each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """What is to be placed where: `rows` PP groups and `columns` DP groups of cells of `nodes_a_cell` nodes, on pods
    with so many `free` nodes. `alpha` weighs the widest DP group, `1 - alpha` the widest PP group (Arnold, eq. 2).

    `leaves`: the free nodes of every leaf of every pod, in their order, where leaves are known.
    """

    rows: int
    columns: int
    free: tuple[int, ...]
    alpha: float
    nodes_a_cell: int = 1
    leaves: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        for key in ("rows", "columns", "nodes_a_cell"):
            _require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        LIMITS.devices.check(self.rows * self.columns * self.nodes_a_cell, where="pods", key="rows * columns")
        _require(bool(self.free) and min(self.free) >= 0, "free", list(self.free)[:8], "free nodes of at least one pod")
        _require(0.0 <= self.alpha <= 1.0, "alpha", self.alpha, "a share from 0 to 1")
        if self.leaves is not None:
            sums = tuple(map(sum, self.leaves))
            _require(sums == self.free, "leaves", list(sums)[:8], f"the free nodes of the pods, {list(self.free)[:8]}")

    @property
    def beta(self) -> float:
        """What the widest PP group weighs."""
        return 1.0 - self.alpha

    @property
    def cells(self) -> int:
        """Cells of the job."""
        return self.rows * self.columns

    @property
    def room(self) -> tuple[int, ...]:
        """Cells that each pod has room for."""
        return tuple(nodes // self.nodes_a_cell for nodes in self.free)

    @property
    def largest_first(self) -> tuple[int, ...]:
        """The pods that have room for a cell, the largest first, equal ones in their order."""
        room = self.room
        return tuple(sorted((pod for pod in range(len(room)) if room[pod]), key=lambda pod: -room[pod]))

    def value(self, dp_spread: int, pp_spread: int) -> float:
        """Return alpha * the widest DP group + beta * the widest PP group (Arnold, eq. 2, by its words)."""
        return self.alpha * dp_spread + self.beta * pp_spread

    def shortage(self) -> Infeasible | None:
        """Return what lacks where the free nodes do not hold the job, else None."""
        room = sum(self.room)
        if room >= self.cells:
            return None
        nodes = f"{sum(self.free)} free nodes in {len(self.free)} pods"
        if self.nodes_a_cell > 1:
            nodes += f" (room for {room} groups of {self.nodes_a_cell})"
        return Infeasible(
            reason=f"{self.cells * self.nodes_a_cell} nodes asked for, {nodes}: "
            f"{(self.cells - room) * self.nodes_a_cell} too few",
            lacking="devices",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """How many pods the widest DP group and the widest PP group touch."""

    dp: int
    pp: int

    def as_printed(self) -> Spreads:
        """Return them by the paper's eq. 3, which counts the places where one-hot vectors differ: 0, 2, 3, ..."""
        return Spreads(dp=_eq_3(self.dp), pp=_eq_3(self.pp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A pod for every cell. No placement of the request is worth less than `bound` (eq. 2, in pods; None of a method
    that knows none). `objective` is what the method itself minimised, where that is not eq. 2."""

    method: str
    request: PodRequest
    cells: Cells
    bound: float | None = None
    objective: float | None = None

    def __post_init__(self) -> None:
        shape = {len(row) for row in self.cells}
        if len(self.cells) != self.request.rows or shape != {self.request.columns}:
            raise ValueError(f"placement of {len(self.cells)} rows of {sorted(shape)} cells, not the request's")
        if any(taken > room for taken, room in zip(self.taken, self.request.room, strict=True)):
            raise ValueError(f"placement takes {self.taken} cells where there is room for {self.request.room}")

    @property
    def taken(self) -> tuple[int, ...]:
        """Cells that it takes in each pod."""
        counts = Counter(chain.from_iterable(self.cells))
        return tuple(counts[pod] for pod in range(len(self.request.free)))

    @property
    def spreads(self) -> Spreads:
        """The widest groups' spreads in pods."""
        return spreads_of(self.cells)

    @property
    def value(self) -> float:
        """Eq. 2 in pods."""
        spreads = self.spreads
        return self.request.value(spreads.dp, spreads.pp)

    @property
    def proof(self) -> Proof:
        """What is known of other placements."""
        if self.bound is None:
            return "none"
        return "optimal" if self.value <= self.bound + ROUNDING else "bounded"

    @property
    def value_as_printed(self) -> float:
        """Eq. 2 by eq. 3's count, under which a group inside one pod counts 0."""
        printed = self.spreads.as_printed()
        return self.request.value(printed.dp, printed.pp)


def spreads_of(cells: Cells) -> Spreads:
    """Return the spreads of the widest column (DP) and the widest row (PP).

    >>> spreads_of(((0, 0), (0, 1)))
    Spreads(dp=2, pp=2)
    """
    return Spreads(
        dp=max(len(set(column)) for column in zip(*cells, strict=True)), pp=max(len(set(row)) for row in cells)
    )


def transposed(cells: Cells) -> Cells:
    """Return the same with rows and columns exchanged."""
    return tuple(zip(*cells, strict=True))


def _eq_3(pods: int) -> int:
    return 0 if pods == 1 else pods


def _require(holds: bool, key: str, found: object, expected: str) -> None:
    if not holds:
        raise InputError(where="pods", key=key, found=found, expected=expected)
