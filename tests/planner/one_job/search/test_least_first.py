"""The lazily sorted order beside one that is sorted anew, stably, whenever a bound rises."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from planner.one_job.search import least_first
from planner.one_job.search.least_first import LeastFirst


class SortedAnew:
    """The same, by sorting all that is left each time."""

    def __init__(self, bounds: list[float]) -> None:
        self.bounds = dict(enumerate(bounds))
        self.order = sorted(self.bounds, key=self.bounds.__getitem__)
        self.below = math.inf

    def give_up(self, below: float) -> None:
        self.below = below
        self.order = [number for number in self.order if self.bounds[number] < below]

    def next(self, count: int, until: float) -> list[int]:
        return [number for number in self.order[:count] if self.bounds[number] <= until]

    def rise(self, numbers: list[int], bounds: list[float]) -> None:
        for number, bound in zip(numbers, bounds, strict=True):
            self.bounds[number] = max(self.bounds[number], bound)
        self.order = sorted(self.order, key=self.bounds.__getitem__)
        self.give_up(self.below)


@pytest.mark.parametrize("seed", range(60))
def test_the_order_is_that_of_sorting_all_of_them_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(f"least first {seed}")
    monkeypatch.setattr(least_first, "SORTED_AHEAD", rng.choice((1, 3, 8, 4096)))
    # Few values: many are equal.
    values = [float(value) for value in range(rng.choice((3, 12, 1000)))] + [math.inf]
    bounds = [rng.choice(values) for _ in range(rng.randint(0, 80))]
    quick, plain = LeastFirst(np.array(bounds, dtype=float)), SortedAnew(bounds)
    for _ in range(60):
        assert quick.ahead == min((plain.bounds[number] for number in plain.order), default=math.inf)
        # It may become larger again: what was given up stays so.
        below = rng.choice((math.inf, *values)) if rng.random() < 0.2 else math.inf
        quick.give_up(below)
        plain.give_up(below)
        count, until = rng.randint(1, 12), rng.choice((*values, math.inf))
        some = quick.next(count, until=until).tolist()
        assert some == plain.next(count, until)
        if rng.random() < 0.4:
            quick.remove(len(some))
            plain.order = plain.order[len(some) :]
        asked = np.array(sorted(rng.sample(range(len(bounds)), len(bounds) // 3)), dtype=np.int64)
        raised = quick.left(asked).tolist()
        assert raised == [number for number in asked.tolist() if number in plain.order]
        rises = [plain.bounds[number] + rng.choice((-1.0, 0.0, 1.0, 2.0, math.inf)) for number in raised]
        quick.rise(np.array(raised, dtype=np.int64), np.array(rises, dtype=float))
        plain.rise(raised, rises)
