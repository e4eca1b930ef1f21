"""The best plan on several groups of equal devices: types of device, sites.

A plan is a sequence of segments (`planner.one_job.search.mixed.space`): some stages on one group each, or on several,
whose replicas then have uneven shares of the micro-batch. Open are the sequence, the degrees of every segment, the
micro-batch, how the layers are cut, and what each segment recomputes and shards; cp is 1, a stage holds one chunk, and
the optimizer stays on the devices. Every type that a segment's stages sit on is priced by itself, with its own share,
and the slowest counts.

Frames, which fix all but the cut and the rules, come in the order of what they take at least
(`planner.one_job.search.mixed.frames`, then `Pipe.least_s`); the best cut of each is exact
(`planner.one_job.search.mixed.best_cut`). A frame with a bound no less than the best value ends the search, and that
bound is the certificate.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import field

from estimator.pricing.evaluate import evaluate
from estimator.pricing.layer_times import nothing_measured
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import ScheduleName, Setup
from planner.one_job.search.mixed.best_cut import BestCut, Pipe, best_cut
from planner.one_job.search.mixed.columns import list_segments
from planner.one_job.search.mixed.frames import Frame, Lister
from planner.one_job.search.mixed.layer_bounds import Linear
from planner.one_job.search.mixed.memory_bounds import in_order
from planner.one_job.search.mixed.pipelines import PipeMaker
from planner.one_job.search.mixed.pricer import make_pricer
from planner.one_job.search.mixed.space import MixedSpace, Segment, groups_of, pricing_of
from planner.one_job.search.spaces.found import ROUNDING, Counts
from planner.one_job.search.spaces.objectives import amount
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.spaces.space import fills_evenly
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

SAME = 1e-9
"""Relative difference up to which a plan priced by tables and by itself count as the same."""
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe")
CLOSE = 1e-3
"""How near, relatively, the bound of a frame's passes is brought to what it could tell at best."""
STEPS = (1.005, 1.02, 1.08, 1.3, 2.0, 10.0, math.inf)
"""A frame's best cut is looked for within so many times its bound, in turn."""
QUICK_SEGMENTS, QUICK_FRAMES, QUICK_CUTS = 24, 80, 12
"""A good plan soon, against which the others are bounded: the fastest so many segments of each party, and of their
frames so many, of which so many are cut."""
MOST_FRAMES, MOST_CUTS = 30_000, 3_000
"""Unless the caller says otherwise: so many frames are bounded by their tables, and so many cut."""
HOPELESS = 1e4
"""Times a frame's bound at which nothing is expected to fit any more."""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class MixedResult:
    """The best plan found on several groups; None where none is better than the one that was known. No plan of the
    space has a smaller value than `lower_bound`, in the unit of the objective; where `proved` it is the best value,
    found or known. `counts.ways` are frames, `counts.families` those that were cut, `counts.plans` the stages that were
    tried on the way. `notes`: sentences about what the plans take for granted."""

    setup: Setup | None
    evaluation: Evaluation | None
    value: float
    lower_bound: float
    proved: bool
    counts: Counts
    notes: tuple[str, ...] = ()


def search_mixed(
    request: SearchRequest, incumbent: float, *, most: int | None = None, progress: Progress | None = None
) -> MixedResult:
    """The best plan on the groups of `request` if its value is below `incumbent` (infinite: any). At most `most` frames
    are cut."""
    return begin_mixed(request, most=most, progress=progress).finish(incumbent)


def begin_mixed(
    request: SearchRequest, *, most: int | None = None, progress: Progress | None = None, within: float = 1.0
) -> MixedSearch:
    """Return the search of plans on the groups of `request`, which cuts at most `most` frames and keeps plans of up to
    `within` times the best value in sight (`MixedSearch.narrow`).

    Measured layer times are of one type of device each: where there are some, nothing is searched.
    """
    space = MixedSpace(cluster=request.cluster, groups=groups_of(request.spaces), pricing=pricing_of(request.spaces))
    return MixedSearch(request, space, _why_not(space), MOST_CUTS if most is None else most, progress, within)


def _why_not(space: MixedSpace) -> tuple[str, ...] | None:
    """Why there is nothing to search, in sentences where somebody could wonder. On one group there is, if replicas that
    divide the batch leave devices idle."""
    limits = space.constraints
    if len(space.groups) == 1 and fills_evenly(space.first.space):
        return ()
    if any(group.own.pricing.lookup is not nothing_measured for group in space.groups):
        words = "plans on several types of device or sites are not searched: layer times are measured on one type"
        return (words,) if len(space.groups) > 1 else ()
    if not (limits.permits("cp", 1) and limits.permits("vpp", 1) and _schedules(space) and limits.open_recompute):
        return ()
    if limits.training_tool is not None and (division := limits.training_tool.division) is not None:
        return (f"plans on several types of device are not searched: {limits.tool} wants {division.words}",)
    return None


