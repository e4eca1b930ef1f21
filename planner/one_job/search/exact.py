"""The best plan of a space, proved: candidates in the order of what they take at least, until none can be better.

Best-first branch and bound. A way to share the devices is bounded by its compute alone, then, many at once, with its
collectives and as its layers have to fit; what is left is priced in bulk: every cut of the layers, rule of
recomputation and rule of state at once. Whatever is popped with a bound no less than the best plan's value ends the
search, and that bound is the certificate.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.bounds import Coarse, coarsely, least_by_cut_s, least_under_s
from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.layers import ModelLayers
from estimator.bulk.open_ways import OpenSchedule, OpenWay, least_in_turn, least_of_ways_s
from estimator.bulk.pipeline import Pipeline
from estimator.bulk.places import Placement, Places
from estimator.bulk.records import BatchedDegrees, Family, StateRule
from estimator.pricing.amounts import Floats
from estimator.pricing.recipe import ScheduleName
from planner.one_job.search.parts import Asking, Part, asking_of, make_part
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.cuts import Cut, cuts_of, most_apart
from planner.one_job.search.spaces.found import ROUNDING, Counts, Found
from planner.one_job.search.spaces.space import (
    Space,
    recompute_rules,
    schedules_of,
    ways_of,
)
from planner.one_job.search.way_order import WayOrder
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

RUNNERS_UP = 5
FIRST_OPENED, MOST_OPENED = 32, 2048
"""So many ways are opened together at first, twice as many each time after, and at most."""
FIRST_SUMMED, MOST_SUMMED = 8, 128
"""So many schedules of ways are bounded with sums together, in the same way."""
AHEAD = 1.02
"""What is opened or bounded with sums together with the most promising has bounds of at most so many times its."""
MOST_DIVES = 8
"""So often a good plan is looked for before it is known to be promising enough."""
MOST_MISSES = 2000
"""Families in which the nearest miss is looked for, where nothing fits."""

Progress = Callable[[int, float, float], None]
"""Called with families priced, the least that any plan left could take, and the best value so far (inf: none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """`best` None: nothing fits, and `nearest` lacks least. `lower_bound`: no plan of the space has a smaller value;
    equal to the best's where `proved`. `runners_up`: the best plan each of other ways or schedules, of those priced."""

    best: Found | None
    nearest: Found | None
    runners_up: tuple[Found, ...]
    lower_bound: float
    proved: bool
    counts: Counts


@dataclass(order=True, slots=True)
class _Leaf:
    """A rule of state of a node."""

    bound: float
    number: int
    state: StateRule = field(compare=False)


@dataclass(order=True, slots=True)
class _Item:
    """A node of the search: a way with a placement and one schedule; then `summed`, bounded with sums of gradients;
    then also a pipeline with its cuts; then also some rules of state (`states`). `leaves`: the rules that are left, as
    a heap."""

    bound: float
    number: int
    way: int = field(compare=False)
    placement: Placement = field(compare=False)
    open: OpenWay = field(compare=False)
    schedule: ScheduleName = field(compare=False)
    vpp: int = field(compare=False)
    leaves: list[_Leaf] = field(compare=False)
    asking: tuple[Asking, ...] = field(compare=False)
    summed: bool = field(default=False, compare=False)
    pipeline: Pipeline | None = field(default=None, compare=False)
    cuts: tuple[Cut, ...] = field(default=(), compare=False)
    least_s: Floats | None = field(default=None, compare=False)
    states: tuple[StateRule, ...] = field(default=(), compare=False)
    coarse: Coarse | None = field(default=None, compare=False)
    by_state_s: Floats | None = field(default=None, compare=False)


def search(
    space: Space,
    evaluator: BulkEvaluator,
    *,
    weight: Callable[[int], float] = lambda devices: 1.0,  # noqa: ARG005
    below: float = math.inf,
    most_families: int | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """The plan of `space` of the least `weight(devices)` times iteration time, if that is less than `below`.

    `most_families` limits the work: what is then left gives the lower bound, and the gap.
    """
    return _Search(space, evaluator, ((None, below),), weight, progress).run(most_families)[0]


def search_parts(
    space: Space,
    evaluator: BulkEvaluator,
    parts: Sequence[Constraints],
    *,
    weight: Callable[[int], float] = lambda devices: 1.0,  # noqa: ARG005
    below: Sequence[float] | None = None,
    most_families: int | None = None,
    progress: Progress | None = None,
) -> tuple[SearchResult, ...]:
    """The best plan of each of `parts` of the space, as `search` finds it, by one way through all of them: what is
    opened for one is opened for all. The parts' constraints are the space's, but for narrower ones; `below` and
    `most_families` are each part's own; counts are of all together."""
    if not parts:
        return ()
    wanted = tuple(zip(parts, below or [math.inf] * len(parts), strict=True))
    return _Search(space, evaluator, wanted, weight, progress).run(most_families)


class _Search:
    """The state of one search through some parts of a space (None: all of it), each with what a plan of it has to be
    below."""

    def __init__(
        self,
        space: Space,
        evaluator: BulkEvaluator,
        parts: Sequence[tuple[Constraints | None, float]],
        weight: Callable[[int], float],
        progress: Progress | None,
    ) -> None:
        self.space, self.evaluator, self.weight, self.progress = space, evaluator, weight, progress
        self.ways, self.slots = ways_of(space), Places(space.slots)
        self.parts = [make_part(space, self.ways, limits, below) for limits, below in parts]
        self.whole = self.parts[0] if self.parts[0].limits is None else None
        self.nearest: Found | None = None
        self.by_way: dict[tuple[int, str, int], Found] = {}
        self.families = self.plans = self.out_of_memory = self.serial = 0
        self.opened: set[int] = set()
        self.plunged: set[tuple[int, Part]] = set()
        self.summed_together = FIRST_SUMMED
        self.order = WayOrder(space, self.ways, evaluator, self.slots, weight)

    def run(self, most_families: int | None) -> tuple[SearchResult, ...]:
        waiting: list[_Item] = []
        together = FIRST_OPENED
        while True:
            ahead = self.order.ahead
            if waiting and waiting[0].bound <= ahead:
                item = heapq.heappop(waiting)
            elif math.isinf(ahead):
                break
            else:
                item = None
            if self._close(item.bound if item else ahead, most_families):
                break
            if item is None:
                below = max((part.value for part in self.parts if not part.closed), default=math.inf) * (1 - ROUNDING)
                until = max(ahead, waiting[0].bound) * AHEAD if waiting else math.inf
                some = self.order.take(together, below=below, until=until)
                bounds = self.order.bounds
                self._open([way for way in some if not self._is_way_settled(float(bounds[way]), way)], waiting)
                if self.whole or all(part.value < math.inf for part in self.parts):
                    together = min(2 * together, MOST_OPENED)
            elif self._is_settled(item, item.bound):
                continue
            elif not item.summed:
                self._sum(item, waiting)
            elif item.least_s is None:
                self._cut(item, waiting)
            elif item.by_state_s is None:
                self._share(item, item.least_s, waiting)
            else:
                self._price(item, item.by_state_s)
        return tuple(map(self._result, self.parts))

    def _close(self, bound: float, most_families: int | None) -> bool:
        """Whether nothing of at least `bound` is better in any part, or there was work enough on it."""
        return all(part.close(bound, most_families) for part in self.parts)

    def _result(self, part: Part) -> SearchResult:
        return SearchResult(
            best=part.best,
            nearest=None if part.best else self.nearest,
            runners_up=self._runners_up() if self.whole else (),
            lower_bound=min(part.lower_bound, part.value),
            proved=part.proved,
            counts=Counts(
                considered=self.ways.considered,
                removed=self.ways.removed,
                ways=len(self.ways),
                bounded=len(self.ways) - len(self.opened),
                families=self.families,
                plans=self.plans,
                out_of_memory=self.out_of_memory,
            ),
        )

    def _is_way_settled(self, bound: float, way: int) -> bool:
        """Whether no plan of at least `bound` of a way is better in any part."""
        return all(part.closed or part.is_settled(bound) for part in self.parts if part.ways[way])

    def _is_settled(self, item: _Item, bound: float) -> bool:
        """Whether no plan of at least `bound` of a node is better."""
        return all(asking.part.is_settled(bound) for asking in self._asking(item))

    def _asking(self, item: _Item) -> list[Asking]:
        """The parts that a node touches."""
        if self.whole:
            return list(item.asking)
        states = item.states or [leaf.state for leaf in item.leaves]
        return [
            asking
            for asking in item.asking
            if not asking.part.closed and any(state in asking.states for state in states)
        ]

    def _plunge(self, waiting: list[_Item]) -> None:
        """Plunge into the most promising schedule of a way for each part, once."""
        if self.whole:
            if waiting and len(self.plunged) < MOST_DIVES:
                self._plunge_into(waiting[0], self.whole)
            return
        for part in self.parts:
            if part.best is None and not part.closed:
                asked = (item for item in waiting if any(asking.part is part for asking in self._asking(item)))
                promising = min(asked, default=None)
                if promising is not None:
                    self._plunge_into(promising, part)

    def _plunge_into(self, promising: _Item, part: Part) -> None:
        """Price a schedule of a way at once under its most promising rule of state, coarsely: a good plan soon, against
        which the others of the part are bounded."""
        if (promising.number, part) in self.plunged or math.isinf(promising.bound):
            return
        self.plunged.add((promising.number, part))
        rules = next(asking.states for asking in promising.asking if asking.part is part)
        item = replace(promising, leaves=sorted(leaf for leaf in promising.leaves if leaf.state in rules))
        if item.least_s is None:
            self._cut(item, [])
        while item.least_s is not None and item.leaves:
            shared: list[_Item] = []
            self._share(item, item.least_s, shared)
            fitting = [each for each in shared if each.by_state_s is not None and math.isfinite(each.bound)]
            for first in fitting[:1]:
                assert first.by_state_s is not None
                self._price(first, first.by_state_s, coarsely=True)
            if fitting or item.coarse is None:
                return

    def _placements(self, way: int) -> list[Placement]:
        """Ranks on the devices in turn; and with every tensor-parallel group inside a node, where that differs."""
        degrees = self.ways.degrees(way)
        devices = degrees.stage_devices * degrees.pp
        placements = [self._placement(1)]
        if self.space.node % degrees.tp:
            placements.append(self._placement(degrees.tp))
        return [placement for placement in placements if len(placement.slots) >= devices]

    def _placement(self, tp: int) -> Placement:
        return self.evaluator.placement(tp, self.slots)

    def _open(self, ways: Sequence[int], waiting: list[_Item]) -> None:
        """The schedules of several ways, each under every rule of state, bounded together."""
        pairs = [(way, placement) for way in ways for placement in self._placements(way)]
        opened = [(way, placement, *possible) for way, placement in pairs if (possible := self._way(way, placement))]
        least = self._least([open_way for _, _, open_way, _ in opened], with_sums=False)
        for (way, placement, open_way, asking), least_s in zip(opened, least, strict=True):
            for place, schedule in enumerate(open_way.schedules):
                asked = tuple(each for each in asking if each.part.permits_chunks(schedule.chunks))
                leaves = self._leaves(open_way, asked, least_s[place])
                if leaves:
                    alone, name, vpp = replace(open_way, schedules=(schedule,)), schedule.name, schedule.chunks
                    item = _Item(leaves[0].bound, self._next(), way, placement, alone, name, vpp, leaves, asked)
                    self._push(item, waiting)
        self._plunge(waiting)

    def _sum(self, item: _Item, waiting: list[_Item]) -> None:
        """The most promising schedules, bounded with the sums of gradients."""
        some, kept = [item], list[_Item]()
        until = item.bound * AHEAD
        while waiting and len(some) < self.summed_together and waiting[0].bound <= until:
            other = heapq.heappop(waiting)
            if self._is_settled(other, other.bound):
                continue
            (kept if other.summed else some).append(other)
        self.summed_together = min(2 * self.summed_together, MOST_SUMMED)
        for other in kept:
            heapq.heappush(waiting, other)
        left = [
            replace(
                each.open,
                states=tuple(leaf.state for leaf in each.leaves if not self._is_leaf_settled(leaf, each.asking)),
                below_s=self._below_s([asking.part for asking in each.asking], each.open.degrees),
            )
            for each in some
        ]
        for each, open_way, least_s in zip(some, left, self._least(left, with_sums=True), strict=True):
            each.leaves, each.summed = self._leaves(open_way, each.asking, least_s[0]), True
            if each.leaves:
                each.bound = max(each.bound, each.leaves[0].bound)
                self._push(each, waiting)

    def _least(self, ways: list[OpenWay], *, with_sums: bool) -> list[Floats]:
        kinds = tuple(dict.fromkeys(kind for kind, _ in recompute_rules(self.space, 1)))
        return least_of_ways_s(ways, kinds, spare_bytes=self._spare_bytes(), with_sums=with_sums)

    def _leaves(self, open_way: OpenWay, asking: Sequence[Asking], least_s: Floats) -> list[_Leaf]:
        """The rules of state that can still be better, as a heap."""
        bounds = (least_s * self._factor(open_way.degrees)).tolist()
        every = (
            _Leaf(bound, number, state)
            for number, (bound, state) in enumerate(zip(bounds, open_way.states, strict=True))
        )
        leaves = [leaf for leaf in every if not self._is_leaf_settled(leaf, asking)]
        heapq.heapify(leaves)
        return leaves

    def _is_leaf_settled(self, leaf: _Leaf, asking: Sequence[Asking]) -> bool:
        """Whether no plan of a rule of state is better."""
        return all(each.part.closed or each.part.is_settled(leaf.bound) for each in asking if leaf.state in each.states)

    def _below_s(self, parts: Sequence[Part], degrees: BatchedDegrees) -> float:
        """What plans have to fall below to be better in one of the parts."""
        value = max((part.value for part in parts if not part.closed), default=0.0)
        return value * (1 - ROUNDING) / self._factor(degrees)

    def _way(self, way: int, placement: Placement) -> tuple[OpenWay, tuple[Asking, ...]] | None:
        """The way with what is open of it, and the parts that it touches; None where nothing of it is, or none of it
        can be better."""
        degrees, holding = self.ways.degrees(way), [part for part in self.parts if part.ways[way]]
        kinds = self.evaluator.kinds(degrees, placement)
        if isinstance(kinds, Infeasible):
            return None
        open_way = OpenWay(
            degrees=degrees,
            kinds=kinds,
            overlap_under=self.evaluator.overlap_under,
            schedules=(),
            states=(),
            below_s=self._below_s(holding, degrees),
        )
        waits = not self.order.free[way]
        passes_s = float(least_in_turn(open_way.once_s, degrees.pp, open_way.micro_batches, waits))
        least_s = passes_s + self.evaluator.pricing.parameters.of("iteration_s")
        if self._is_way_settled(least_s * self._factor(degrees), way):
            return None
        schedules = tuple(
            OpenSchedule(name=name, chunks=vpp, most_apart=self._most_apart(degrees, vpp))
            for name, vpp in schedules_of(self.space, degrees)
        )
        asking = asking_of(self.space, degrees, holding)
        states = tuple(dict.fromkeys(state for each in asking for state in each.states))
        return (replace(open_way, schedules=schedules, states=states), asking) if schedules and states else None

    def _factor(self, degrees: BatchedDegrees) -> float:
        return self.weight(degrees.stage_devices * degrees.pp)

    def _most_apart(self, degrees: BatchedDegrees, vpp: int) -> int | None:
        """Of how many layers two chunks of a stage differ at most, None where nobody knows."""
        tool = self.space.constraints.training_tool
        if vpp > 1 and tool is not None and tool.division is not None:
            return None
        everything = "split-everything" in self.space.constraints.allow
        return most_apart(self.space.model, pp=degrees.pp, vpp=vpp, everything=everything)

    def _next(self) -> int:
        self.serial += 1
        return self.serial

    def _push(self, item: _Item, waiting: list[_Item]) -> None:
        """To those that wait, if something of it can still be better."""
        if not self._is_settled(item, item.bound):
            heapq.heappush(waiting, item)

    def _cut(self, item: _Item, waiting: list[_Item]) -> None:
        """One schedule of one way, bounded by the passes of its best cut."""
        self.opened.add(item.way)
        degrees = self.ways.degrees(item.way)
        pipeline = self.evaluator.pipeline(degrees, item.placement)
        if isinstance(pipeline, Infeasible):
            raise RuntimeError(f"a way that was bounded is not possible: {pipeline.reason}")
        item.pipeline = pipeline
        item.cuts = self._cuts(degrees, pipeline, item.vpp)
        if not item.cuts:
            return
        item.least_s = least_by_cut_s(pipeline, item.schedule, item.cuts)
        item.bound = max(item.bound, float(item.least_s.min()) * self._factor(degrees))
        self._push(item, waiting)

    def _cuts(self, degrees: BatchedDegrees, pipeline: Pipeline, vpp: int) -> tuple[Cut, ...]:
        """The ways to cut the layers: the tool's own where it divides them itself."""
        tool = self.space.constraints.training_tool
        if tool is not None and tool.division is not None and degrees.pp > 1:
            cut = tool.division.cut(replace(self.space.shape(degrees), vpp=vpp))
            return () if cut is None else (cut,)
        everything = "split-everything" in self.space.constraints.allow
        return cuts_of(self.space.model, pp=degrees.pp, vpp=vpp, weights=pipeline.layer_s(), everything=everything)

    def _share(self, item: _Item, least_s: Floats, waiting: list[_Item]) -> None:
        """The cuts that can still be better, bounded under the next of the rules of state."""
        pipeline = item.pipeline
        assert pipeline is not None
        degrees = pipeline.degrees
        factor = self._factor(degrees)
        if item.coarse is None:
            bounds = (least_s * factor).tolist()
            open_cuts = [number for number, bound in enumerate(bounds) if not self._is_settled(item, bound)]
            rules = recompute_rules(self.space, 1)
            if not open_cuts or not rules:
                return
            item.cuts = tuple(item.cuts[number] for number in open_cuts)
            states = tuple(leaf.state for leaf in item.leaves)
            family = Family(schedule=item.schedule, cuts=item.cuts, recompute=rules, states=states)
            item.coarse = coarsely(pipeline, family)
        leaves = [heapq.heappop(item.leaves)]
        # Where none fits the nearest miss is asked for, of all at once.
        while math.isinf(leaves[0].bound) and item.leaves:
            leaves.append(heapq.heappop(item.leaves))
        states, spare = tuple(leaf.state for leaf in leaves), self._spare_bytes()
        by_state = np.column_stack([least_under_s(item.coarse, state, spare_bytes=spare) for state in states])
        shared = replace(item, number=self._next(), leaves=[], states=states, by_state_s=by_state)
        shared.bound = max(item.bound, float(by_state.min()) * factor)
        self._push(shared, waiting)
        if item.leaves:
            item.bound = max(item.bound, item.leaves[0].bound)
            self._push(item, waiting)

    def _price(self, item: _Item, by_state_s: Floats, *, coarsely: bool = False) -> None:
        """All plans of one schedule of one way whose cut and state can still be better; `coarsely`: few of them."""
        pipeline = item.pipeline
        assert pipeline is not None
        degrees = pipeline.degrees
        factor = self._factor(degrees)
        asking = self._asking(item)
        value = max((each.part.value for each in asking), default=0.0)
        still: NDArray[np.bool_] = np.less(by_state_s * factor, value * (1 - ROUNDING))
        if math.isinf(value) and math.isinf(item.bound):
            # Nothing of it fits: the nearest miss is all that can be told.
            if self.whole is None or self.families >= MOST_MISSES:
                return
            still = np.ones_like(still)
        cuts = tuple(item.cuts[number] for number in np.flatnonzero(np.any(still, axis=1)).tolist())
        states = tuple(item.states[number] for number in np.flatnonzero(np.any(still, axis=0)).tolist())
        if not cuts:
            return
        if coarsely:
            cuts = cuts[:1]
        layers: ModelLayers = self.evaluator.layers
        blocks = max(sum(layers.recomputable(*ranges) for ranges in stage) for cut in cuts for stage in cut)
        rules = recompute_rules(self.space, blocks, vpp=item.vpp)
        family = Family(
            schedule=item.schedule,
            cuts=cuts,
            recompute=tuple(rule for rule in rules if rule[1] is None) or rules if coarsely else rules,
            states=states,
        )
        if not family.plans:
            return
        priced = pipeline.price(family, below_s=min(value / factor, 1e300), spare_bytes=self._spare_bytes())
        fits = priced.lacking_bytes <= 0
        self.families += not coarsely
        self.plans += family.plans
        self.out_of_memory += int(family.plans - fits.sum())

        def found_at(place: Sequence[int]) -> Found:
            cut, rule, state = place
            took = float(priced.total_s[cut, rule, state])
            return Found(
                value=took * factor,
                iteration_time_s=took,
                lacking_bytes=max(0.0, float(priced.lacking_bytes[cut, rule, state])),
                degrees=degrees,
                placement=item.placement,
                schedule=item.schedule,
                cut=cuts[cut],
                rule=family.recompute[rule],
                state=family.states[state],
            )

        fitting_s = np.where(fits, priced.total_s, np.inf)
        for each in asking:
            part = each.part
            part.families += not coarsely
            allowed = fitting_s if part is self.whole else np.where(each.permits(family), fitting_s, np.inf)
            place = int(np.argmin(allowed))
            if not math.isfinite(allowed.flat[place]):
                continue
            plan = found_at([int(i) for i in np.unravel_index(place, allowed.shape)])
            key = (item.way, item.schedule, item.vpp)
            if part is self.whole and (key not in self.by_way or plan.value < self.by_way[key].value):
                self.by_way[key] = plan
            if plan.value < part.value:
                part.best = plan
        if math.isinf(value) and not fits.any():
            nearest = np.unravel_index(int(np.argmin(priced.lacking_bytes)), priced.lacking_bytes.shape)
            plan = found_at([int(i) for i in nearest])
            if self.nearest is None or plan.lacking_bytes < self.nearest.lacking_bytes:
                self.nearest = plan
        if self.progress is not None:
            self.progress(self.families, item.bound, min(part.value for part in self.parts))

    def _spare_bytes(self) -> int:
        """What every device must have left of what it has in the cluster."""
        below, more = self.space.memory_below, self.space.more_memory_bytes
        if below is None:
            return -more
        memory_bytes = self.evaluator.cluster.group_of(self.space.slots[0]).device.memory_bytes
        return max(0, memory_bytes + more - below + 1) - more

    def _runners_up(self) -> tuple[Found, ...]:
        best = self.parts[0].best
        others = sorted((plan for plan in self.by_way.values() if plan is not best), key=lambda other: other.value)
        return tuple(others[:RUNNERS_UP])
