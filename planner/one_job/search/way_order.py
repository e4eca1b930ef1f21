"""Ways to share the devices in the order of what they take at least by their passes, told as late as may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.open_ways import WAITING, least_in_turn
from estimator.bulk.places import Places
from estimator.bulk.records import BatchedDegrees
from estimator.pricing.amounts import Floats
from estimator.pricing.layer_times import nothing_measured
from planner.one_job.search.least_first import Integers, LeastFirst
from planner.one_job.search.spaces.space import Space, Ways, fewest_replicas

RANKS = ("tp", "cp", "ep", "etp", "sequence_parallel")
"""How a rank holds layers; with samples, its layout: what its layers depend on."""
Told = tuple[Integers, Floats]
"""Ways, and a bound of each."""
FEW_TIMES = 8
"""Codes of rows are numbered by a table where that is at most so many times as long as the rows are many."""
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
        least: Floats = np.zeros(len(ways))
        for alike, bounds in self._told_alone() if measured else self._guessed():
            least[alike] = np.maximum(0.0, bounds)
        if measured:
            # Nobody knows how what is measured grows.
            self._state[:] = EXACT
        self._left = LeastFirst(least)

    @property
    def bounds(self) -> Floats:
        """What no plan of a way falls below, as far as it is told."""
        return self._left.bounds

    @property
    def ahead(self) -> float:
        """No plan of a way that is left has a smaller value; infinite where none is left."""
        return self._left.ahead

    def bound_of(self, way: int, once_s: float) -> float:
        """Return what no plan of a way falls below, whose micro-batches take so long through all layers at least."""
        return float(once_s * self._turns[way] + self._besides[way])

    def take(self, count: int, *, below: float, until: float = math.inf) -> list[int]:
        """Return the next ways, so many at most, and no longer have them: those with a bound of no more than `until`,
        which may be none of them; those with a bound of `below` or more are given up."""
        while True:
            self._left.give_up(below)
            some = self._left.next(count, until=until)
            unknown = some[self._state[some] < EXACT]
            if not len(unknown):
                self._left.remove(len(some))
                return [int(way) for way in some]
            told = list(self._told(unknown))
            self._left.rise(np.concatenate([ways for ways, _ in told]), np.concatenate([bounds for _, bounds in told]))

    @cached_property
    def _by_layout(self) -> Groups:
        return Groups(_numbered([self._ranks, self._samples]))

    @cached_property
    def _by_berth(self) -> Groups:
        return Groups(self._berth)

    @cached_property
    def _by_cabin(self) -> Groups:
        return Groups(_numbered([self._berth, self._samples]))

    def _told(self, unknown: Integers) -> Iterator[Told]:
        """More of what `unknown` ways take, and of those that are left and take as much."""
        alike = self._sits_alike[unknown]
        yield from self._told_of(self._by_layout, unknown[~alike], self._told_layout, EXACT)
        unknown = unknown[alike]
        guessed = unknown[self._state[unknown] == GUESSED]
        if len(guessed):
            yield from self._told_of(self._by_berth, guessed, self._told_seated, SEATED)
        else:
            yield from self._told_of(self._by_cabin, unknown, self._told_exactly, EXACT)

    def _told_of(self, groups: Groups, ways: Integers, told: Callable[[Integers], Told], state: int) -> Iterator[Told]:
        """What is told of each group that one of `ways` is of, and of which less was known."""
        for number in sorted(set(groups.numbers[ways].tolist())):
            alike = self._left.left(groups.of(number))
            alike = alike[self._state[alike] < state]
            yield told(alike)
            self._state[alike] = state

    def _guessed(self) -> Iterator[Told]:
        """Bounds by ranks with the most samples alone."""
        for ways in Groups(self._ranks).all():
            most = int(ways[np.argmax(self._samples[ways])])
            yield ways, self._bounds(ways, self._alone_s(most) / self._parts(ways))

    def _told_alone(self) -> Iterator[Told]:
        return map(self._told_layout, self._by_layout.all())

    def _told_layout(self, ways: Integers) -> Told:
        return ways, self._bounds(ways, np.full(len(ways), self._alone_s(int(ways[0]))))

    def _told_seated(self, ways: Integers) -> Told:
        degrees = self.ways.degrees(int(ways[0]))
        most = int(self._most_samples[self._ranks[ways[0]]])
        return ways, self._bounds(ways, self.evaluator.seated_once_s(degrees, most, self.slots) / self._parts(ways))

    def _told_exactly(self, ways: Integers) -> Told:
        degrees = self.ways.degrees(int(ways[np.argmax(self.ways.columns["pp"][ways])]))
        placement = self.evaluator.placement(1, self.slots)
        return ways, self._bounds(ways, np.full(len(ways), self.evaluator.once_s(degrees, placement)))

    def _parts(self, ways: Integers) -> Integers:
        """In how many parts of a way's own samples the most samples of its kind of ranks are at most computed."""
        return -(-self._most_samples[self._ranks[ways]] // self._samples[ways])

    def _bounds(self, ways: Integers, once_s: Floats) -> Floats:
        """Of ways whose micro-batches take so long through all layers at least."""
        with np.errstate(invalid="ignore"):
            return np.asarray(once_s * self._turns[ways] + self._besides[ways])

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


class Groups:
    """What has the same number, the numbers being all from 0 to the largest."""

    def __init__(self, numbers: Integers) -> None:
        self.numbers = numbers
        self._order = np.argsort(numbers, kind="stable")
        self._ends = np.cumsum(np.bincount(numbers)).tolist()

    def of(self, number: int) -> Integers:
        """What has that number."""
        return self._order[self._ends[number - 1] if number else 0 : self._ends[number]]

    def all(self) -> Iterator[Integers]:
        """What has each number in turn."""
        return map(self.of, range(len(self._ends)))


def _numbered(columns: list[Integers]) -> Integers:
    """Numbers from 0 for rows of columns, the same for equal ones."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        codes = codes * (int(column.max(initial=0)) + 1) + column
    most = int(codes.max(initial=-1)) + 1
    if most > FEW_TIMES * len(codes):
        return np.unique(codes, return_inverse=True)[1]
    met = np.zeros(most, dtype=np.bool_)
    met[codes] = True
    return (np.cumsum(met) - 1)[codes]
