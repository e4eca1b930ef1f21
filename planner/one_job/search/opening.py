"""Ways to share the devices as the search opens them: which plans of each are open, and what they take at least."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.open_ways import OpenSchedule, OpenWay, least_of_ways_s
from estimator.bulk.pipeline import Pipeline
from estimator.bulk.places import Placement, Places
from estimator.bulk.records import BatchedDegrees, StateRule
from estimator.bulk.stage_kind import fastest_once_s
from estimator.pricing.amounts import Floats
from planner.one_job.search.parts import Asking, Part
from planner.one_job.search.spaces.cuts import Cut, cuts_of, most_apart
from planner.one_job.search.spaces.space import Space, Ways, recompute_rules, schedules_of, state_rules
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedWay:
    """A way on a placement, what is open of it, and the parts that it touches."""

    way: int
    placement: Placement
    open: OpenWay
    asking: tuple[Asking, ...]


class WayOpener:
    """Opens the ways of one search; a plan's value is `weight(devices)` times its seconds."""

    def __init__(self, space: Space, ways: Ways, evaluator: BulkEvaluator, weight: Callable[[int], float]) -> None:
        self.space, self.ways, self.evaluator, self.weight = space, ways, evaluator, weight
        self.slots, self.spare_bytes = Places(space.slots), spare_bytes_of(space, evaluator)
        self._kinds = tuple(dict.fromkeys(kind for kind, _ in recompute_rules(space, 1)))
        self._everything = "split-everything" in space.constraints.allow
        self._tool = space.constraints.training_tool
        self._placed: dict[int, Placement] = {}
        self._schedules: dict[Hashable, tuple[OpenSchedule, ...]] = {}
        self._states: dict[Hashable, tuple[StateRule, ...]] = {}

    def factor(self, degrees: BatchedDegrees) -> float:
        """Return what a second of a plan of these degrees counts."""
        return self.weight(degrees.stage_devices * degrees.pp)

    def open(self, way: int, parts: Sequence[Part], is_worth: Callable[[float], bool]) -> list[OpenedWay]:
        """Return the way on each of its placements on which something of it is open to `parts`, which hold it, and
        `is_worth` looking at for the seconds that its micro-batches take through all layers at least."""
        degrees = self.ways.degrees(way)
        opened = (self._on(way, degrees, placement, parts, is_worth) for placement in self._placements(degrees))
        return [each for each in opened if each is not None]

    def least_s(self, ways: list[OpenWay]) -> list[Floats]:
        """Return what all schedules of ways take at least under each rule of state, sums apart (`least_of_ways_s`)."""
        return least_of_ways_s(ways, self._kinds, spare_bytes=self.spare_bytes, with_sums=False)

    def least_with_sums_s(self, ways: list[OpenWay], known_s: list[Floats]) -> list[Floats]:
        """Return the same with sums, where `least_s` gave `known_s`."""
        return least_of_ways_s(ways, self._kinds, spare_bytes=self.spare_bytes, known_s=known_s)

    def below_s(self, parts: Sequence[Part], degrees: BatchedDegrees) -> float:
        """Return what plans have to fall below to be better in one of the parts."""
        return max((part.wanted_below for part in parts if not part.closed), default=0.0) / self.factor(degrees)

    def pipeline(self, way: int, placement: Placement) -> Pipeline:
        """Return the pipeline of a way that was opened."""
        pipeline = self.evaluator.pipeline(self.ways.degrees(way), placement)
        if isinstance(pipeline, Infeasible):
            raise RuntimeError(f"a way that was bounded is not possible: {pipeline.reason}")
        return pipeline

    def cuts(self, pipeline: Pipeline, chunks: int) -> tuple[Cut, ...]:
        """Return the ways to cut the layers into so many chunks a stage: the tool's own where it divides them
        itself."""
        degrees, tool = pipeline.degrees, self._tool
        if tool is not None and tool.division is not None and degrees.pp > 1:
            cut = tool.division.cut(replace(self.space.shape(degrees), vpp=chunks))
            return () if cut is None else (cut,)
        weights = pipeline.layer_s()
        return cuts_of(self.space.model, pp=degrees.pp, vpp=chunks, weights=weights, everything=self._everything)

    def _placements(self, degrees: BatchedDegrees) -> list[Placement]:
        """Ranks on the devices in turn; and with every tensor-parallel group inside a node, where that differs."""
        runs = (1, degrees.tp) if self.space.node % degrees.tp else (1,)
        devices = degrees.stage_devices * degrees.pp
        return [placement for placement in map(self._placement, runs) if len(placement.slots) >= devices]

    def _placement(self, tp: int) -> Placement:
        if tp not in self._placed:
            self._placed[tp] = self.evaluator.placement(tp, self.slots)
        return self._placed[tp]

    def _on(
        self,
        way: int,
        degrees: BatchedDegrees,
        placement: Placement,
        parts: Sequence[Part],
        is_worth: Callable[[float], bool],
    ) -> OpenedWay | None:
        kinds = self.evaluator.kinds(degrees, placement)
        if isinstance(kinds, Infeasible) or not is_worth(fastest_once_s(kinds)):
            return None
        schedules, asking = self._open_schedules(degrees), self._asking(degrees, parts)
        states = asking[0].states if len(asking) == 1 else _all_states(asking)
        if not (schedules and states):
            return None
        open_way = OpenWay(
            degrees=degrees,
            kinds=kinds,
            overlap_under=self.evaluator.overlap_under,
            schedules=schedules,
            states=states,
            below_s=self.below_s(parts, degrees),
        )
        return OpenedWay(way=way, placement=placement, open=open_way, asking=asking)

    def _open_schedules(self, degrees: BatchedDegrees) -> tuple[OpenSchedule, ...]:
        batches = self.space.global_batch // (degrees.dp * degrees.samples)
        key: Hashable = (degrees.pp, batches % degrees.pp) if self._tool is None else degrees
        if key not in self._schedules:
            self._schedules[key] = tuple(
                OpenSchedule(name=name, chunks=chunks, most_apart=self._most_apart(degrees, chunks))
                for name, chunks in schedules_of(self.space, degrees)
            )
        return self._schedules[key]

    def _asking(self, degrees: BatchedDegrees, parts: Sequence[Part]) -> tuple[Asking, ...]:
        """Which of the parts, under which rules of state, hold plans of a way."""
        every = (Asking(part=part, states=self._states_of(part, degrees)) for part in parts if not part.closed)
        return tuple(asking for asking in every if asking.states)

    def _states_of(self, part: Part, degrees: BatchedDegrees) -> tuple[StateRule, ...]:
        """The rules of state that a part leaves open; without a tool they are those of so many ranks, some of them on a
        node."""
        of_part = None if part.holds_as_all else part
        ranks, inside = degrees.dp * degrees.cp, self.space.node // degrees.tp
        has_tool = self._tool or (part.limits and part.limits.tool)
        key: Hashable = (of_part, degrees) if has_tool else (of_part, ranks, inside)
        if key not in self._states:
            self._states[key] = (
                state_rules(self.space, degrees) if of_part is None else of_part.states(self.space, degrees)
            )
        return self._states[key]

    def _most_apart(self, degrees: BatchedDegrees, chunks: int) -> int | None:
        """Of how many layers two chunks of a stage differ at most, None where nobody knows."""
        if chunks > 1 and self._tool is not None and self._tool.division is not None:
            return None
        return most_apart(self.space.model, pp=degrees.pp, vpp=chunks, everything=self._everything)


def _all_states(asking: Sequence[Asking]) -> tuple[StateRule, ...]:
    return tuple(dict.fromkeys(state for each in asking for state in each.states))


def spare_bytes_of(space: Space, evaluator: BulkEvaluator) -> int:
    """Return what every device must have left of what it has in the cluster."""
    below, more = space.memory_below, space.more_memory_bytes
    if below is None:
        return -more
    memory_bytes = evaluator.cluster.group_of(space.slots[0]).device.memory_bytes
    return max(0, memory_bytes + more - below + 1) - more
