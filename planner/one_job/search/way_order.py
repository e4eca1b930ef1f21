"""Ways to share the devices in the order of what they take at least by their passes, told as late as may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.open_ways import WAITING, least_in_turn
from estimator.bulk.places import Places
from estimator.bulk.records import BatchedDegrees
from estimator.pricing.amounts import Floats
from estimator.pricing.layer_times import nothing_measured
from planner.one_job.search.spaces.space import Space, Ways, fewest_replicas

RANKS = ("tp", "cp", "ep", "etp", "sequence_parallel")
"""How a rank holds layers; with samples, its layout: what its layers depend on."""
Integers = NDArray[np.int64]
GUESSED, SEATED, EXACT = 0, 1, 2
"""What a way's bound rests on: what ranks like its own compute at their most samples; that with the groups that its
ranks sit in; its own passes."""


class WayOrder:
    """The ways that are left, least bound first: local to one search.

    What a micro-batch takes through all layers is computed when a way is next. Until then it is bounded by ranks of the
    same kind with the most samples: a rank takes no longer for all of them together than for part after part. First
    by what these compute alone, then, where all nodes are alike, with the groups of the way's ranks too, and only then
    for its own samples. `free` says of each way whether a schedule is open whose stages do not wait for those before
    them.
    """

    def __init__(
        self, space: Space, ways: Ways, evaluator: BulkEvaluator, slots: Places, weight: Callable[[int], float]
    ) -> None:
        self.evaluator, self.slots, self.ways, columns = evaluator, slots, ways, ways.columns
        self._samples = columns["samples"]
        pp, dp = columns["pp"], columns["dp"]
        self._ranks = _numbered([columns[name] for name in RANKS])
        self._berth = _numbered([self._ranks, dp])
        self._cabin = _numbered([self._berth, self._samples])
        self._most_samples = np.zeros(int(self._ranks.max(initial=-1)) + 1, dtype=np.int64)
        np.maximum.at(self._most_samples, self._ranks, self._samples)
        batches = space.global_batch // (dp * self._samples)
        schedules = space.constraints.schedules
        self.free: NDArray[np.bool_] = np.full(
            len(ways), any(name not in (*WAITING, "interleaved") for name in schedules)
        )
        if "interleaved" in schedules:
            self.free |= batches % pp == 0
        counts, which = np.unique(columns["tp"] * columns["cp"] * dp * pp, return_inverse=True)
        factor = np.array([weight(int(count)) for count in counts])[which]
        self._turns = np.asarray(least_in_turn(np.ones(len(ways)), pp, batches, ~self.free)) * factor
        self._besides = evaluator.pricing.parameters.of("iteration_s") * factor
        measured = evaluator.pricing.lookup is not nothing_measured or evaluator.pricing.link_tables
        # Where ranks sit is told once for all stages that sit alike; of other devices nobody knows that.
        self._sits_alike = (space.node % columns["tp"] == 0) & (not measured and evaluator.sits_alike(slots))
        self._state = np.full(len(ways), GUESSED, dtype=np.int8)
        self.bounds: Floats = np.zeros(len(ways))
        if measured:
            # Nobody knows how what is measured grows.
            self._tell_alone(np.arange(len(ways)))
        else:
            self._guess()
        self._order, self._position = np.argsort(self.bounds, kind="stable"), 0

    @property
    def ahead(self) -> float:
        """No plan of a way that is left has a smaller value; infinite where none is left."""
        return float(self.bounds[self._order[self._position]]) if self._position < len(self._order) else math.inf

    def bound_of(self, way: int, once_s: float) -> float:
        """Return what no plan of a way falls below, whose micro-batches take so long through all layers at least."""
        return float(once_s * self._turns[way] + self._besides[way])

    def take(self, count: int, *, below: float, until: float = math.inf) -> list[int]:
        """Return the next ways, so many at most, and no longer have them: those with a bound of no more than `until`,
        which may be none of them; those with a bound of `below` or more are given up."""
        while True:
            left = self._order[self._position :]
            left = left[: np.searchsorted(self.bounds[left], below)]
            some = left[: min(count, int(np.searchsorted(self.bounds[left], until, side="right")))]
            unknown = some[self._state[some] < EXACT]
            if not len(unknown):
                self._order, self._position = left, len(some)
                return [int(way) for way in some]
            self._tell(unknown, left)
            self._order, self._position = left[np.argsort(self.bounds[left], kind="stable")], 0

    @cached_property
    def _layout(self) -> Integers:
        return _numbered([self._ranks, self._samples])

    def _tell(self, unknown: Integers, left: Integers) -> None:
        """More of what `unknown` ways take, and of those of the `left` that take as much."""
        apart, alike = unknown[~self._sits_alike[unknown]], unknown[self._sits_alike[unknown]]
        if len(apart):
            self._tell_alone(left[_among(self._layout[left], self._layout[apart])])
        guessed = alike[self._state[alike] == GUESSED]
        if len(guessed):
            guesses = left[self._state[left] == GUESSED]
            self._tell_seated(guesses[_among(self._berth[guesses], self._berth[guessed])])
        elif len(alike):
            self._tell_exactly(left[_among(self._cabin[left], self._cabin[alike])])

    def _guess(self) -> None:
        """Bounds by ranks with the most samples alone."""
        for ways in _alike(self._ranks, np.arange(len(self._ranks))):
            most = int(ways[np.argmax(self._samples[ways])])
            self._raise(ways, self._alone_s(most) / self._parts(ways))

    def _tell_alone(self, ways: Integers) -> None:
        for alike in _alike(self._layout, ways):
            self._raise(alike, np.full(len(alike), self._alone_s(int(alike[0]))))
        self._state[ways] = EXACT

    def _tell_seated(self, ways: Integers) -> None:
        for alike in _alike(self._berth, ways):
            degrees = self.ways.degrees(int(alike[0]))
            most = int(self._most_samples[self._ranks[alike[0]]])
            once_s = self.evaluator.seated_once_s(degrees, most, self.slots)
            self._raise(alike, once_s / self._parts(alike))
        self._state[ways] = SEATED

    def _tell_exactly(self, ways: Integers) -> None:
        for alike in _alike(self._cabin, ways):
            degrees = self.ways.degrees(int(alike[np.argmax(self.ways.columns["pp"][alike])]))
            placement = self.evaluator.placement(1, self.slots)
            self._raise(alike, np.full(len(alike), self.evaluator.once_s(degrees, placement)))
        self._state[ways] = EXACT

    def _parts(self, ways: Integers) -> Integers:
        """In how many parts of a way's own samples the most samples of its kind of ranks are at most computed."""
        return -(-self._most_samples[self._ranks[ways]] // self._samples[ways])

    def _raise(self, ways: Integers, once_s: Floats) -> None:
        """The bounds of ways whose micro-batches take so long through all layers at least."""
        with np.errstate(invalid="ignore"):
            bounds = np.asarray(once_s * self._turns[ways] + self._besides[ways])
        self.bounds[ways] = np.maximum(self.bounds[ways], bounds)

    def _alone_s(self, way: int) -> float:
        """Seconds of a micro-batch of a way through all layers, with one stage and as few replicas as share the
        experts, and hardly any communication."""
        numbers = {name: int(self.ways.columns[name][way]) for name in (*RANKS, "samples")}
        degrees = BatchedDegrees(
            pp=1,
            dp=fewest_replicas(numbers["tp"] * numbers["cp"], numbers["ep"] * numbers["etp"]),
            tp=numbers["tp"],
            cp=numbers["cp"],
            ep=numbers["ep"],
            etp=numbers["etp"],
            samples=numbers["samples"],
            sequence_parallel=bool(numbers["sequence_parallel"]),
        )
        return self.evaluator.compute_alone_s(degrees, self.slots)


def _numbered(columns: list[Integers]) -> Integers:
    """Numbers from 0 for rows of columns, the same for equal ones."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        codes = codes * (int(column.max(initial=0)) + 1) + column
    return np.unique(codes, return_inverse=True)[1]


def _among(numbers: Integers, some: Integers) -> NDArray[np.bool_]:
    """Which of the numbers are some of these."""
    chosen = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.bool_)
    chosen[some] = True
    return chosen[numbers]


def _alike(numbers: Integers, ways: Integers) -> list[Integers]:
    """The ways by their numbers."""
    order = ways[np.argsort(numbers[ways], kind="stable")]
    ends = np.flatnonzero(np.diff(numbers[order])) + 1
    return np.split(order, ends) if len(order) else []
