"""A plan on chosen machines: which rank on which GPU, by what the estimator says an iteration then takes.

A choice of machines fixes how many ranks each holds. Which ranks these are is the rank order: groups that talk much
want to be on one machine. Where there are few orders all are priced; else it is found by exchanges from a few orders,
and is never worse than the best of them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations
from operator import itemgetter

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from estimator.pricing.stage_cost import StageCost
from planner.many_jobs.placement.machines.choices import Choice
from planner.one_job.site_pods.least_time import Evaluate
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

MOST_RANKS_PRICED = 24_000
"""Orders of ranks are priced as long as they have not so many ranks in all."""
MOST_ORDERS, FEW_ORDERS = 300, 75
"""So many orders of a plan's ranks on a choice are priced at most; and of choices that are only told beside it."""
MOST_ARRANGED = 280
"""With no more ways than this to give ranks their machines all of them are."""
KICKS, EXCHANGED = 8, 3
"""So often a few pairs of ranks are exchanged by lot, and the order is bettered from there."""
LESS = 1e-4
"""Times nearer to each other than this share are equal: an order machine by machine, as launchers count, stays."""


@dataclass(frozen=True, kw_only=True)
class Seated:
    """A plan on the machines of a choice, with its price. `exact`: no order of its ranks was left out; `priced` orders
    were."""

    choice: Choice
    setup: Setup
    evaluation: Evaluation
    priced: int
    exact: bool = False

    @property
    def time_s(self) -> float:
        """Seconds of an iteration."""
        return self.evaluation.iteration_time_s

    @property
    def slots(self) -> tuple[DeviceSlot, ...]:
        """The GPU of each rank."""
        return tuple(slot for stage in self.setup.stages for slot in stage.slots)


def reseat(setup: Setup, slots: Sequence[DeviceSlot], cluster: Cluster | None = None) -> Setup:
    """Return a plan with rank i on `slots[i]`."""
    places = iter(slots)
    stages = tuple(replace(stage, slots=tuple(next(places) for _ in stage.slots)) for stage in setup.stages)
    return replace(setup, stages=stages, cluster=cluster or setup.cluster)


def ranks_of(setup: Setup) -> int:
    """Return how many ranks a plan has."""
    return sum(len(stage.slots) for stage in setup.stages)


def seat(setup: Setup, choice: Choice, evaluate: Evaluate) -> Seated | None:
    """Return the best of a few orders of a plan's ranks on a choice of machines; None where it fits in none, or has
    more ranks than that. A plan of fewer leaves the last GPUs idle."""
    best: Seated | None = None
    priced = 0
    for slots in _orders(setup, choice):
        evaluation = _priced(setup, slots, evaluate)
        priced += 1
        if evaluation is not None and (best is None or evaluation.iteration_time_s < best.time_s * (1 - LESS)):
            best = Seated(choice=choice, setup=reseat(setup, slots), evaluation=evaluation, priced=priced)
    return None if best is None else replace(best, priced=priced)


def improve(seated: Seated, evaluate: Evaluate, *, most: int = MOST_ORDERS) -> Seated:
    """Return it with its ranks in the best order that is found: of all orders where these are few, else by exchanges of
    any two ranks, and of any two stages of as many ranks, again and again from the best one with a few ranks exchanged
    by lot (a fixed one), as long as the work lasts: `most` orders. What no axis tells apart is tried once."""
    search = _OrderSearch(seated, evaluate, most)
    labels = tuple(slot.node for slot in seated.slots)
    exact = _arrangements(labels) <= MOST_ARRANGED
    if exact:
        for nodes in _arrange(Counter(labels)):
            search.try_order(_on_nodes(nodes, seated.slots))
    else:
        search.climb(list(seated.slots))
        rng = random.Random(0)
        for _ in range(KICKS):
            slots = list(search.best.slots)
            for _ in range(EXCHANGED):
                first, second = rng.randrange(len(slots)), rng.randrange(len(slots))
                slots[first], slots[second] = slots[second], slots[first]
            search.try_order(slots)
            search.climb(slots)
    best = search.best
    in_turn = reseat(best.setup, _on_nodes([slot.node for slot in best.slots], best.slots))
    evaluation = evaluate(in_turn)
    if not isinstance(evaluation, Infeasible) and evaluation.iteration_time_s <= best.time_s:
        best = replace(best, setup=in_turn, evaluation=evaluation)
    return replace(best, priced=search.priced, exact=exact)


