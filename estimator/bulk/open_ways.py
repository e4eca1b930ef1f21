"""Ways to share the devices with what is open of them, bounded many at once before any of them is a pipeline.

What a way takes at least becomes known in the order of what that costs: by its passes; as its layers have to fit; with
the sums of gradients and the step. Whatever is already no better than what is asked for is left at that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.least_sums import SumsAsked, least_sums
from estimator.bulk.memory_bound import Divisible, Rooms, divisible, least_in_memory, standing_of_each
from estimator.bulk.records import BatchedDegrees, StateRule
from estimator.bulk.shards import RankShards
from estimator.bulk.stage_kind import StageKind, fastest_once_s
from estimator.bulk.whole_layers import HeldStages, join_layers, least_with_whole_layers_s
from estimator.pricing.amounts import Amount, Floats
from estimator.pricing.gradient_sync import passes_beside
from estimator.pricing.memory import outside_bytes
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Overlap, ScheduleName, ZeroStage
from estimator.schedules.closed_form import flying_micro_batches
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind

WAITING: tuple[ScheduleName, ...] = ("gpipe", "1f1b")
"""Schedules whose stages wait for all stages before them (`least_in_turn`)."""

FEW_PLACES = 12_000
"""Arrays of so many places take hardly longer than shorter ones."""

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSchedule:
    """A schedule with so many chunks a stage; of how many layers two chunks of a stage differ at most, None: nobody
    knows."""

    name: ScheduleName
    chunks: int
    most_apart: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenWay:
    """Degrees on devices, the kinds of their stages, and what is open: schedules and rules of state. Plans that take
    `below_s` or more are of no interest."""

    degrees: BatchedDegrees
    kinds: tuple[StageKind, ...]
    overlap_under: Callable[[ZeroStage], frozenset[Overlap]]
    schedules: tuple[OpenSchedule, ...]
    states: tuple[StateRule, ...]
    below_s: float

    @property
    def micro_batches(self) -> int:
        """Micro-batches an iteration."""
        return self.kinds[0].setup.micro_batches

    @property
    def pricing(self) -> Pricing:
        """What the prices rest on."""
        return self.kinds[0].links.pricing

    @property
    def once_s(self) -> float:
        """Seconds of a micro-batch through all layers forward and backward on the fastest ranks, nothing recomputed."""
        return fastest_once_s(self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lanes:
    """Each way under each of its schedules, those of a way one after another: the number of the one, the other, and
    figures of the pipelines as `HeldStages` has them; `mean_flying` of a stage's chunks."""

    way: Integers
    schedules: tuple[OpenSchedule, ...]
    stages: Integers
    micro_batches: Integers
    waits: Flags
    room_bytes: Floats
    mean_flying: Floats
    flying: Floats
    uneven: Floats
    most_flying: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cases:
    """Each lane under each rule of state of its way: the numbers of lane, way and rule."""

    lane: Integers
    way: Integers
    state: Integers

    @property
    def numbers(self) -> tuple[Integers, Integers, Integers]:
        """All three."""
        return self.lane, self.way, self.state


def least_in_turn(once_s: Amount, stages: int | Integers, micro_batches: int | Integers, waits: bool | Flags) -> Amount:
    """Return the least that so many stages take for micro-batches of `once_s` over all of them; of many pipelines at
    once where these are arrays. `waits`: of one chunk a stage under gpipe or 1f1b, which no other schedule is held to.

    All layers of a micro-batch take t together: a pass of all at once is no longer than the passes of its parts, as
    the norm of device and host and what communication hides are sub-additive (`PassSum.finish`). Some stage of S
    takes at least t / S, m times. A stage that waits does so for those before it, forward and backward
    (`estimator.schedules.lower_bounds`): max_i (t_0 + .. + t_(i-1) + m t_i) is least where all are equal, at
    t / (1 - (1 - 1/m)^S).
    """
    in_turn = waits & (stages > 1)
    return once_s * np.where(in_turn, 1 / (1 - (1 - 1 / micro_batches) ** stages), micro_batches / stages)


