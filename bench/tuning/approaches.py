"""Ways to choose among a group's plans, each by what it measures; and how good the choice is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.tuning.groups import Group, table_of
from planner.one_job.tuning.measured import ErrorModel, Rules, ask_where_it_matters
from planner.one_job.tuning.records import Ask, Candidate, Measurement, P, tune

ALONE = ErrorModel(common=0.0, alike=0.0, own=0.43)
"""Each estimate errs on its own: of the others a measurement tells only how widely they err."""


def ask_in_turn(numbers: Sequence[int]) -> Ask[P]:
    """Ask for all candidates of these numbers in their order, whatever comes of them."""

    def ask(candidates: Sequence[Candidate[P]], done: Sequence[Measurement]) -> int | None:
        del candidates
        return numbers[len(done)] if len(done) < len(numbers) else None

    return ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an approach came to in one group. `accuracy` as Crius has it (section 8.2): 1 - (Tc - To) / To, with Tc the
    measured time of the plan chosen and To that of the best one. `measured` may be 0."""

    plans: int
    measured: int
    accuracy: float

    @property
    def saving(self) -> float:
        """Plans in the group over plans measured until the choice is final; a plan chosen unmeasured counts as one."""
        return self.plans / self.counted

    @property
    def counted(self) -> int:
        """Plans measured, at least one."""
        return max(1, self.measured)


Approach = Callable[[Group], Outcome | None]
"""None where the approach does not apply to the group."""


def by_crius(group: Group) -> Outcome | None:
    """All plans in the halves of the Cell of the least estimate."""
    return _measure_these(group, group.best_cell)


def by_every_cell(group: Group) -> Outcome | None:
    """All plans in the halves of any Cell."""
    return _measure_these(group, group.every_cell)


def by_default(rules: Rules | None = None) -> Approach:
    """Only where it can change the answer."""

    def run(group: Group) -> Outcome:
        found = tune(group.candidates, table_of(group), ask_where_it_matters(rules))
        best = found.best
        assert best is not None, "a group has a plan that ran"
        assert best.seconds is not None
        return _outcome(group, len(found.measurements), best.seconds)

    return run


def by_estimate(group: Group) -> Outcome:
    """The least estimate, unmeasured. One that would run out of memory is taken for as slow as twice the best."""
    number = min(range(len(group.candidates)), key=lambda one: group.candidates[one].estimated_s)
    seconds = group.measured_s[number]
    return _outcome(group, 0, 2 * group.least_s if seconds is None else seconds)


def by_all(group: Group) -> Outcome:
    """Every plan."""
    return _outcome(group, len(group.candidates), group.least_s)


def at_random(rules: Rules | None = None) -> Approach:
    """As many plans as the default measures, drawn at random: the accuracy expected.

    Of n plans sorted by time, the i-th (from 0) is the fastest of k drawn with probability C(n-1-i, k-1) / C(n, k).
    """
    default = by_default(rules)

    def run(group: Group) -> Outcome | None:
        like = default(group)
        assert like is not None, "the default applies to every group"
        times = sorted(seconds for seconds in group.measured_s if seconds is not None)
        count, drawn = len(times), min(len(times), like.measured)
        expected = sum(
            seconds * math.comb(count - 1 - place, drawn - 1) / math.comb(count, drawn)
            for place, seconds in enumerate(times)
        )
        return _outcome(group, like.measured, expected)

    return run


APPROACHES: dict[str, Approach] = {
    "Crius, halves of the best Cell": by_crius,
    "Crius, halves of every Cell": by_every_cell,
    "our default": by_default(),
    "our default, nothing learned": by_default(Rules(errors=ALONE)),
    "estimates alone": by_estimate,
    "at random, as many as our default": at_random(),
    "all plans": by_all,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Outcomes of several groups together."""

    groups: int
    plans: int
    measured: int
    counted: int
    accuracy_mean: float
    accuracy_worst: float
    saving_mean: float
    saving_most: float

    @property
    def saving_in_sum(self) -> float:
        """All plans over all measured."""
        return self.plans / self.counted


def add_up(outcomes: Sequence[Outcome]) -> Sum | None:
    """None without any."""
    if not outcomes:
        return None
    return Sum(
        groups=len(outcomes),
        plans=sum(one.plans for one in outcomes),
        measured=sum(one.measured for one in outcomes),
        counted=sum(one.counted for one in outcomes),
        accuracy_mean=fmean(one.accuracy for one in outcomes),
        accuracy_worst=min(one.accuracy for one in outcomes),
        saving_mean=fmean(one.saving for one in outcomes),
        saving_most=max(one.saving for one in outcomes),
    )


def _measure_these(group: Group, numbers: Sequence[int]) -> Outcome | None:
    best = tune(group.candidates, table_of(group), ask_in_turn(numbers)).best
    if best is None or best.seconds is None:
        return None
    return _outcome(group, len(numbers), best.seconds)


def _outcome(group: Group, measured: int, chosen_s: float) -> Outcome:
    return Outcome(
        plans=len(group.candidates), measured=measured, accuracy=1 - (chosen_s - group.least_s) / group.least_s
    )
