"""Start now, or wait for running jobs to end? The same plan placed on what is free at each coming end.

More free nodes are never worse, as long as nobody else takes them: so between two ends with the same time no end in
between is faster, halving finds the ends that are, and after a start that takes as long as all in one part no end is
looked at. What a start wins is told by the estimator's point; its chance
by the 90% interval, which both times share, since one plan is priced twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import erf, log, sqrt

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.pricing.training import Training, WholeTraining, iteration_of
from planner.many_jobs.placement.free_seats import on_free_devices
from planner.one_job.explicit.whole import train_by
from planner.one_job.free_devices.coming_free import Occupancy
from planner.one_job.site_pods.known_prices import remember
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.placing import EQUAL_TIME, PlanInPods, PodWishes, place_plan
from profiles.cluster import host_of
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

MOST_RANKS, LEAST_LOOKS, MOST_LOOKS = 24_000, 12, 64
"""The plan is placed at ends as long as neither so many ranks nor so many ends were looked at, but at some in any case;
then the last end stands for those between."""
Z_90 = 1.6448536269514722
"""Standard deviations from the middle to the ends of a 90% interval."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The plan, placed on what is free after `wait_s`, when `jobs` end. `training` is what the whole training takes
    from then on, where that was asked; `chance_free` that all jobs on its nodes have ended by then."""

    wait_s: float
    jobs: tuple[str, ...]
    free_devices: int
    setup: Setup
    evaluation: Evaluation
    in_pods: PlanInPods | None
    training: Training | None
    chance_free: float

    @property
    def time_s(self) -> float:
        """Seconds of an iteration."""
        return self.evaluation.iteration_time_s

    @property
    def end_s(self) -> float | None:
        """Seconds from now to the end of the training."""
        return None if self.training is None else self.wait_s + self.training.seconds

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes in the order of their first ranks."""
        slots = (slot for stage in self.setup.stages for slot in stage.slots)
        return tuple(dict.fromkeys(host_of(self.setup.cluster, slot) or "" for slot in slots))

    def pays_beyond_s(self, first: Start) -> float | None:
        """Return how long a training must take from `first` on for this start to end sooner; None where it never does.

        Waiting w longer for iterations of T1 in place of T0 pays beyond w * T0 / (T0 - T1).
        """
        waits_s, gain = self.wait_s - first.wait_s, 1 - self.time_s / first.time_s
        return waits_s / gain if gain > 0 else None

    def chance_pays(self, first: Start) -> float | None:
        """Return the chance that the training ends sooner so than from `first` on: that iterations take so much longer
        than estimated, or so little less, that what is won still exceeds the wait, and that the nodes come free in
        time. None without a training. Errors are a factor on both times, log-normal on either side of the estimate."""
        if self.training is None or first.training is None:
            return None
        won_s, waits_s = first.training.seconds - self.training.seconds, self.wait_s - first.wait_s
        if won_s <= 0:
            return 0.0
        if waits_s <= 0:
            return self.chance_free
        low, high = first.training.interval_90
        return self.chance_free * chance_above(waits_s / won_s, low, high)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The `starts` that are faster than all before them, the first one first; `best` ends the training soonest, or is
    the fastest where no training is said. `looked_at` ends were placed at, of all that come."""

    occupancy: Occupancy
    starts: tuple[Start, ...]
    best: Start
    looked_at: int

    @property
    def first(self) -> Start:
        """The earliest start."""
        return self.starts[0]


def chance_above(factor: float, low: float, high: float) -> float:
    """Return the chance that a factor is above `factor` whose 90% interval is `low` to `high` around 1.

    >>> [round(chance_above(factor, 0.9, 1.2), 3) for factor in (0.9, 1.0, 1.2)]
    [0.95, 0.5, 0.05]
    """
    edge = log(high if factor > 1 else low)
    if edge == 0:
        return 0.5 if factor == 1 else float(factor < 1)
    deviations = Z_90 * log(factor) / abs(edge)
    return 0.5 * (1 - erf(deviations / sqrt(2)))


def wait_or_start(
    occupancy: Occupancy, first: Start, evaluate: Evaluate, wishes: PodWishes, whole: WholeTraining | None
) -> Waiting:
    """Return the starts of a plan that is placed as `first`: that one, and those at coming ends that are faster."""
    known = remember(evaluate)

    def start_after(wait_s: float) -> Start:
        return _start(occupancy, first, wait_s, known, wishes, whole)

    return faster_starts(occupancy, first, start_after)


def faster_starts(occupancy: Occupancy, first: Start, start_after: Callable[[float], Start]) -> Waiting:
    """Return `first` and the starts at coming ends that are faster than all before them, where `start_after` places the
    job on what is free after a wait."""
    waits = tuple(wait_s for wait_s in occupancy.waits_s if wait_s > first.wait_s)
    ranks = sum(len(stage.slots) for stage in first.setup.stages)
    most = min(MOST_LOOKS, max(LEAST_LOOKS, MOST_RANKS // ranks))
    looked: dict[int, Start] = {0: first}

    def start_at(number: int) -> Start:
        if number not in looked:
            looked[number] = start_after(waits[number - 1])
        return looked[number]

    starts = [first]
    for number in _falls(start_at, 0, len(waits), lambda: len(looked) < most):
        if _falls_to(start_at(number), starts[-1]):
            starts.append(start_at(number))
    return Waiting(occupancy=occupancy, starts=tuple(starts), best=best_start(starts), looked_at=len(looked) - 1)


def best_start(starts: Sequence[Start]) -> Start:
    """Return the start that ends the training soonest, or where no training is said the fastest."""
    return min(starts, key=lambda start: start.time_s if start.end_s is None else start.end_s)


def first_start(
    occupancy: Occupancy,
    wait_s: float,
    placed: tuple[Setup, Evaluation, PlanInPods | None],
    whole: WholeTraining | None,
) -> Start:
    """Return the earliest start: a plan as it was placed on what is free then."""
    setup, evaluation, in_pods = placed
    return Start(
        wait_s=wait_s,
        jobs=occupancy.ending_at(wait_s) if wait_s else (),
        free_devices=occupancy.free_devices(wait_s or None),
        setup=setup,
        evaluation=evaluation,
        in_pods=in_pods,
        training=None if whole is None else train_by(whole, iteration_of(setup, evaluation), model=setup.model.name),
        chance_free=1.0 if not wait_s else occupancy.chance_free(_hosts(setup), wait_s),
    )


def _hosts(setup: Setup) -> tuple[str, ...]:
    slots = (slot for stage in setup.stages for slot in stage.slots)
    return tuple(dict.fromkeys(host_of(setup.cluster, slot) or "" for slot in slots))


def _start(
    occupancy: Occupancy,
    first: Start,
    wait_s: float,
    evaluate: Evaluate,
    wishes: PodWishes,
    whole: WholeTraining | None,
) -> Start:
    """The plan placed as wished on what is free then; as it is first where nothing meets the wishes."""
    cluster = replace(occupancy.cluster_at(wait_s), site_links=first.setup.cluster.site_links)
    in_pods = place_plan(on_free_devices(first.setup, cluster), evaluate, wishes)
    if isinstance(in_pods, Infeasible):
        return first
    return first_start(occupancy, wait_s, (in_pods.setup, in_pods.evaluation, in_pods), whole)


def _falls_to(later: Start, sooner: Start) -> bool:
    return later.time_s < sooner.time_s * (1 - EQUAL_TIME)


def _is_least(start: Start) -> bool:
    """Whether no placement of the plan is faster, wherever its ranks sit."""
    bounds = [site.placed.bound_s for site in start.in_pods.sites] if start.in_pods is not None else []
    return any(bound_s is not None and start.time_s * (1 - EQUAL_TIME) <= bound_s for bound_s in bounds)


def _falls(start_at: Callable[[int], Start], low: int, high: int, go_on: Callable[[], bool]) -> Iterator[int]:
    """The ends after `low`, up to `high`, at which the time falls; the last of them where no more may be looked at."""
    if high == low or _is_least(start_at(low)) or not _falls_to(start_at(high), start_at(low)):
        return
    if high - low == 1 or not go_on():
        yield high
        return
    middle = (low + high) // 2
    yield from _falls(start_at, low, middle, go_on)
    yield from _falls(start_at, middle, high, go_on)
