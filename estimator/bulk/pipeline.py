"""Pipelines of equal stages: every way to cut the layers, to recompute and to shard, priced at once.

The totals are those of `estimator.pricing.evaluate`, to rounding; its breakdown, interval and guesses are left to it.
Stages that hold the same kinds of layers on ranks that sit alike are one class, priced once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Composition, ModelLayers, Variant
from estimator.bulk.memory_bound import Divisible, Rooms, divisible, least_in_memory, standing_bytes_a_second
from estimator.bulk.passes import Floats
from estimator.bulk.places import Placement
from estimator.bulk.records import Degrees, Family, Priced, Rule, StateRule
from estimator.bulk.shards import RankShards
from estimator.pricing.build import Ranges
from estimator.pricing.evaluate import tied_bytes
from estimator.pricing.gradient_sync import ShardedLayer, TimeOnAxis
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.memory import FIRM_SHARE, Amount, Holdings, outside_bytes, standing_bytes
from estimator.pricing.recipe import Overlap, ScheduleName, Setup, StageSetup, ZeroStage
from estimator.pricing.stage_cost import OnceCost, price_once
from estimator.schedules import in_flight
from estimator.schedules.bulk import time_schedules
from profiles.training_parameters import TrainingParameters
from profiles.vocabulary import RecomputeKind

Integers = NDArray[np.int64]
RECOMPUTE_KINDS: tuple[RecomputeKind, ...] = get_args(RecomputeKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """Stages that sit alike: one of them, its ranks' layers, its links, and the memory of its devices."""

    stage: StageSetup
    shards: RankShards
    on_axis: TimeOnAxis
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Classes:
    """The different stages of a family's cuts: where each sits (a `StageKind`) and one example of its ranges; which one
    every stage of every cut is, (stages, cuts)."""

    where: list[int]
    ranges: list[Ranges]
    of_stage: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Chunks of every class under every rule of recomputation, (classes, rules, chunks)."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    saved_bytes: Floats
    extra_bytes: Floats
    freed_bytes: Floats
    grouped: dict[tuple[int, RecomputeKind], list[tuple[Composition, int]]]
    index: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Bytes of every plan's every stage (stages, plans) that no rule of state changes, and what each class holds;
    `outside` the allocator, and what the `device` and the weakest device of the stage (`capacity`) have."""

    holdings: Holdings
    rules: int
    activation: Floats
    temporary: Floats
    outside: Floats
    device: Floats
    capacity: Floats


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Degrees on devices, with everything else still open. The only state is caches."""

    degrees: Degrees
    placement: Placement
    setup: Setup
    kinds: tuple[StageKind, ...]
    kind_of_stage: tuple[int, ...]
    links: LinkTimes
    layers: ModelLayers
    parameters: TrainingParameters
    overlap_under: Callable[[ZeroStage], frozenset[Overlap]]
    _axes: dict[object, TimeOnAxis] = field(default_factory=dict, repr=False)
    _costs: dict[object, OnceCost] = field(default_factory=dict, repr=False)
    _sharded: dict[object, dict[tuple[Variant, RecomputeKind], ShardedLayer]] = field(default_factory=dict, repr=False)
    _messages: dict[object, float] = field(default_factory=dict, repr=False)
    divided: dict[object, Divisible | None] = field(default_factory=dict, repr=False)

    @property
    def micro_batches(self) -> int:
        """Micro-batches an iteration."""
        return self.setup.micro_batches

    def least_s(self, *, waits: bool) -> float:
        """No plan takes less; `waits`: of one chunk a stage under gpipe or 1f1b, which no other schedule is held to.

        All layers of a micro-batch take t together: a pass of all at once is no longer than the passes of its parts, as
        the norm of device and host and what communication hides are sub-additive (`PassSum.finish`). Some stage of S
        takes at least t / S, m times. A stage that waits does so for those before it, forward and backward
        (`estimator.schedules.bulk.lower_bounds`): max_i (t_0 + .. + t_(i-1) + m t_i) is least where all are equal, at
        t / (1 - (1 - 1/m)^S).
        """
        once_s = min(sum(kind.shards.whole_s("none")) for kind in self.kinds)
        return least_in_turn(once_s, len(self.setup.stages), self.micro_batches, waits=waits) + self.parameters.of(
            "iteration_s"
        )

    def least_in_memory_s(
        self,
        schedules: Sequence[tuple[ScheduleName, int]],
        states: Sequence[StateRule],
        kinds: tuple[RecomputeKind, ...],
        *,
        below_s: float = math.inf,
        spare_bytes: int = 0,
    ) -> Floats:
        """Of each schedule with so many chunks a stage: no plan takes less under any of these rules of state and kinds
        of recomputation, as its layers have to fit (`estimator.bulk.memory_bound`); infinite where they cannot. What is
        not below `below_s` without the sums of gradients is left at that.

        The stage that does most of passes, sums and step together does at least the average of all stages. A sum of a
        part takes at least its share of the whole one's time: what a message takes grows by less than its size. Beside
        a micro-batch's passes, recomputation included, no more of it is hidden than those last; what is exposed before
        an earlier stage has ended counts in that stage's passes. ZeRO 3's gathers are at best hidden at their cost.
        """
        if not schedules:
            return np.zeros(0)
        stages, m = len(self.setup.stages), self.micro_batches
        ranks = [self._divisible(kind.shards, kinds) for kind in self.kinds]
        known = [rank for rank in ranks if rank is not None]
        if len(known) < len(ranks):
            return np.zeros(len(schedules))
        where = list(self.kind_of_stage)
        features = self.kinds[0].shards.features
        room = np.array(
            [
                kind.memory_bytes - outside_bytes(self.setup, kind.stage, features) - features.workspace_bytes
                for kind in self.kinds
            ],
            float,
        )[where]
        standing = np.array(
            [
                [
                    standing_bytes_a_second(
                        rank, self.setup.recipe, self._stage_under(0, ((0, 1),), state), self.kinds[0].shards
                    )
                    for rank in known
                ]
                for state in states
            ]
        ).min(axis=1)
        flying = np.array([_flying(name, stages, chunks, m).mean(axis=1) for name, chunks in schedules])
        again_s, slowest_s = least_in_memory(
            Rooms(
                room_bytes=room - spare_bytes,
                flying=flying[:, None, :],
                standing_bytes=standing[None, :, None],
                kept_bytes=min(rank.kept_bytes for rank in known),
                spared_bytes=max(rank.spared_bytes for rank in known),
                again_s=min(rank.again_s for rank in known),
            ),
            min(rank.once_s for rank in known),
            np.zeros((len(schedules), len(states))),
        )
        once_s = min(sum(kind.shards.whole_s("none")) for kind in self.kinds)
        iteration_s = self.parameters.of("iteration_s")
        together_s = m * (once_s + again_s) / stages
        found = np.maximum(together_s, m * slowest_s)
        waits = np.array([name in ("gpipe", "1f1b") for name, _ in schedules])
        in_turn_s = (once_s + again_s) / (1 - (1 - 1 / m) ** stages)
        found = np.where(waits[:, None], np.maximum(found, in_turn_s), found) + iteration_s
        if not (self.links.tables or self.setup.recipe.software.bucket_bytes):
            for column, state in enumerate(states):
                if (found[:, column] < below_s).any():
                    on_device = replace(state, offload=frozenset())
                    sums_s = min(self._least_shared_s(number, on_device) for number in range(len(ranks)))
                    least_s = together_s[:, column] + sums_s / stages + iteration_s
                    found[:, column] = np.maximum(found[:, column], least_s)
        least: Floats = found.min(axis=1)
        return least

    def _divisible(self, shards: RankShards, kinds: tuple[RecomputeKind, ...]) -> Divisible | None:
        key = (id(shards), kinds)
        if key not in self.divided:
            self.divided[key] = divisible(shards, kinds)
        return self.divided[key]

    def _least_shared_s(self, where: int, state: StateRule) -> float:
        """The least that all stages together add to their passes under a rule of state."""
        whole = ((0, len(self.setup.model.layers)),)
        shards = self.kinds[where].shards
        if state.zero == 3:
            if self.degrees.dp * self.degrees.cp == 1:
                return 0.0
            return self.micro_batches * shards.least_sharding_s(
                self.layers.composition(*whole[0], 0),
                replace(self.kinds[where].stage, zero=state.zero, shard=state.shard),
                self._on_axis(where, state),
                self._sharded.setdefault((where, state.shard), {}),
                overlapped="dp" in self.overlap_under(state.zero),
            )
        cost = self._cost(where, whole, state)
        passes = [shards.whole_s(kind) for kind in RECOMPUTE_KINDS]
        reduce_s, gather_s = self._exposed(
            state,
            np.array([cost.reduce_s]),
            np.array([cost.gather_s]),
            np.array([max(ahead for ahead, _ in passes)]),
            np.array([max(back for _, back in passes)]),
        )
        return float(reduce_s[0] + gather_s[0])

    def least_by_cut_s(self, schedule: ScheduleName, cuts: Sequence[tuple[Ranges, ...]]) -> Floats:
        """Of each cut: no rule of recomputation or state takes less. The passes alone, with nothing recomputed."""
        classes = self._classes(cuts)
        table = self._table(classes, (("none", None),))
        family = Family(schedule=schedule, cuts=tuple(cuts), recompute=(("none", None),), states=(StateRule(),))
        return self._pipeline_s(family, classes, table, table.backward_s) + self.parameters.of("iteration_s")

    def least_by_state_s(self, family: Family, *, spare_bytes: int = 0) -> Floats:
        """Of each cut under each rule of state, (cuts, states): no plan takes less under a rule of recomputation of the
        family's kinds, in however many layers; infinite where none fits.

        To the passes comes what the first stage waits for after its last one: it has no stage before it to wait for.
        Recomputing more hides more of that, so as much is taken as hidden as the longest backward pass could; what ZeRO
        3 adds to a pass falls by no more than recomputation adds. A layer recomputed saves at most what it keeps, for
        all micro-batches in flight: what memory lacks tells how many have to be, and fewer take no longer.
        """
        classes = self._classes(family.cuts)
        kinds = dict.fromkeys(kind for kind, _ in family.recompute)
        most = max(sum(self.layers.recomputable(*part) for part in ranges) for ranges in classes.ranges)
        steps = sorted({1, *(max(1, most * part // 4) for part in (1, 2, 3)), most}) if most else [0]
        rules: list[Rule] = [("none", None)]
        rules += [("selective", None)] if "selective" in kinds else []
        rules += [("full", count) for count in steps]
        coarse = replace(family, recompute=tuple(rules))
        table = self._table(classes, rules)
        shape = (len(family.cuts), len(rules))
        plain_s = self._pipeline_s(coarse, classes, table, table.backward_s)
        room = self._room(classes, *self._moments(coarse, classes, table), len(rules))
        first = classes.of_stage[0]
        forward_s = table.forward_s[first].sum(axis=2).min(axis=1)
        backward_s = table.backward_s[first].sum(axis=2).max(axis=1)
        flying = _flying(family.schedule, len(self.setup.stages), table.index.shape[2], self.micro_batches).max(axis=1)
        saved = np.array([self.kinds[kind].shards.most_saved_by_recomputing() for kind in self.kind_of_stage])
        found = np.empty((len(family.cuts), len(family.states)))
        for number, state in enumerate(family.states):
            lacking, peaks = self._memory(state, classes, room)
            fits = (lacking + spare_bytes <= 0).reshape(shape)
            without = peaks.reshape(len(self.setup.stages), *shape)[:, :, 0] + spare_bytes
            least = np.ceil(np.maximum(1.0, without / (flying * np.maximum(saved, 1.0))[:, None]).max(axis=0))
            pipeline_s = plain_s
            if state.zero == 3 and self.degrees.dp * self.degrees.cp > 1:
                pipeline_s = self._pipeline_s(coarse, classes, table, table.backward_s + self._sharding_s(state, table))
            by_rule = pipeline_s.reshape(shape)
            found[:, number] = np.inf
            for place, (kind, count) in enumerate(rules):
                if kind not in kinds:
                    continue
                if kind != "full":
                    possible = fits[:, place]
                else:
                    # Of the counts that are no more than have to be, the most; the last one stands for more than it.
                    following = steps[steps.index(count or 0) + 1 :]
                    possible = (least >= (count or 0)) & (least < (following[0] if following else most + 1))
                found[:, number] = np.where(possible, np.minimum(found[:, number], by_rule[:, place]), found[:, number])
            found[:, number] += self._least_after_s(state, classes, forward_s, backward_s)
        return found

    def _least_after_s(self, state: StateRule, classes: _Classes, forward_s: Floats, backward_s: Floats) -> Floats:
        """Of each cut: what the first stage at least waits for after its last backward pass, the step included."""
        first = classes.of_stage[0].tolist()
        # On the host the step may take no time at all: what is sent is the same.
        on_device = replace(state, offload=frozenset())
        costs = {place: self._cost(classes.where[place], classes.ranges[place], on_device) for place in set(first)}
        reduce_s, gather_s, step_s = (
            np.array([getattr(costs[place], name) for place in first])
            for name in ("reduce_s", "gather_s", "optimizer_s")
        )
        reduce_s, gather_s = self._exposed(state, reduce_s, gather_s, forward_s, backward_s)
        step_s = 0.0 * step_s if state.offload else step_s
        found: Floats = reduce_s + gather_s + step_s + self.parameters.of("iteration_s")
        return found

    def layer_s(self) -> list[float]:
        """Seconds of a micro-batch through each layer, forward and backward, on the ranks of the first stage."""
        shards, kinds = self.kinds[0].shards, len(self.layers.kinds)
        found = shards.chunks([(((kind, False), 1),) for kind in range(kinds)], "none")
        both = found.forward_s + found.backward_s
        return [float(both[kind]) for kind in self.layers.kind_of_layer]

    def price(self, family: Family, *, below_s: float = math.inf, spare_bytes: int = 0) -> Priced:
        """All plans of `family`, whose cuts have as many chunks a stage; seconds only of those that fit and take less
        than `below_s`, unless that is infinite: then of all. `spare_bytes` of each device's memory stay free."""
        cuts, rules, states = len(family.cuts), len(family.recompute), len(family.states)
        classes = self._classes(family.cuts)
        table = self._table(classes, family.recompute)
        plain_s = self._pipeline_s(family, classes, table, table.backward_s)
        quick = plain_s + self.parameters.of("iteration_s") < below_s
        total_s = np.full((cuts * rules, states), np.inf)
        lacking = np.empty((cuts * rules, states))
        room = self._room(classes, *self._moments(family, classes, table), rules)
        for number, state in enumerate(family.states):
            lacking[:, number] = self._memory(state, classes, room)[0] + spare_bytes
            wanted = quick & (lacking[:, number] <= 0) if below_s < math.inf else quick
            if not wanted.any():
                continue
            backward_s, pipeline_s = table.backward_s, plain_s
            if state.zero == 3 and self.degrees.dp * self.degrees.cp > 1:
                backward_s = backward_s + self._sharding_s(state, table)
                pipeline_s = self._pipeline_s(family, classes, table, backward_s)
            cuts_wanted = wanted.reshape(cuts, rules).any(axis=1)
            needed = set(np.unique(classes.of_stage[:, cuts_wanted]).tolist())
            found = pipeline_s + self._after_s(family, state, classes, table.forward_s, backward_s, needed)
            total_s[wanted, number] = found[wanted]
        shape = (cuts, rules, states)
        return Priced(total_s=total_s.reshape(shape), lacking_bytes=lacking.reshape(shape))

    def stage_setups(self, cut: tuple[Ranges, ...], rule: Rule, state: StateRule) -> tuple[StageSetup, ...]:
        """The stages of one plan, as `estimator.pricing.evaluate` takes them."""
        size = self.degrees.stage_devices
        return tuple(
            replace(
                self.kinds[kind].stage,
                chunks=ranges,
                slots=self.placement.stage(number, size),
                zero=state.zero,
                shard=state.shard,
                offload=state.offload,
                recompute=rule[0],
                recompute_layers=rule[1],
            )
            for number, (kind, ranges) in enumerate(zip(self.kind_of_stage, cut, strict=True))
        )

    def _classes(self, cuts: Sequence[tuple[Ranges, ...]]) -> _Classes:
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        ranges_of: list[Ranges] = []
        numbers = []
        for cut in cuts:
            own = []
            for where, (ranges, contents) in zip(
                self.kind_of_stage, zip(cut, self.layers.contents(cut), strict=True), strict=True
            ):
                number = known.setdefault((where, contents), len(known))
                if number == len(ranges_of):
                    ranges_of.append(ranges)
                own.append(number)
            numbers.append(own)
        return _Classes(where=[where for where, _ in known], ranges=ranges_of, of_stage=np.array(numbers).T)

    def _table(self, classes: _Classes, rules: Sequence[Rule]) -> _Table:
        """Chunks that come first in a stage are recomputed first."""
        contents = np.array(self.layers.contents(tuple(classes.ranges)), dtype=np.int64)  # (classes, chunks)
        blocks = np.array([[self.layers.recomputable(*part) for part in ranges] for ranges in classes.ranges])
        before = np.cumsum(blocks, axis=1) - blocks
        most = len(self.layers.kind_of_layer)
        counts = np.array([0 if kind == "none" else most if count is None else count for kind, count in rules])
        again = np.clip(counts[None, :, None] - before[:, None, :], 0, blocks[:, None, :])
        kinds = list(dict.fromkeys(kind for kind, _ in rules))
        kind_of_rule = np.array([kinds.index(kind) for kind, _ in rules])
        where = np.array(classes.where)[:, None, None]
        # One number for each (where, kind of recomputation, content, layers recomputed).
        codes = where * len(kinds) + np.where(again > 0, kind_of_rule[None, :, None], 0)
        codes = (codes * (int(contents.max()) + 1) + contents[:, None, :]) * (most + 1) + again
        distinct, index = np.unique(codes, return_inverse=True)
        index = index.reshape(codes.shape)
        grouped: dict[tuple[int, RecomputeKind], list[tuple[Composition, int]]] = {}
        for row, code in enumerate(distinct.tolist()):
            code, count = divmod(code, most + 1)
            code, content = divmod(code, int(contents.max()) + 1)
            place, kind = divmod(code, len(kinds))
            composition = self.layers.composition_of(content, count)
            grouped.setdefault((place, kinds[kind] if count else "none"), []).append((composition, row))
        names = ("forward_s", "backward_s", "weight_s", "saved_bytes", "extra_bytes", "freed_bytes")
        flat = {name: np.empty(len(distinct)) for name in names}
        for (place, kind_name), own in grouped.items():
            found = self.kinds[place].shards.chunks([composition for composition, _ in own], kind_name)
            rows = [row for _, row in own]
            for name in names:
                flat[name][rows] = getattr(found, name)
        return _Table(**{name: flat[name][index] for name in names}, grouped=grouped, index=index)

    def _spread(self, classes: _Classes, values: Floats) -> Floats:
        """(classes, rules, ...) as (stages, ..., cuts * rules)."""
        found = values[classes.of_stage]  # (stages, cuts, rules, ...)
        stages, cuts, rules = found.shape[:3]
        if found.ndim == 4:
            return np.ascontiguousarray(found.transpose(0, 3, 1, 2)).reshape(stages, -1, cuts * rules)
        return found.reshape(stages, cuts * rules)

    def _pipeline_s(self, family: Family, classes: _Classes, table: _Table, backward_s: Floats) -> Floats:
        return time_schedules(
            family.schedule,
            self._spread(classes, table.forward_s),
            self._spread(classes, backward_s),
            self._spread(classes, table.weight_s),
            np.repeat(self._transfers_s(family), len(family.recompute), axis=1),
            overlapped="p2p" in self.setup.recipe.overlap,
            micro_batches=self.micro_batches,
        )

    def _moments(self, family: Family, classes: _Classes, table: _Table) -> tuple[Floats, Floats]:
        """Bytes of activations, and of what lives for one layer, at every stage's fullest moment, (stages, plans)."""
        flying = _flying(family.schedule, len(self.setup.stages), table.index.shape[2], self.micro_batches)
        kept = np.rint((flying[:, :, None] * self._spread(classes, table.saved_bytes)).sum(axis=1))
        best = np.argmax(table.extra_bytes - table.freed_bytes, axis=2)[:, :, None]
        freed = np.take_along_axis(table.freed_bytes, best, axis=2)[:, :, 0]
        extra = np.take_along_axis(table.extra_bytes, best, axis=2)[:, :, 0]
        return kept - self._spread(classes, freed), self._spread(classes, extra)

    def _sharding_s(self, state: StateRule, table: _Table) -> Floats:
        """What ZeRO 3 adds to every class's every chunk's backward pass, (classes, rules, chunks)."""
        flat = np.empty(sum(map(len, table.grouped.values())))
        overlapped = "dp" in self.overlap_under(state.zero)
        for (where, kind), own in table.grouped.items():
            flat[[row for _, row in own]] = self.kinds[where].shards.sharding_s(
                [composition for composition, _ in own],
                kind,
                replace(self.kinds[where].stage, zero=state.zero, shard=state.shard),
                self._on_axis(where, state),
                self._sharded.setdefault((where, state.shard), {}),
                overlapped=overlapped,
            )
        found: Floats = flat[table.index]
        return found

    def _on_axis(self, where: int, state: StateRule) -> TimeOnAxis:
        key = (where, state.zero > 0, state.shard)
        if key not in self._axes:
            stage = replace(self.kinds[where].stage, zero=state.zero, shard=state.shard)
            self._axes[key] = self.links.on_axes_of(stage)
        return self._axes[key]

    def _stage_under(self, where: int, ranges: Ranges, state: StateRule) -> StageSetup:
        return replace(
            self.kinds[where].stage, chunks=ranges, zero=state.zero, shard=state.shard, offload=state.offload
        )

    def _cost(self, where: int, ranges: Ranges, state: StateRule) -> OnceCost:
        key = (where, state, self.layers.contents((ranges,)))
        found = self._costs.get(key)
        if found is None:
            shards = self.kinds[where].shards
            found = self._costs[key] = price_once(
                self.setup,
                self._stage_under(where, ranges, state),
                [shards.chunk_work(first, end) for first, end in ranges],
                [shards.profiles(first, end) for first, end in ranges],
                shards.machine,
                self._on_axis(where, state),
                self.parameters,
            )
        return found

    def _after_s(
        self,
        family: Family,
        state: StateRule,
        classes: _Classes,
        forward_s: Floats,
        backward_s: Floats,
        needed: set[int],
    ) -> Floats:
        """Exposed seconds after the last backward pass, as `estimator.pricing.evaluate` has them; right where all
        stages of a plan are of the `needed` classes."""
        rules = len(family.recompute)
        costs = [
            self._cost(where, ranges, state) if number in needed else None
            for number, (where, ranges) in enumerate(zip(classes.where, classes.ranges, strict=True))
        ]

        def spread(name: str) -> Floats:
            values = np.array([[getattr(cost, name) if cost else 0.0] for cost in costs])
            return np.repeat(self._spread(classes, values), rules, axis=1)

        reduce_s, gather_s = spread("reduce_s"), spread("gather_s")
        ahead_s = self._spread(classes, forward_s.sum(axis=2))
        busy_s = self._spread(classes, backward_s.sum(axis=2))
        reduce_s, gather_s = self._exposed(state, reduce_s, gather_s, ahead_s, busy_s)
        early_s = np.zeros_like(reduce_s)
        if family.schedule in ("gpipe", "1f1b", "interleaved"):
            early_s[1:] = np.cumsum(self._spread(classes, backward_s[:, :, 0])[:-1], axis=0)
        sync_s: Floats = (np.maximum(0.0, reduce_s - early_s) + gather_s).max(axis=0)
        step_s = spread("optimizer_s").max(axis=0) + self.parameters.of("iteration_s")
        total: Floats = sync_s + step_s + spread("offload_s").max(axis=0) + self._tied_s()
        return total

    def _exposed(
        self, state: StateRule, reduce_s: Floats, gather_s: Floats, forward_s: Floats, backward_s: Floats
    ) -> tuple[Floats, Floats]:
        """What is left of summing gradients and gathering weights beside a micro-batch's passes."""
        if "dp" not in self.overlap_under(state.zero):
            return reduce_s, gather_s
        hidden = 1 - self.parameters.of("overlap_cost", "dp")
        sums = self.micro_batches if state.zero == 2 else 1
        reduce_s = reduce_s - np.minimum(reduce_s, sums * backward_s) * hidden
        if not self.setup.recipe.software.broadcast_weights:
            gather_s = gather_s - np.minimum(gather_s, forward_s) * hidden
        return reduce_s, gather_s

    def _tied_s(self) -> float:
        stages = len(self.setup.stages)
        size = tied_bytes(self.setup)
        if not size:
            return 0.0
        devices = self.degrees.stage_devices
        plain, reached = self.placement.pairs(0, stages - 1, devices)
        return self.links.sums_s(plain, reached, size, pairs=devices)

    def _transfers_s(self, family: Family) -> Floats:
        """Seconds of an activation from each stage to the next (the last one's: back to the first, where interleaved),
        (stages, cuts)."""
        stages, cuts = len(self.setup.stages), family.cuts
        found = np.zeros((stages, len(cuts)))
        if stages == 1:
            return found
        hops = stages if family.schedule == "interleaved" else stages - 1
        # All activations of a transformer are as large; else they are as the last layer makes them.
        for column, cut in enumerate(cuts if self.layers.boundaries_differ else cuts[:1]):
            for number in range(hops):
                here = self.kinds[self.kind_of_stage[number]]
                size = here.shards.boundary_bytes(cut[number][0][1])
                found[number, column] = self._message_s(number, (number + 1) % stages, size)
        return found if self.layers.boundaries_differ else np.repeat(found[:, :1], len(cuts), axis=1)

    def _message_s(self, number: int, there: int, size: int) -> float:
        key = ("message", number, there, size)
        if key not in self._messages:
            degrees, devices = self.degrees, self.degrees.stage_devices
            pairs, _ = self.placement.pairs(number, there, devices)
            if degrees.tp == 1 or degrees.sequence_parallel:
                took = self.links.messages_s(pairs, size, senders=devices)
            else:
                receiver = self.kinds[self.kind_of_stage[there]]
                took = self.links.messages_s(pairs, size / degrees.tp, senders=devices)
                took += receiver.on_axis("all_gather", size, "tp")
            self._messages[key] = took
        return self._messages[key]

    def _room(self, classes: _Classes, activation: Floats, extra: Floats, rules: int) -> _Room:
        """What memory holds under every rule of state alike."""
        known = self.kinds[0].shards.features
        held = [
            self.kinds[where].shards.holdings(ranges)
            for where, ranges in zip(classes.where, classes.ranges, strict=True)
        ]
        outside = [outside_bytes(self.setup, kind.stage, known) for kind in self.kinds]
        device = [self.setup.cluster.group_of(kind.stage.slots[0]).device.memory_bytes for kind in self.kinds]
        kinds = list(self.kind_of_stage)
        cached = np.array([cached for _, cached in held])
        return _Room(
            holdings=Holdings(
                **{
                    part.name: np.array([getattr(one, part.name) for one, _ in held], float)
                    for part in fields(Holdings)
                }
            ),
            rules=rules,
            activation=activation,
            temporary=self._each(classes, cached, rules) + extra + known.workspace_bytes,
            outside=np.array(outside, float)[kinds][:, None],
            device=np.array(device, float)[kinds][:, None],
            capacity=np.array([self.kinds[kind].memory_bytes for kind in kinds], float)[:, None],
        )

    def _each(self, classes: _Classes, values: Amount, rules: int) -> Floats:
        """One figure a class as (stages, plans)."""
        each = np.broadcast_to(values, len(classes.where))
        return np.repeat(each[classes.of_stage], rules, axis=1)

    def _memory(self, state: StateRule, classes: _Classes, room: _Room) -> tuple[Floats, Floats]:
        """What every plan's fullest rank needs beyond what its device has; and by stage, (stages, plans), what is
        handed out at its fullest moment or stands outside the allocator, beyond the same."""
        known = self.kinds[0].shards.features
        # How state is sharded does not depend on where a stage sits.
        found = standing_bytes(self.setup.recipe, self._stage_under(0, ((0, 1),), state), room.holdings, known)
        standing = self._each(
            classes, found.weights + found.gradients + found.optimizer + found.communication, room.rules
        )
        step = self._each(classes, found.step, room.rules) if np.any(found.step) else 0.0
        peak = standing + room.activation + room.temporary + room.outside
        loose = known.fragmentation * room.temporary + known.activation_fragmentation * room.activation
        firm = np.maximum(FIRM_SHARE * loose, step - room.temporary - room.activation)
        needed = peak + np.rint(np.maximum(firm, np.minimum(loose + step, room.device - peak)))
        lacking: Floats = (needed - room.capacity).max(axis=0)
        return lacking, peak - room.capacity


@lru_cache(maxsize=4096)
def _flying(schedule: ScheduleName, stages: int, chunks: int, micro_batches: int) -> NDArray[np.float64]:
    """Micro-batches that each stage's chunks keep at most, (stages, chunks)."""
    return np.array(
        [
            in_flight(schedule, stage=stage, stages=stages, chunks=chunks, micro_batches=micro_batches)
            for stage in range(stages)
        ]
    )


def least_in_turn(once_s: float, stages: int, micro_batches: int, *, waits: bool) -> float:
    """The least that so many stages take for micro-batches of `once_s` over all of them (`Pipeline.least_s`)."""
    if not waits or stages == 1:
        return micro_batches * once_s / stages
    return once_s / (1 - (1 - 1 / micro_batches) ** stages)