def least_of_ways_s(
    ways: Sequence[OpenWay],
    kinds: tuple[RecomputeKind, ...],
    *,
    spare_bytes: int = 0,
    with_sums: bool = True,
    known_s: Sequence[Floats] | None = None,
) -> list[Floats]:
    """Return of each way, (schedules, states): no plan takes less under these kinds of recomputation; infinite where
    none fits. `spare_bytes` of each device's memory stay free. `with_sums`: of gradients, and the step, which are most
    of the work. `known_s` is what was returned without them."""
    least: list[Floats] = [np.zeros(0)] * len(ways)
    for numbers in _bands(ways):
        some = [ways[number] for number in numbers]
        known = None if known_s is None else np.concatenate([known_s[number].ravel() for number in numbers])
        for number, bounds in zip(numbers, _least_alike_s(some, kinds, spare_bytes, with_sums, known), strict=True):
            least[number] = bounds
    return least


def _bands(ways: Sequence[OpenWay]) -> list[list[int]]:
    """Numbers of ways whose pipelines are rows of one array: those of about as many stages, or all where they are
    few."""
    longest = max((way.degrees.pp for way in ways), default=0)
    if sum(len(way.schedules) * len(way.states) for way in ways) * longest <= FEW_PLACES:
        return [list(range(len(ways)))] if ways else []
    bands: dict[int, list[int]] = {}
    for number, way in enumerate(ways):
        bands.setdefault(((way.degrees.pp - 1).bit_length() + 1) // 2, []).append(number)
    return list(bands.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Band:
    """Ways of about as many stages, the layers that their ranks hold (None: nothing can be said), lanes and cases, and
    bytes of state that one layer of each kind holds at least, (cases, kinds)."""

    ways: Sequence[OpenWay]
    held: Sequence[Divisible | None]
    lanes: _Lanes
    cases: _Cases
    standing_bytes: Floats

    def whole_layers_s(self, chosen: Integers, sums_s: Floats | None) -> Floats:
        """Return what the chosen cases take at least as stages hold whole layers, with so many seconds once an
        iteration for one of each kind (None: none)."""
        lane, standing = self.cases.lane[chosen], self.standing_bytes[chosen]
        sums_s = np.zeros_like(standing) if sums_s is None else sums_s
        ranks, places = self._ranks_of(chosen)
        least = np.zeros(len(chosen))
        for number, (kind, _) in enumerate(ranks[0].whole):
            stages = HeldStages(
                stages=self.lanes.stages[lane],
                micro_batches=self.lanes.micro_batches[lane],
                waits=self.lanes.waits[lane],
                room_bytes=self.lanes.room_bytes[lane],
                flying=self.lanes.flying[lane],
                uneven=self.lanes.uneven[lane],
                most_flying=self.lanes.most_flying[lane],
                standing_bytes=_of_kind(standing, kind),
                sums_s=_of_kind(sums_s, kind),
            )
            layers = join_layers([rank.whole[number][1] for rank in ranks], places)
            least = np.maximum(least, least_with_whole_layers_s(layers, stages))
        return least

    def in_memory_s(self, chosen: Integers, once_s: Floats) -> tuple[Floats, Floats]:
        """Return of the chosen cases passes and recomputation of all stages, on average, and what they take at least,
        as their layers have to fit (`estimator.bulk.memory_bound`); `once_s` of each way."""
        lane = self.cases.lane[chosen]
        ranks, places = self._ranks_of(chosen)
        layer_s = np.array([rank.layer_s for rank in ranks])[places]
        stages, m = self.lanes.stages[lane], self.lanes.micro_batches[lane]
        rooms = Rooms(
            stages=stages,
            room_bytes=self.lanes.room_bytes[lane],
            flying=self.lanes.mean_flying[lane],
            once_s=np.array([rank.once_s for rank in ranks])[places],
            standing_bytes=(self.standing_bytes[chosen] / layer_s).min(axis=1),
            kept_bytes=np.array([rank.kept_bytes for rank in ranks])[places],
            spared_bytes=np.array([rank.spared_bytes for rank in ranks])[places],
            again_s=np.array([rank.again_s for rank in ranks])[places],
        )
        again_s, slowest_s = least_in_memory(rooms)
        all_s = once_s[self.cases.way[chosen]] + again_s
        in_turn_s = np.asarray(least_in_turn(all_s, stages, m, self.lanes.waits[lane]))
        work_s = m * all_s / stages
        return work_s, np.maximum(np.maximum(work_s, in_turn_s), m * slowest_s)

    def sums_s(self, chosen: Integers) -> tuple[Floats, Floats]:
        """Return what the chosen cases add to their passes at least once an iteration: all stages together, and for one
        layer of each kind. What their ways' kinds of stages have in common is the least of them."""
        rows: dict[tuple[int, int, float], int] = {}
        asked: list[SumsAsked] = []
        first_of_row: list[int] = []
        row_of_case: list[int] = []
        for lane, number, rule in zip(*(part[chosen].tolist() for part in self.cases.numbers), strict=True):
            way, schedule = self.ways[number], self.lanes.schedules[lane]
            beside = passes_beside(schedule.name, way.degrees.pp, schedule.chunks, way.micro_batches)
            row = rows.setdefault((number, rule, beside), len(rows))
            row_of_case.append(row)
            if row == len(first_of_row):
                first_of_row.append(len(asked))
                asked += self._sums_asked(number, rule, beside)
        whole_s, each_s = least_sums(asked)
        return (
            np.minimum.reduceat(whole_s, first_of_row)[row_of_case],
            np.minimum.reduceat(each_s, first_of_row, axis=0)[row_of_case],
        )

    def _sums_asked(self, number: int, rule: int, beside: float) -> list[SumsAsked]:
        way, rank = self.ways[number], self.held[number]
        assert rank is not None
        state = way.states[rule]
        overlapped = "dp" in way.overlap_under(state.zero)
        return [
            SumsAsked(rank=rank, kind=kind, state=state, overlapped=overlapped, beside=beside) for kind in way.kinds
        ]

    def _ranks_of(self, chosen: Integers) -> tuple[list[Divisible], Integers]:
        """The layers of the chosen cases' ways, and of each case which of them."""
        numbers, places = np.unique(self.cases.way[chosen], return_inverse=True)
        return [rank for number in numbers.tolist() if (rank := self.held[number]) is not None], places


def _of_kind(of_each: Floats, kind: int | None) -> Floats:
    """Of the kind of layers at that place, or the least of any; kinds are the last axis."""
    return np.asarray(of_each.min(axis=-1) if kind is None else of_each[..., kind])


def _least_alike_s(
    ways: list[OpenWay],
    kinds: tuple[RecomputeKind, ...],
    spare_bytes: int,
    with_sums: bool,
    known_s: Floats | None,
) -> list[Floats]:
    """`least_of_ways_s` of ways of about as many stages."""
    pricing = ways[0].pricing
    held = [pricing.remember(divisible, _ranks(way), kinds) for way in ways]
    lanes, cases = _lanes(ways, spare_bytes), _cases(ways)
    once_s, below_s = np.array([way.once_s for way in ways]), np.array([way.below_s for way in ways])
    least = np.asarray(least_in_turn(once_s[lanes.way], lanes.stages, lanes.micro_batches, lanes.waits))[cases.lane]
    known = np.array([each is not None for each in held])
    iteration_s = pricing.parameters.of("iteration_s")
    if known_s is not None:
        least = np.maximum(least, known_s - iteration_s)

    def still() -> Integers:
        """The cases that can still be better, of ways of which more can be said."""
        return np.flatnonzero(known[cases.way] & (least + iteration_s < below_s[cases.way]))

    def raise_to(bounds: Floats, chosen: Integers) -> None:
        least[chosen] = np.maximum(least[chosen], bounds)

    chosen = still()
    if len(chosen):
        band = _Band(ways=ways, held=held, lanes=lanes, cases=cases, standing_bytes=_standing_bytes(ways, held))
        if known_s is None:
            raise_to(band.whole_layers_s(chosen, None), chosen)
            chosen = still()
    if len(chosen):
        work_s, in_memory_s = band.in_memory_s(chosen, once_s)
        raise_to(in_memory_s, chosen)
        rows = np.flatnonzero(least[chosen] + iteration_s < below_s[cases.way[chosen]])
        chosen, work_s = chosen[rows], work_s[rows]
    if with_sums and len(chosen) and _sums_are_known(ways[0]):
        whole_s, each_s = band.sums_s(chosen)
        raise_to(work_s + whole_s / lanes.stages[cases.lane[chosen]], chosen)
        raise_to(band.whole_layers_s(chosen, each_s), chosen)
    least += iteration_s
    ends = np.cumsum([len(way.schedules) * len(way.states) for way in ways])[:-1]
    return [
        part.reshape(len(way.schedules), len(way.states)) for way, part in zip(ways, np.split(least, ends), strict=True)
    ]


def _sums_are_known(way: OpenWay) -> bool:
    """Whether what sums take at least can be said: not where they are measured, nor where they go in pieces."""
    software = way.kinds[0].setup.recipe.software
    return not (way.pricing.link_tables or software.bucket_bytes or software.copies_pieces)


def _ranks(way: OpenWay) -> tuple[RankShards, ...]:
    return tuple(dict.fromkeys(kind.shards for kind in way.kinds))


def _lanes(ways: Sequence[OpenWay], spare_bytes: int) -> _Lanes:
    """The lanes of all ways."""
    pairs = [(number, schedule) for number, way in enumerate(ways) for schedule in way.schedules]
    most = max(way.degrees.pp for way in ways)
    by_stage = np.zeros((5, len(pairs), most))
    by_stage[1:3] = 1.0
    rooms = [way.pricing.remember(_room_bytes, way.kinds, way.degrees.pp) - spare_bytes for way in ways]
    for row, (number, schedule) in enumerate(pairs):
        way = ways[number]
        stages = way.degrees.pp
        by_stage[0, row, :stages] = rooms[number]
        by_stage[1:, row, :stages] = _flying_of(schedule, stages, way.micro_batches)
    way_of = np.array([number for number, _ in pairs], dtype=np.int64)
    return _Lanes(
        way=way_of,
        schedules=tuple(schedule for _, schedule in pairs),
        stages=np.array([way.degrees.pp for way in ways], dtype=np.int64)[way_of],
        micro_batches=np.array([way.micro_batches for way in ways], dtype=np.int64)[way_of],
        waits=np.array([schedule.name in WAITING for _, schedule in pairs]),
        room_bytes=by_stage[0],
        mean_flying=by_stage[1],
        flying=by_stage[2],
        uneven=by_stage[3],
        most_flying=by_stage[4],
    )


@lru_cache(maxsize=8192)
def _flying_of(schedule: OpenSchedule, stages: int, micro_batches: int) -> Floats:
    """By stage, micro-batches that its chunks keep: on average, for each layer at least, of a layer more than that, at
    most."""
    flying = flying_micro_batches(schedule.name, stages, schedule.chunks, micro_batches)
    mean = flying.mean(axis=1)
    uneven = np.maximum(flying - mean[:, None], 0.0).sum(axis=1) * (schedule.most_apart or 0)
    return np.stack([mean, flying.min(axis=1) if schedule.most_apart is None else mean, uneven, flying.max(axis=1)])


def _cases(ways: Sequence[OpenWay]) -> _Cases:
    """Every lane under every rule of state of its way, in turn."""
    rules = np.array([len(way.states) for way in ways for _ in way.schedules], dtype=np.int64)
    way_of = np.array([number for number, way in enumerate(ways) for _ in way.schedules], dtype=np.int64)
    lane = np.repeat(np.arange(len(rules)), rules)
    return _Cases(lane=lane, way=way_of[lane], state=np.arange(len(lane)) - np.repeat(np.cumsum(rules) - rules, rules))


def _standing_bytes(ways: Sequence[OpenWay], held: Sequence[Divisible | None]) -> Floats:
    """Of all cases, bytes of state that one layer of each kind holds at least, (cases, kinds); zero where nothing can
    be said."""
    kinds = max(len(rank.counts) for rank in held if rank is not None)
    of_ways = []
    for way, rank in zip(ways, held, strict=True):
        of_states = np.zeros((len(way.states), kinds))
        if rank is not None:
            of_states = _standing_of_states(way, rank)
        of_ways.append(np.tile(of_states, (len(way.schedules), 1)))
    return np.concatenate(of_ways)


def _standing_of_states(way: OpenWay, rank: Divisible) -> Floats:
    kind, keep = way.kinds[0], way.pricing.keep

    def of_state(state: StateRule) -> Floats:
        # What a rank holds does not depend on its micro-batch.
        return keep((standing_of_each, kind.seat, state), lambda: standing_of_each(rank, kind, state))

    return keep((_standing_of_states, kind.seat, way.states), lambda: np.array([*map(of_state, way.states)]))


def _room_bytes(kinds: tuple[StageKind, ...], stages: int) -> float:
    """What a stage has for layers: all its device holds but what is there whatever they are."""
    features = kinds[0].shards.features
    return float(
        max(
            kind.memory_bytes
            - outside_bytes(kind.setup, kind.stage, features, stages=stages)
            - features.workspace_bytes
            for kind in kinds
        )
    )