class Seats:
    """What is priced once: the best order of each plan's ranks on ways that are alike, and stages that sit alike. It
    belongs to one answer. What is told of a plan is what `improve` returns; of what `seat` returns only the figures
    hold, not what they rest on."""

    def __init__(self, pricing: Pricing) -> None:
        self.pricing = pricing
        self._known: dict[int, dict[Hashable, StageCost]] = {}
        self._seated: dict[tuple[int, object], Seated | None] = {}
        self._improved: dict[tuple[int, object], Seated] = {}
        self._plans: list[Setup] = []

    def seat(self, plan: Setup, choice: Choice) -> Seated | None:
        """As `seat`."""
        key = (self._number(plan), choice.key)
        if key not in self._seated:
            self._seated[key] = seat(plan, choice, self._price(key[0]))
        like = self._seated[key]
        return None if like is None else _moved(like, choice)

    def improve(self, plan: Setup, seated: Seated, *, most: int = MOST_ORDERS) -> Seated:
        """As `improve`, for a plan that was seated there; what was improved before stays."""
        key = (self._number(plan), seated.choice.key)
        if key not in self._improved:
            best = improve(seated, self._price(key[0]), most=most)
            evaluation = evaluate(best.setup, self.pricing)
            assert isinstance(evaluation, Evaluation), "a plan that was priced"
            self._improved[key] = replace(best, evaluation=evaluation)
        return _moved(self._improved[key], seated.choice)

    def _price(self, plan: int) -> Evaluate:
        """What prices this plan's orders."""
        known = self._known.setdefault(plan, {})
        return lambda setup: evaluate(setup, self.pricing, known=known)

    def _number(self, plan: Setup) -> int:
        for number, other in enumerate(self._plans):
            if other is plan:
                return number
        self._plans.append(plan)
        return len(self._plans) - 1


def _moved(seated: Seated, choice: Choice) -> Seated:
    """A plan on machines that are alike, GPU by GPU."""
    if choice is seated.choice:
        return seated
    before = (slot for machine, count in seated.choice.takes for slot in machine.slots(count))
    after = (slot for machine, count in choice.takes for slot in machine.slots(count))
    there = dict(zip(before, after, strict=True))
    return replace(seated, choice=choice, setup=reseat(seated.setup, [there[slot] for slot in seated.slots]))