def _schedules(space: MixedSpace) -> tuple[ScheduleName, ...]:
    return tuple(name for name in SCHEDULES if name in space.constraints.open_schedules)


@dataclass(order=True, slots=True)
class _Item:
    """A frame with its tables."""

    bound: float
    number: int
    frame: Frame = field(compare=False)
    pipe: Pipe = field(compare=False)
    least_s: float = field(compare=False)


class MixedSearch:
    """The state of one search; `why_not`: why there is nothing to search, None where there is. `value` is what is known
    to be possible (infinite: nothing is)."""

    def __init__(
        self,
        request: SearchRequest,
        space: MixedSpace,
        why_not: tuple[str, ...] | None,
        most: int,
        progress: Progress | None,
        within: float = 1.0,
    ) -> None:
        self.request, self.most, self.progress, self.within = request, most, progress, within
        self.nothing = why_not is not None
        self._price_on(space)
        kernels = {group.own.evaluator.recipe.attention for group in space.groups}
        self.notes = why_not or ()
        if not self.nothing and len(kernels) > 1:
            self.notes = ("math attention: not all types of device have flash attention",)
        self.iteration_s = space.pricing.parameters.of("iteration_s")
        self.value, self.doubtful = math.inf, math.inf
        self.setup: Setup | None = None
        self.evaluation: Evaluation | None = None
        self.weights: dict[Segment, float] = {}
        self.done: set[tuple[Frame, ScheduleName, bool]] = set()
        self.considered = self.bounded = self.cut = self.tried = self.serial = 0
        self.tried_quickly = False
        self.lister: Lister | None = None

    def _price_on(self, space: MixedSpace) -> None:
        self.space, self.pricer = space, make_pricer(space)
        self.linear = Linear(pricer=self.pricer)
        self.maker = PipeMaker(pricer=self.pricer, schedules=_schedules(space))

    def narrow(self, request: SearchRequest, below: float) -> None:
        """Make `finish` look for the best plan of `request`, the same with less memory, of a value less than `below`,
        which is no more than `within` times what it found. Counts begin anew."""
        self.request, self.value, self.setup, self.evaluation = request, below, None, None
        if self.nothing:
            return
        self._price_on(replace(self.space, groups=groups_of(request.spaces)))
        self.doubtful, self.done = math.inf, set()
        self.considered = self.bounded = self.cut = self.tried = 0
        # What is asked for is known to be good.
        self.tried_quickly = True
        if self.lister is not None:
            columns = self.lister.columns.with_room(self.linear)
            self.lister = replace(self.lister, space=self.space, columns=columns)

    def try_quickly(self) -> None:
        """Find a good plan soon, against which others are bounded."""
        self.tried_quickly = True
        cuts = min(QUICK_CUTS, self.most)
        self._work(self._lister(quickly=True), segments=QUICK_SEGMENTS, frames=QUICK_FRAMES, cuts=cuts)

    def finish(self, incumbent: float) -> MixedResult:
        """Return the best plan, if its value is below `incumbent` (infinite: any)."""
        if self.nothing:
            counts = Counts(considered=0, removed={}, ways=0, bounded=0, families=0, plans=0, out_of_memory=0)
            return MixedResult(
                setup=None,
                evaluation=None,
                value=math.inf,
                lower_bound=math.inf,
                proved=True,
                counts=counts,
                notes=self.notes,
            )
        if incumbent <= self.value * (1 + SAME):
            self.value, self.setup, self.evaluation = incumbent, None, None
        if not self.tried_quickly:
            self.try_quickly()
        before, lister = self.bounded, self._lister(quickly=False)
        bound = min(self._work(lister, segments=None, frames=MOST_FRAMES, cuts=self.most), self.doubtful)
        return MixedResult(
            setup=self.setup,
            evaluation=self.evaluation,
            value=self.value,
            lower_bound=min(bound, self.value),
            proved=self._is_settled(bound),
            counts=Counts(
                considered=self.considered,
                removed={},
                ways=self.considered,
                bounded=self.considered - (self.bounded - before),
                families=self.cut,
                plans=self.tried,
                out_of_memory=0,
            ),
            notes=self.notes,
        )

    def _lister(self, *, quickly: bool) -> Lister:
        if self.lister is not None:
            return self.lister
        weight_of = None if self.request.objective == "time" else self._weight_of
        columns = list_segments(
            self.space,
            self.linear,
            weight_of,
            iteration_s=self.iteration_s,
            below=self.value * self.within,
            quickly=quickly,
        )
        lister = Lister(
            space=self.space, columns=columns, iteration_s=self.iteration_s, same_value=self.request.objective == "time"
        )
        if not quickly or len(self.space.groups) == 1:
            # One group's segments are the same, however quickly.
            self.lister = lister
        return lister

    def _is_settled(self, bound: float) -> bool:
        return bound >= self.value * (1 - ROUNDING)

    def _work(self, lister: Lister, *, segments: int | None, frames: int, cuts: int) -> float:
        """Through the frames of the fastest `segments` of each party in the order of their bounds, at most so many of
        them; the bound of what is left."""
        listed = lister.frames(self.value, most=segments)
        self.considered = listed.considered
        frames, cuts = self.bounded + frames, self.cut + cuts if cuts < self.most else self.most
        waiting: list[_Item] = []
        ahead = in_order(listed, lister)
        following = next(ahead, None)
        while waiting or following is not None:
            from_list = following is not None and (not waiting or following[0] < waiting[0].bound)
            bound = following[0] if following is not None and from_list else waiting[0].bound
            if self._is_settled(bound) or self.bounded >= frames or self.cut >= cuts:
                return min(bound, listed.beyond)
            if following is not None and from_list:
                self._open(listed.frame(following[1]), bound, waiting)
                following = next(ahead, None)
            else:
                self._cut(heapq.heappop(waiting))
        return listed.beyond

    def _weight_of(self, segment: Segment) -> float:
        """What a second of the segment's devices takes of the objective."""
        if segment not in self.weights:
            taken = amount(self.request.objective, self.pricer.links.cluster, self.space.slots_of(segment), 1.0)
            # The search on each type alone has refused a cluster that does not tell.
            self.weights[segment] = math.inf if isinstance(taken, Infeasible) else taken
        return self.weights[segment]

    def _factor(self, frame: Frame) -> float:
        if self.request.objective == "time":
            return 1.0
        return math.fsum(map(self._weight_of, frame.segments))

    def _open(self, frame: Frame, bound: float, waiting: list[_Item]) -> None:
        """The frame's pipes, each bounded by its tables."""
        self.bounded += 1
        factor = self._factor(frame)
        for pipe in self.maker.pipes(frame):
            if (frame, pipe.schedule, pipe.overlapped) in self.done:
                continue
            low_s = bound / factor - self.iteration_s
            high_s = min(self.value / factor - pipe.fixed_s, HOPELESS * low_s)
            if not pipe.is_within(pipe.reach(high_s), high_s):
                continue
            pipe = self.maker.with_messages(frame, pipe)
            least_s = pipe.least_s(low_s, high_s, CLOSE)
            pipe_bound = max(bound, (least_s + pipe.fixed_s) * factor)
            if not self._is_settled(pipe_bound):
                self.serial += 1
                heapq.heappush(waiting, _Item(pipe_bound, self.serial, frame, pipe, least_s))
        if self.progress is not None and self.bounded % 200 == 0:
            best = "no plan fits yet" if math.isinf(self.value) else f"best {self.value:.4g}"
            self.progress(f"mixed devices: {self.cut} families of plans cut, {best}, nothing below {bound:.4g}")

    def _cut(self, item: _Item) -> None:
        """The best cut of a frame, if it is better than the best plan."""
        self.cut += 1
        pipe, factor = item.pipe, self._factor(item.frame)
        self.done.add((item.frame, pipe.schedule, pipe.overlapped))
        limit_s = self.value / factor
        for step in STEPS:
            within_s = min(limit_s, item.least_s * step + pipe.fixed_s, HOPELESS * item.least_s)
            best, tried = best_cut(pipe, within_s)
            self.tried += tried
            if best is not None:
                self._take(item.frame, pipe, best, factor)
                return
            if within_s >= limit_s:
                return

    def _take(self, frame: Frame, pipe: Pipe, best: BestCut, factor: float) -> None:
        """A plan that is better by its tables. RuntimeError if it is not what these took it for: a bug."""
        setup = self.maker.setup(frame, pipe, best)
        evaluation = evaluate(setup, self.space.pricing)
        if isinstance(evaluation, Infeasible) or evaluation.out_of_memory is not None:
            raise RuntimeError(f"a plan that was priced is not possible: {evaluation}")
        took_s = evaluation.iteration_time_s
        if not self.pricer.waits:
            self.doubtful = min(self.doubtful, best.total_s * factor)
        elif not math.isclose(took_s, best.total_s, rel_tol=SAME):
            raise RuntimeError(f"priced at {best.total_s} s by tables and at {took_s} s by itself")
        if took_s * factor < self.value:
            self.value, self.setup, self.evaluation = took_s * factor, setup, evaluation
