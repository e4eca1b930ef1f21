"""Ways to share the devices in the order of what they take at least by compute alone, told layout by layout."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.open_ways import WAITING, least_in_turn
from estimator.bulk.places import Places
from estimator.bulk.records import BatchedDegrees
from estimator.pricing.amounts import Floats
from estimator.pricing.layer_times import nothing_measured
from planner.one_job.search.spaces.space import Space, Ways, fewest_replicas

LAYOUT = ("tp", "cp", "ep", "etp", "sequence_parallel", "samples")
"""What a rank's layers depend on."""


class WayOrder:
    """The ways that are left, least bound first: local to one search.

    How long a layout's layers take is computed when one of its ways is next. Until then it is bounded by the layout of
    as many ranks with the most samples: a rank takes no longer for all of them together than for part after part.
    `free` says of each way whether a schedule is open whose stages do not wait for those before them.
    """

    def __init__(
        self, space: Space, ways: Ways, evaluator: BulkEvaluator, slots: Places, weight: Callable[[int], float]
    ) -> None:
        self.evaluator, self.slots, columns = evaluator, slots, ways.columns
        codes = np.zeros(len(ways), dtype=np.int64)
        for name in LAYOUT:
            codes = codes * (int(columns[name].max(initial=0)) + 1) + columns[name]
        _, firsts, self._layout = np.unique(codes, return_index=True, return_inverse=True)
        self._keys = np.stack([columns[name][firsts] for name in LAYOUT])
        pp, dp = columns["pp"], columns["dp"]
        batches = space.global_batch // (dp * columns["samples"])
        schedules = space.constraints.schedules
        self.free: NDArray[np.bool_] = np.full(
            len(ways), any(name not in (*WAITING, "interleaved") for name in schedules)
        )
        if "interleaved" in schedules:
            self.free |= batches % pp == 0
        devices = columns["tp"] * columns["cp"] * dp * pp
        counts, which = np.unique(devices, return_inverse=True)
        factor = np.array([weight(int(count)) for count in counts])[which]
        self._turns = np.asarray(least_in_turn(np.ones(len(ways)), pp, batches, ~self.free)) * factor
        self._besides = evaluator.pricing.parameters.of("iteration_s") * factor
        self._once_s, self._is_exact = self._first_bounds()
        self.bounds = self._bounds_of(np.arange(len(ways)))
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
            # `np.unique` of numbers alone would load numpy's masked arrays.
            unknown = np.flatnonzero(np.bincount(self._layout[some][~self._is_exact[self._layout[some]]]))
            if not len(unknown):
                self._order, self._position = left, len(some)
                return [int(way) for way in some]
            for layout in unknown.tolist():
                self._once_s[layout], self._is_exact[layout] = self._once_of(layout), True
            refined = np.zeros(len(self._is_exact), dtype=np.bool_)
            refined[unknown] = True
            changed = left[refined[self._layout[left]]]
            self.bounds[changed] = self._bounds_of(changed)
            self._order, self._position = left[np.argsort(self.bounds[left], kind="stable")], 0

    def _first_bounds(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Seconds of a micro-batch through all layers at least, of each layout, and whether they are what it takes."""
        number = self._keys.shape[1]
        pricing = self.evaluator.pricing
        once_s, is_exact = np.zeros(number), np.zeros(number, dtype=np.bool_)
        if pricing.lookup is not nothing_measured or pricing.link_tables:
            # Nobody knows how what is measured grows.
            return np.array([self._once_of(layout) for layout in range(number)]), np.ones(number, dtype=np.bool_)
        samples = self._keys[-1]
        _, alike = np.unique(self._keys[:-1], axis=1, return_inverse=True)
        for ranks in range(int(alike.max(initial=-1)) + 1):
            layouts = np.flatnonzero(alike.ravel() == ranks)
            most = int(layouts[np.argmax(samples[layouts])])
            once_s[layouts] = self._once_of(most) * samples[layouts] / samples[most]
            is_exact[most] = True
        return once_s, is_exact

    def _once_of(self, layout: int) -> float:
        """With one stage and as few replicas as share the experts."""
        numbers = dict(zip(LAYOUT, map(int, self._keys[:, layout]), strict=True))
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

    def _bounds_of(self, ways: NDArray[np.int64]) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.asarray(self._once_s[self._layout[ways]] * self._turns[ways] + self._besides[ways])
