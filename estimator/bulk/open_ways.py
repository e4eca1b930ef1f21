"""Ways to share the devices with what is open of them, bounded many at once before any of them is a pipeline.

What a way takes at least becomes known in the order of what that costs: by its passes; as its layers have to fit; with
the sums of gradients and the step. Whatever is already no better than what is asked for is left at that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.least_sums import least_sums
from estimator.bulk.memory_bound import Divisible, Rooms, divisible, least_in_memory, standing_of_each
from estimator.bulk.records import BatchedDegrees, StateRule
from estimator.bulk.shards import RankShards
from estimator.bulk.stage_kind import StageKind
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
        return min(sum(kind.shards.whole_s("none")) for kind in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lanes:
    """Each way under each of its schedules, those of a way one after another: the numbers of both, and figures of the
    pipelines as `HeldStages` has them; `mean_flying` of a stage's chunks."""

    way: Integers
    schedule: Integers
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
    ways: Sequence[OpenWay], kinds: tuple[RecomputeKind, ...], *, spare_bytes: int = 0, with_sums: bool = True
) -> list[Floats]:
    """Return of each way, (schedules, states): no plan takes less under these kinds of recomputation; infinite where
    none fits. `spare_bytes` of each device's memory stay free. `with_sums`: of gradients, and the step, which are most
    of the work."""
    least: list[Floats] = [np.zeros(0)] * len(ways)
    bands: dict[int, list[int]] = {}
    # Pipelines of about as many stages are rows of one array.
    for number, way in enumerate(ways):
        bands.setdefault(((way.degrees.pp - 1).bit_length() + 1) // 2, []).append(number)
    for numbers in bands.values():
        for number, bounds in zip(
            numbers, _least_alike_s([ways[n] for n in numbers], kinds, spare_bytes, with_sums), strict=True
        ):
            least[number] = bounds
    return least


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Band:
    """Ways of about as many stages, the layers that their ranks hold (None: nothing can be said), lanes and cases."""

    ways: Sequence[OpenWay]
    held: Sequence[Divisible | None]
    lanes: _Lanes
    cases: _Cases

    def whole_layers_s(self, chosen: Integers, sums_s: Floats | None) -> Floats:
        """Return what the chosen cases take at least as stages hold whole layers, with so many seconds once an
        iteration for one of each kind (None: none)."""
        lane, standing = self.cases.lane[chosen], self._standing_bytes(chosen)
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
            standing_bytes=(self._standing_bytes(chosen) / layer_s).min(axis=1),
            kept_bytes=np.array([rank.kept_bytes for rank in ranks])[places],
            spared_bytes=np.array([rank.spared_bytes for rank in ranks])[places],
            again_s=np.array([rank.again_s for rank in ranks])[places],
        )
        again_s, slowest_s = least_in_memory(rooms)
        all_s = once_s[self.cases.way[chosen]] + again_s
        in_turn_s = np.asarray(least_in_turn(all_s, stages, m, self.lanes.waits[lane]))
        work_s = m * all_s / stages
        return work_s, np.maximum(np.maximum(work_s, in_turn_s), m * slowest_s)

    def sums_s(self, case: int) -> tuple[float, Floats]:
        """Return what a case adds to its passes at least once an iteration: all stages together, and for one layer of
        each kind."""
        way, rank = self.ways[self.cases.way[case]], self.held[self.cases.way[case]]
        assert rank is not None
        software, remember = way.kinds[0].setup.recipe.software, way.pricing.remember
        if way.pricing.link_tables or software.bucket_bytes or software.copies_pieces:
            return 0.0, np.zeros(len(rank.counts))
        state = way.states[self.cases.state[case]]
        schedule = way.schedules[self.lanes.schedule[self.cases.lane[case]]]
        overlapped = "dp" in way.overlap_under(state.zero)
        beside = passes_beside(schedule.name, way.degrees.pp, schedule.chunks, way.micro_batches)
        sums = [remember(least_sums, rank, kind, state, overlapped, beside) for kind in way.kinds]
        return min(each.whole_s for each in sums), np.minimum.reduce([each.each_s for each in sums])

    def _ranks_of(self, chosen: Integers) -> tuple[list[Divisible], Integers]:
        """The layers of the chosen cases' ways, and of each case which of them."""
        numbers, places = np.unique(self.cases.way[chosen], return_inverse=True)
        return [rank for number in numbers.tolist() if (rank := self.held[number]) is not None], places

    def _standing_bytes(self, chosen: Integers) -> Floats:
        """Bytes of state that one layer of each kind holds at least, (chosen, kinds)."""
        most = int(self.cases.state.max()) + 1
        pairs, places = np.unique(self.cases.way[chosen] * most + self.cases.state[chosen], return_inverse=True)
        held = [self._standing_of(pair // most, pair % most) for pair in pairs.tolist()]
        return np.array(held)[places]

    def _standing_of(self, number: int, rule: int) -> Floats:
        way, rank = self.ways[number], self.held[number]
        assert rank is not None
        kind, state = way.kinds[0], way.states[rule]
        # What a rank holds does not depend on its micro-batch.
        return way.pricing.keep((standing_of_each, kind.seat, state), lambda: standing_of_each(rank, kind, state))


def _of_kind(of_each: Floats, kind: int | None) -> Floats:
    """Of the kind of layers at that place, or the least of any; kinds are the last axis."""
    return np.asarray(of_each.min(axis=-1) if kind is None else of_each[..., kind])


def _least_alike_s(
    ways: list[OpenWay], kinds: tuple[RecomputeKind, ...], spare_bytes: int, with_sums: bool
) -> list[Floats]:
    """`least_of_ways_s` of ways of about as many stages."""
    pricing = ways[0].pricing
    held = [pricing.remember(divisible, _ranks(way), kinds) for way in ways]
    lanes, cases = _lanes(ways, spare_bytes), _cases(ways)
    once_s, below_s = np.array([way.once_s for way in ways]), np.array([way.below_s for way in ways])
    least = np.asarray(least_in_turn(once_s[lanes.way], lanes.stages, lanes.micro_batches, lanes.waits))[cases.lane]
    known = np.array([each is not None for each in held])
    iteration_s = pricing.parameters.of("iteration_s")

    def still() -> Integers:
        """The cases that can still be better, of ways of which more can be said."""
        return np.flatnonzero(known[cases.way] & (least + iteration_s < below_s[cases.way]))

    def raise_to(bounds: Floats, chosen: Integers) -> None:
        least[chosen] = np.maximum(least[chosen], bounds)

    chosen = still()
    if len(chosen):
        band = _Band(ways=ways, held=held, lanes=lanes, cases=cases)
        raise_to(band.whole_layers_s(chosen, None), chosen)
        chosen = still()
    if len(chosen):
        work_s, in_memory_s = band.in_memory_s(chosen, once_s)
        raise_to(in_memory_s, chosen)
        rows = np.flatnonzero(least[chosen] + iteration_s < below_s[cases.way[chosen]])
        chosen, work_s = chosen[rows], work_s[rows]
    if with_sums and len(chosen):
        sums = [band.sums_s(case) for case in chosen.tolist()]
        raise_to(work_s + np.array([whole_s for whole_s, _ in sums]) / lanes.stages[cases.lane[chosen]], chosen)
        raise_to(band.whole_layers_s(chosen, np.array([each_s for _, each_s in sums])), chosen)
    least += iteration_s
    ends = np.cumsum([len(way.schedules) * len(way.states) for way in ways])[:-1]
    return [
        part.reshape(len(way.schedules), len(way.states)) for way, part in zip(ways, np.split(least, ends), strict=True)
    ]


def _ranks(way: OpenWay) -> tuple[RankShards, ...]:
    return tuple(dict.fromkeys(kind.shards for kind in way.kinds))


def _lanes(ways: Sequence[OpenWay], spare_bytes: int) -> _Lanes:
    """The lanes of all ways."""
    pairs = [(number, place) for number, way in enumerate(ways) for place in range(len(way.schedules))]
    most = max(way.degrees.pp for way in ways)
    by_stage = {name: np.zeros((len(pairs), most)) for name in ("room", "mean", "least", "uneven", "most")}
    by_stage["mean"][:], by_stage["least"][:] = 1.0, 1.0
    rooms = [_room_bytes(way, spare_bytes) for way in ways]
    for row, (number, place) in enumerate(pairs):
        way, schedule = ways[number], ways[number].schedules[place]
        stages = way.degrees.pp
        flying = flying_micro_batches(schedule.name, stages, schedule.chunks, way.micro_batches)
        mean = flying.mean(axis=1)
        by_stage["room"][row, :stages] = rooms[number]
        by_stage["mean"][row, :stages] = mean
        by_stage["least"][row, :stages] = flying.min(axis=1) if schedule.most_apart is None else mean
        by_stage["uneven"][row, :stages] = np.maximum(flying - mean[:, None], 0.0).sum(axis=1) * (
            schedule.most_apart or 0
        )
        by_stage["most"][row, :stages] = flying.max(axis=1)
    way_of = np.array([number for number, _ in pairs], dtype=np.int64)
    return _Lanes(
        way=way_of,
        schedule=np.array([place for _, place in pairs], dtype=np.int64),
        stages=np.array([way.degrees.pp for way in ways], dtype=np.int64)[way_of],
        micro_batches=np.array([way.micro_batches for way in ways], dtype=np.int64)[way_of],
        waits=np.array([ways[number].schedules[place].name in WAITING for number, place in pairs]),
        room_bytes=by_stage["room"],
        mean_flying=by_stage["mean"],
        flying=by_stage["least"],
        uneven=by_stage["uneven"],
        most_flying=by_stage["most"],
    )


def _cases(ways: Sequence[OpenWay]) -> _Cases:
    """Every lane under every rule of state of its way, in turn."""
    rules = np.array([len(way.states) for way in ways for _ in way.schedules], dtype=np.int64)
    way_of = np.array([number for number, way in enumerate(ways) for _ in way.schedules], dtype=np.int64)
    lane = np.repeat(np.arange(len(rules)), rules)
    return _Cases(lane=lane, way=way_of[lane], state=np.arange(len(lane)) - np.repeat(np.cumsum(rules) - rules, rules))


def _room_bytes(way: OpenWay, spare_bytes: int) -> float:
    """What a stage has for layers: all its device holds but what is there whatever they are."""
    features = way.kinds[0].shards.features
    return float(
        max(
            kind.memory_bytes
            - outside_bytes(kind.setup, kind.stage, features, stages=way.degrees.pp)
            - features.workspace_bytes
            - spare_bytes
            for kind in way.kinds
        )
    )
