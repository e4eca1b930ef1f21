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
from itertools import count

import numpy as np

from estimator.bulk.bounds import coarsely, least_by_cut_s, least_under_s
from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.records import Family
from estimator.pricing.amounts import Floats
from planner.one_job.search.families import PricedFamily, price_node
from planner.one_job.search.nodes import Node, bound_anew, most_promising, open_leaves, still_open
from planner.one_job.search.opening import OpenedWay, WayOpener, spare_bytes_of
from planner.one_job.search.parts import Asking, Part, make_part
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.found import Counts, Found, SearchResult
from planner.one_job.search.spaces.space import Space, recompute_rules, ways_of
from planner.one_job.search.way_order import WayOrder
from profiles.records import replace

RUNNERS_UP = 5
FIRST_OPENED, MOST_OPENED = 8, 2048
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
    return Search(space, evaluator, ((None, below),), weight, progress).run(most_families)[0]


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
    return Search(space, evaluator, wanted, weight, progress).run(most_families)


class Search:
    """The state of one search through some parts of a space (None: all of it), each with what a plan of it has to be
    below. `waiting`: nodes as a heap. Plans of up to `within` times the best value stay in sight: so far the search of
    all of the space can go on once they may need less memory (`narrow`)."""

    def __init__(
        self,
        space: Space,
        evaluator: BulkEvaluator,
        parts: Sequence[tuple[Constraints | None, float]],
        weight: Callable[[int], float],
        progress: Progress | None = None,
        within: float = 1.0,
    ) -> None:
        self.space, self.evaluator, self.progress = space, evaluator, progress
        self.ways = ways_of(space)
        self.opener = WayOpener(space, self.ways, evaluator, weight)
        self.order = WayOrder(space, self.ways, evaluator, self.opener.slots, weight)
        self.parts = [make_part(space, self.ways, limits, below, within) for limits, below in parts]
        self.whole = self.parts[0] if self.parts[0].limits is None else None
        self.waiting: list[Node] = []
        self.priced: list[Node] = []
        self.nearest: Found | None = None
        self.by_way: dict[tuple[int, str, int], Found] = {}
        self.families = self.plans = self.out_of_memory = 0
        self.numbers = count(1)
        self.opened: set[int] = set()
        self.plunged: set[tuple[int, Part]] = set()
        self.opened_together, self.summed_together = FIRST_OPENED, FIRST_SUMMED

    def run(self, most_families: int | None) -> tuple[SearchResult, ...]:
        """Go on with what takes least, a way or a node, until no part can have a better plan."""
        while True:
            ahead = self.order.ahead
            opens = not self.waiting or self.waiting[0].bound > ahead
            if opens and math.isinf(ahead):
                break
            bound = ahead if opens else self.waiting[0].bound
            if all(part.close(bound, most_families) for part in self.parts):
                break
            if opens:
                self._open_next(ahead)
            else:
                self._go_on(heapq.heappop(self.waiting))
        return tuple(map(self._result, self.parts))

    def narrow(self, space: Space, below: float) -> None:
        """Make `run` go on for the best plan of `space`, the same with less memory, of a value less than `below`, which
        is no more than `within` times the best plan's. What is known of plans still bounds them; counts begin anew."""
        self.space = space
        self.opener.spare_bytes = spare_bytes_of(space, self.evaluator)
        self.parts = [make_part(space, self.ways, None, below)]
        self.whole = self.parts[0]
        self.families = self.plans = self.out_of_memory = 0
        self.by_way, self.opened = {}, set()
        nodes, self.waiting, self.priced = [*self.waiting, *self.priced], [], []
        for node in nodes:
            node.asking = tuple(replace(asking, part=self.whole) for asking in node.asking)
            node.summed &= node.least_s is not None
            self._push(node)

    def _go_on(self, node: Node) -> None:
        if self._is_settled(node, node.bound):
            return
        if not node.summed:
            self._sum(node)
        elif node.least_s is None:
            if self._cut(node):
                self._push(node)
        elif node.by_state_s is None:
            for each in self._share(node):
                self._push(each)
        elif node.spare_bytes != self.opener.spare_bytes:
            bound_anew(node, self.opener.spare_bytes, self.opener.factor(node.open.degrees))
            self._push(node)
        else:
            self._price(node)

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

    def _is_settled(self, node: Node, bound: float) -> bool:
        """Whether no plan of at least `bound` of a node is better."""
        return all(asking.part.is_settled(bound) for asking in self._asking(node))

    def _asking(self, node: Node) -> Sequence[Asking]:
        """The parts that a node touches."""
        if self.whole:
            return node.asking
        states = node.open_states
        return [
            asking
            for asking in node.asking
            if not asking.part.closed and any(state in asking.states for state in states)
        ]

    def _plunge(self) -> None:
        """Plunge into the most promising schedule of a way for each part, once."""
        if self.whole:
            if self.waiting and len(self.plunged) < MOST_DIVES:
                self._plunge_into(self.waiting[0], self.whole)
            return
        for part in self.parts:
            if part.best is None and not part.closed:
                promising = most_promising(self.waiting, part)
                if promising is not None:
                    self._plunge_into(promising, part)

    def _plunge_into(self, promising: Node, part: Part) -> None:
        """Price a schedule of a way at once under its most promising rule of state, coarsely: a good plan soon, against
        which the others of the part are bounded."""
        if (promising.number, part) in self.plunged or math.isinf(promising.bound):
            return
        self.plunged.add((promising.number, part))
        rules = next(asking.states for asking in promising.asking if asking.part is part)
        node = replace(promising, leaves=sorted(leaf for leaf in promising.leaves if leaf.state in rules))
        if node.least_s is None:
            self._cut(node)
        if node.least_s is not None and node.leaves:
            shared = (each for each in self._share(node) if math.isfinite(each.bound))
            fitting = next((each for each in shared if not self._is_settled(each, each.bound)), None)
            if fitting is not None:
                self._price(fitting, coarsely=True)

    def _open_next(self, ahead: float) -> None:
        """The ways that come next, each schedule under every rule of state, bounded together."""
        below = max((part.wanted_below for part in self.parts if not part.closed), default=math.inf)
        until = max(ahead, self.waiting[0].bound) * AHEAD if self.waiting else math.inf
        ways = self.order.take(self.opened_together, below=below, until=until)
        opened = [each for way in ways for each in self._opened(way)]
        least = self.opener.least_s([each.open for each in opened])
        for each, least_s in zip(opened, least, strict=True):
            bounds = least_s * self.opener.factor(each.open.degrees)
            wanted = max(asked.part.wanted_below for asked in each.asking)
            # Of most schedules nothing can be better.
            for number in np.flatnonzero((bounds.min(axis=1) < wanted) | math.isinf(wanted)).tolist():
                schedule, of_states = each.open.schedules[number], bounds[number].tolist()
                asking = tuple(asked for asked in each.asking if asked.part.permits_chunks(schedule.chunks))
                leaves = open_leaves(each.open.states, of_states, asking)
                if leaves:
                    node = Node(
                        bound=leaves[0].bound,
                        number=next(self.numbers),
                        way=each.way,
                        placement=each.placement,
                        open=each.open,
                        schedule=schedule,
                        leaves=leaves,
                        asking=asking,
                    )
                    self._push(node)
        self._plunge()
        if self.whole or all(part.value < math.inf for part in self.parts):
            self.opened_together = min(2 * self.opened_together, MOST_OPENED)

    def _opened(self, way: int) -> list[OpenedWay]:
        """What is open of a way to the parts that hold it, where it can be better in any of them."""
        parts = [part for part in self.parts if part.ways[way]]

        def can_be_better(bound: float) -> bool:
            return not all(part.closed or part.is_settled(bound) for part in parts)

        if not can_be_better(float(self.order.bounds[way])):
            return []
        return self.opener.open(way, parts, lambda once_s: can_be_better(self.order.bound_of(way, once_s)))

    def _sum(self, node: Node) -> None:
        """The most promising schedules, bounded with the sums of gradients."""
        some, kept = [node], list[Node]()
        until = node.bound * AHEAD
        while self.waiting and len(some) < self.summed_together and self.waiting[0].bound <= until:
            other = heapq.heappop(self.waiting)
            if not self._is_settled(other, other.bound):
                (kept if other.summed else some).append(other)
        self.summed_together = min(2 * self.summed_together, MOST_SUMMED)
        for other in kept:
            heapq.heappush(self.waiting, other)
        left, known_s = [], []
        for each in some:
            leaves = still_open(each)
            below_s = self.opener.below_s([asking.part for asking in each.asking], each.open.degrees)
            states = tuple(leaf.state for leaf in leaves)
            left.append(replace(each.open, schedules=(each.schedule,), states=states, below_s=below_s))
            known_s.append(np.array([leaf.bound for leaf in leaves]) / self.opener.factor(each.open.degrees))
        least = self.opener.least_with_sums_s(left, known_s)
        for each, open_way, least_s in zip(some, left, least, strict=True):
            bounds = (least_s[0] * self.opener.factor(open_way.degrees)).tolist()
            each.leaves, each.summed = open_leaves(open_way.states, bounds, each.asking), True
            if each.leaves:
                each.bound = max(each.bound, each.leaves[0].bound)
                self._push(each)

    def _push(self, node: Node) -> None:
        """To those that wait, if something of it can still be better."""
        if not self._is_settled(node, node.bound):
            heapq.heappush(self.waiting, node)

    def _cut(self, node: Node) -> bool:
        """Whether the layers can be cut for a node, which is then bounded by the passes of its best cut."""
        self.opened.add(node.way)
        node.pipeline = self.opener.pipeline(node.way, node.placement)
        node.cuts = self.opener.cuts(node.pipeline, node.schedule.chunks)
        if not node.cuts:
            return False
        node.least_s = least_by_cut_s(node.pipeline, node.schedule.name, node.cuts)
        node.bound = max(node.bound, float(node.least_s.min()) * self.opener.factor(node.open.degrees))
        return True

    def _share(self, node: Node) -> list[Node]:
        """The cuts that can still be better, bounded under each rule of state that is left: a node for each, the most
        promising first; where none fits one for all, of which the nearest miss is asked for."""
        assert node.least_s is not None
        factor = self.opener.factor(node.open.degrees)
        if not self._look_coarsely(node, node.least_s * factor):
            return []
        assert node.coarse is not None
        leaves = sorted(node.leaves)
        states = tuple(leaf.state for leaf in leaves)
        least_s = least_under_s(node.coarse, states, spare_bytes=self.opener.spare_bytes)
        bounds = np.maximum(least_s.min(axis=0) * factor, [max(node.bound, leaf.bound) for leaf in leaves])
        missing = np.flatnonzero(np.isinf(bounds)).tolist()
        groups = [[number] for number in np.flatnonzero(np.isfinite(bounds)).tolist()] + ([missing] if missing else [])
        return [
            replace(
                node,
                bound=float(bounds[group[0]]),
                number=next(self.numbers),
                leaves=[],
                states=tuple(states[number] for number in group),
                by_state_s=least_s[:, group],
                spare_bytes=self.opener.spare_bytes,
            )
            for group in groups
        ]

    def _look_coarsely(self, node: Node, bounds: Floats) -> bool:
        """Whether cuts of a node are left by their bounds, which are then all that it has, with what their bounds under
        any rule of state have in common."""
        pipeline = node.pipeline
        assert pipeline is not None
        rules = recompute_rules(self.space, 1)
        cuts = tuple(
            cut for cut, bound in zip(node.cuts, bounds.tolist(), strict=True) if not self._is_settled(node, bound)
        )
        if not cuts or not rules:
            return False
        node.cuts = cuts
        family = Family(schedule=node.schedule.name, cuts=cuts, recompute=rules, states=node.open_states)
        node.coarse = coarsely(pipeline, family)
        return True

    def _price(self, node: Node, *, coarsely: bool = False) -> None:
        """All plans of one schedule of one way whose cut and state can still be better; `coarsely`: few of them."""
        asking = self._asking(node)
        value = max((each.part.value for each in asking), default=0.0)
        if math.isinf(value) and math.isinf(node.bound) and (self.whole is None or self.families >= MOST_MISSES):
            return
        priced = price_node(
            self.space,
            self.evaluator,
            node,
            value=value,
            factor=self.opener.factor(node.open.degrees),
            spare_bytes=self.opener.spare_bytes,
            coarsely=coarsely,
        )
        if not coarsely:
            self.priced.append(node)
        if priced is None:
            return
        self.families += not coarsely
        self.plans += priced.family.plans
        self.out_of_memory += priced.out_of_memory
        for each in asking:
            each.part.families += not coarsely
            self._note(each, priced)
        if math.isinf(value) and not priced.fits.any():
            miss = priced.nearest_miss()
            if self.nearest is None or miss.lacking_bytes < self.nearest.lacking_bytes:
                self.nearest = miss
        if self.progress is not None:
            self.progress(self.families, node.bound, min(part.value for part in self.parts))

    def _note(self, asking: Asking, priced: PricedFamily) -> None:
        """The best plan of a family in a part, if it is better than that has."""
        part, node = asking.part, priced.node
        plan = priced.best(None if part is self.whole else asking.permits(priced.family))
        if plan is None:
            return
        key = (node.way, node.schedule.name, node.schedule.chunks)
        if part is self.whole and (key not in self.by_way or plan.value < self.by_way[key].value):
            self.by_way[key] = plan
        if plan.value < part.value:
            part.best = plan

    def _runners_up(self) -> tuple[Found, ...]:
        best = self.parts[0].best
        others = sorted((plan for plan in self.by_way.values() if plan is not best), key=lambda other: other.value)
        return tuple(others[:RUNNERS_UP])