class _OrderSearch:
    """The best order of a plan's ranks so far, and what was tried: no other state."""

    def __init__(self, seated: Seated, evaluate: Evaluate, most: int) -> None:
        self.best, self.evaluate, self.setup = seated, evaluate, seated.setup
        self.priced = seated.priced
        self.most = seated.priced + max(16, min(most, MOST_RANKS_PRICED // len(seated.slots)))
        self.times: dict[tuple[object, ...], float] = {_pattern(self.setup, seated.slots): seated.time_s}

    def try_order(self, slots: Sequence[DeviceSlot]) -> float:
        """Return seconds of an iteration in this order: infinite where it does not fit, or the work is used up."""
        pattern = _pattern(self.setup, slots)
        if pattern not in self.times:
            if self.priced >= self.most:
                return math.inf
            self.priced += 1
            evaluation = _priced(self.setup, slots, self.evaluate)
            self.times[pattern] = math.inf if evaluation is None else evaluation.iteration_time_s
            if evaluation is not None and evaluation.iteration_time_s < self.best.time_s * (1 - LESS):
                self.best = replace(self.best, setup=reseat(self.setup, slots), evaluation=evaluation)
        return self.times[pattern]

    def climb(self, slots: list[DeviceSlot]) -> None:
        """Make any exchange that is faster, until none is."""
        time_s, found = self.try_order(slots), True
        while found and self.priced < self.most:
            found = False
            for first, second, count in _exchanges(self.setup):
                other = list(slots)
                here, there = slice(first, first + count), slice(second, second + count)
                other[here], other[there] = other[there], other[here]
                other_s = self.try_order(other)
                if other_s < time_s * (1 - LESS):
                    slots, time_s, found = other, other_s, True


def _arrangements(nodes: Sequence[int]) -> int:
    """In how many ways ranks can be given these machines."""
    return math.factorial(len(nodes)) // math.prod(math.factorial(count) for count in Counter(nodes).values())


def _arrange(left: Counter[int]) -> Iterator[tuple[int, ...]]:
    """All of them."""
    if not +left:
        yield ()
    for node in sorted(+left):
        for rest in _arrange(left - Counter([node])):
            yield (node, *rest)


def _on_nodes(nodes: Sequence[int], slots: Sequence[DeviceSlot]) -> list[DeviceSlot]:
    """The GPUs so that each rank's is on its node."""
    on: dict[int, list[DeviceSlot]] = {}
    for slot in sorted(slots, key=lambda slot: -slot.index):
        on.setdefault(slot.node, []).append(slot)
    return [on[node].pop() for node in nodes]


def _exchanges(setup: Setup) -> Iterator[tuple[int, int, int]]:
    """The first ranks of two runs of as many, and how many: stages first, then single ranks."""
    firsts, sizes = [0], [len(stage.slots) for stage in setup.stages]
    for size in sizes[:-1]:
        firsts.append(firsts[-1] + size)
    for here, there in combinations(range(len(sizes)), 2):
        if sizes[here] == sizes[there] > 1:
            yield firsts[here], firsts[there], sizes[here]
    for first, second in combinations(range(sum(sizes)), 2):
        yield first, second, 1


def _priced(setup: Setup, slots: Sequence[DeviceSlot], evaluate: Evaluate) -> Evaluation | None:
    evaluation = evaluate(reseat(setup, slots))
    if isinstance(evaluation, Infeasible) or evaluation.out_of_memory is not None:
        return None
    return evaluation


def _pattern(setup: Setup, slots: Sequence[DeviceSlot]) -> tuple[object, ...]:
    """The machine of every rank, those of a tensor-parallel group in any order: what an exchange can change."""
    places, pattern = iter(slots), []
    for stage in setup.stages:
        nodes = [next(places).node for _ in stage.slots]
        pattern.append(tuple(tuple(sorted(nodes[i : i + stage.tp])) for i in range(0, len(nodes), stage.tp)))
    return tuple(pattern)


def _orders(setup: Setup, choice: Choice) -> Iterator[tuple[DeviceSlot, ...]]:
    """The GPUs machine by machine, from the most to the fewest and back and in the cluster's order, stage by stage and
    replica by replica; and so that whole groups (of tensor-parallel ranks, of a stage, of a replica) come first and
    what is left of each machine last."""
    ranks = ranks_of(setup)
    if ranks > sum(choice.shape):
        return
    blocks = [machine.slots(count) for machine, count in choice.takes]
    by_stage, by_replica = list(range(ranks)), _replica_by_replica(setup)
    tp, stage = max(one.tp for one in setup.stages), max(len(one.slots) for one in setup.stages)
    ways = [(by_stage, 1), (by_stage, tp), (by_stage, stage), (by_replica, 1), (by_replica, len(setup.stages) * tp)]
    seen: set[tuple[DeviceSlot, ...]] = set()
    for order in (blocks, blocks[::-1], sorted(blocks, key=lambda block: block[0].node)):
        for positions, group in ways:
            whole = [block[: len(block) // group * group] for block in order]
            rest = [block[len(block) // group * group :] for block in order]
            in_turn = [slot for part in (*whole, *rest) for slot in part][:ranks]
            slots = tuple(slot for _, slot in sorted(zip(positions, in_turn, strict=True), key=itemgetter(0)))
            if slots not in seen:
                seen.add(slots)
                yield slots


def _replica_by_replica(setup: Setup) -> list[int]:
    """The ranks so that those of the same replicas in all stages follow each other, as far as stages are alike."""
    places, first = [], 0
    for number, stage in enumerate(setup.stages):
        places += [((rank // stage.tp) / max(1, len(stage.slots) // stage.tp), number, rank + first)
                   for rank in range(len(stage.slots))]  # fmt: skip
        first += len(stage.slots)
    return [rank for _, _, rank in sorted(places)]
