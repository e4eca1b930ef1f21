"""Pipelines of equal stages: every way to cut the layers, to recompute and to shard, priced at once.

The totals are those of `estimator.pricing.evaluate`, to rounding; its breakdown, interval and guesses are left to it.
Stages that hold the same kinds of layers on ranks that sit alike are one class, priced once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from estimator.bulk.classes import ChunkTable, Classes, chunk_table, stage_classes
from estimator.bulk.layers import ModelLayers
from estimator.bulk.places import Placement
from estimator.bulk.records import BatchedDegrees, Family, Priced, Rule, StateRule
from estimator.bulk.stage_kind import ANY_RANGES, StageKind
from estimator.pricing.amounts import Amount, Floats
from estimator.pricing.build import Ranges
from estimator.pricing.gradient_sync import Hiding, exposed_sync_s, hiding_of, latest_sync_s, passes_beside
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.memory import Holdings, joined_holdings, outside_bytes, reserve_bytes, standing_bytes
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Overlap, ScheduleName, Setup, StageSetup, ZeroStage
from estimator.pricing.site_loads import Direction, Occupied, partners_occupied_s, sent_bytes_of
from estimator.pricing.stage_work import tied_bytes
from estimator.schedules.closed_form import flying_micro_batches, time_schedules
from estimator.schedules.crowding import Crowd, crowd_of, crowding
from profiles.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes of every plan's every stage (stages, plans) that no rule of state changes, and what each class holds;
    `outside` the allocator, and what the `device` and the weakest device of the stage (`capacity`) have."""

    holdings: Holdings
    rules: int
    activation: Floats
    temporary: Floats
    outside: Floats
    device: Floats
    capacity: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Passes:
    """Seconds of every plan's passes of a micro-batch, (stages, chunks, plans)."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pipeline:
    """Degrees on devices, with everything else still open."""

    degrees: BatchedDegrees
    placement: Placement
    setup: Setup
    kinds: tuple[StageKind, ...]
    kind_of_stage: tuple[int, ...]
    links: LinkTimes
    layers: ModelLayers
    overlap_under: Callable[[ZeroStage], frozenset[Overlap]]

    @property
    def pricing(self) -> Pricing:
        """What the prices rest on."""
        return self.links.pricing

    @property
    def micro_batches(self) -> int:
        """Micro-batches an iteration."""
        return self.setup.micro_batches

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration that nothing else accounts for."""
        return self.pricing.parameters.of("iteration_s")

    @property
    def has_replicas(self) -> bool:
        """Whether there are ranks to shard over."""
        return self.degrees.dp * self.degrees.cp > 1

    def layer_s(self) -> list[float]:
        """Return seconds of a micro-batch through each layer, forward and backward, on the ranks of the first stage."""
        shards, kinds = self.kinds[0].shards, len(self.layers.kinds)
        chunks = shards.chunks([(((kind, False), 1),) for kind in range(kinds)], "none")
        both = chunks.forward_s + chunks.backward_s
        return [float(both[kind]) for kind in self.layers.kind_of_layer]

    def price(self, family: Family, *, below_s: float = math.inf, spare_bytes: int = 0) -> Priced:
        """Return the prices of all plans of `family`, whose cuts have as many chunks a stage; seconds only of those
        that fit and take less than `below_s`, unless that is infinite: then of all. `spare_bytes` of each device's
        memory stay free."""
        cuts, rules, states = len(family.cuts), len(family.recompute), len(family.states)
        classes = self.classes(family.cuts)
        table = self.table(classes, family.recompute)
        plain = self._crowded(family, self._passes(classes, table, table.backward_s))
        plain_s = self._scheduled_s(family, plain)
        quick = plain_s + self.iteration_s < below_s
        total_s = np.full((cuts * rules, states), np.inf)
        lacking = np.empty((cuts * rules, states))
        room = self.room(family, classes, table)
        for number, state in enumerate(family.states):
            lacking[:, number] = self.lacking_bytes((state,), classes, room)[0][0] + spare_bytes
            wanted = quick & (lacking[:, number] <= 0) if below_s < math.inf else quick
            if not wanted.any():
                continue
            passes, passes_s = plain, plain_s
            if state.zero == 3 and self.has_replicas:
                backward_s = table.backward_s + self.sharding_s(state, table)
                passes = self._crowded(family, self._passes(classes, table, backward_s))
                passes_s = self._scheduled_s(family, passes)
            cuts_wanted = wanted.reshape(cuts, rules).any(axis=1)
            needed = set(classes.of_stage[:, cuts_wanted].ravel().tolist())
            whole_s = passes_s + self._after_s(family, state, classes, passes, needed)
            total_s[wanted, number] = whole_s[wanted]
        shape = (cuts, rules, states)
        return Priced(total_s=total_s.reshape(shape), lacking_bytes=lacking.reshape(shape))

    def stage_setups(self, cut: tuple[Ranges, ...], rule: Rule, state: StateRule) -> tuple[StageSetup, ...]:
        """Return the stages of one plan, as `estimator.pricing.evaluate` takes them."""
        size, (recompute, layers) = self.degrees.stage_devices, rule
        return tuple(
            replace(
                self.kinds[kind].under(ranges, state),
                slots=self.placement.stage(number, size),
                recompute=recompute,
                recompute_layers=layers,
            )
            for number, (kind, ranges) in enumerate(zip(self.kind_of_stage, cut, strict=True))
        )

    def classes(self, cuts: Sequence[tuple[Ranges, ...]]) -> Classes:
        """Return the different stages of `cuts`."""
        return stage_classes(self.layers, self.kind_of_stage, tuple(cuts))

    def table(self, classes: Classes, rules: Sequence[Rule]) -> ChunkTable:
        """Return what the chunks of `classes` take and keep under each of `rules`."""
        return chunk_table(self.layers, self.kinds, classes, rules)

    def passes_s(self, family: Family, classes: Classes, table: ChunkTable, backward_s: Floats) -> Floats:
        """Return seconds of the schedule of every plan, with these backward passes (classes, rules, chunks), at least:
        as if no stage slowed another."""
        return self._scheduled_s(family, self._passes(classes, table, backward_s))

    def _passes(self, classes: Classes, table: ChunkTable, backward_s: Floats) -> _Passes:
        return _Passes(
            forward_s=classes.spread(table.forward_s),
            backward_s=classes.spread(backward_s),
            weight_s=classes.spread(table.weight_s),
        )

    def _crowded(self, family: Family, alone: _Passes) -> _Passes:
        """`alone` beside the busy stages on the same machines, as `estimator.pricing.evaluate` has them."""
        crowd = self.pricing.remember(self._crowd)
        if crowd is None:
            return alone
        parts = alone.forward_s, alone.backward_s, alone.weight_s
        slower = crowding(family.schedule, *parts, self.micro_batches, crowd)[:, None]
        forward_s, backward_s, weight_s = (seconds * slower for seconds in parts)
        return _Passes(forward_s=forward_s, backward_s=backward_s, weight_s=weight_s)

    def _crowd(self) -> Crowd | None:
        if not any(kind.seat.alone.contention for kind in self.kinds):
            return None
        size = self.degrees.stage_devices
        return crowd_of(
            [
                (self.placement.stage(number, size), self.kinds[kind].seat.alone)
                for number, kind in enumerate(self.kind_of_stage)
            ]
        )

    def _scheduled_s(self, family: Family, passes: _Passes) -> Floats:
        rules = len(family.recompute)
        hops_s = self._transfers_s(family)
        shared = [tuple(np.repeat(each, rules, axis=1) for each in link) for link in self._shared_s(family, hops_s)]
        return time_schedules(
            family.schedule,
            passes.forward_s,
            passes.backward_s,
            passes.weight_s,
            np.repeat(hops_s, rules, axis=1),
            overlapped="p2p" in self.setup.recipe.overlap,
            micro_batches=self.micro_batches,
            shared_s=[(up, down) for up, down in shared],
        )

    def flying(self, family: Family) -> Floats:
        """Return how many micro-batches each stage's chunks keep at most, (stages, chunks)."""
        return flying_micro_batches(family.schedule, len(self.setup.stages), len(family.cuts[0][0]), self.micro_batches)

    def sharding_s(self, state: StateRule, table: ChunkTable) -> Floats:
        """Return what ZeRO 3 adds to every class's every chunk's backward pass, (classes, rules, chunks)."""
        flat = np.empty(sum(map(len, table.grouped.values())))
        overlapped = "dp" in self.overlap_under(state.zero)
        for (where, kind), alike in table.grouped.items():
            here = self.kinds[where]
            flat[[row for _, row in alike]] = here.shards.sharding_s(
                [composition for composition, _ in alike],
                kind,
                here.under(ANY_RANGES, state).sharded_over,
                here.on_axis_under(state),
                overlapped=overlapped,
            )
        of_chunks: Floats = flat[table.index]
        return of_chunks

    def hiding_under(self, state: StateRule, *, beside: float) -> Hiding | None:
        """Return how summing gradients and gathering weights hide `beside` so many passes of a micro-batch under a rule
        of state; None where they do not."""
        overlapped = "dp" in self.overlap_under(state.zero)
        return hiding_of(self.setup.recipe, [state.zero], self.micro_batches, overlapped=overlapped, beside=beside)

    def passes_beside(self, schedule: ScheduleName, chunks: int) -> float:
        """Return beside how many passes sums and gatherings run, with so many chunks a stage."""
        return passes_beside(schedule, len(self.setup.stages), chunks, self.micro_batches)

    def _after_s(
        self,
        family: Family,
        state: StateRule,
        classes: Classes,
        passes: _Passes,
        needed: set[int],
    ) -> Floats:
        """Exposed seconds after the last backward pass, as `estimator.pricing.evaluate` has them; right where all
        stages of a plan are of the `needed` classes."""
        rules = len(family.recompute)
        costs = [
            self.kinds[where].once(ranges, state) if number in needed else None
            for number, (where, ranges) in enumerate(zip(classes.where, classes.ranges, strict=True))
        ]

        def each(name: str) -> Floats:
            return classes.each(np.array([getattr(cost, name) if cost else 0.0 for cost in costs]), rules)

        reduce_s, gather_s = exposed_sync_s(
            self.hiding_under(state, beside=self.passes_beside(family.schedule, passes.backward_s.shape[1])),
            each("overlap_cost"),
            each("reduce_s"),
            each("partial_s"),
            each("gather_s"),
            passes.forward_s.sum(axis=1),
            passes.backward_s.sum(axis=1),
        )
        latest_s = latest_sync_s(family.schedule, np.asarray(reduce_s), np.asarray(gather_s), passes.backward_s)
        once_s = each("optimizer_s").max(axis=0) + each("offload_s").max(axis=0)
        return np.asarray(latest_s + once_s + self.iteration_s + self.pricing.remember(self._tied_s))

    def _tied_s(self) -> float:
        size = tied_bytes(self.setup)
        if not size:
            return 0.0
        devices = self.degrees.stage_devices
        plain, reached = self.placement.pairs(self.links, 0, len(self.setup.stages) - 1, devices)
        return self.links.sums_s(plain, reached, size, pairs=devices)

    def _transfers_s(self, family: Family) -> Floats:
        """Seconds of an activation from each stage to the next (the last one's: back to the first, where interleaved),
        (stages, cuts)."""
        stages, cuts = len(self.setup.stages), family.cuts
        seconds = np.zeros((stages, len(cuts)))
        if stages == 1:
            return seconds
        hops = stages if family.schedule == "interleaved" else stages - 1
        # All activations of a transformer are as large; else they are as the last layer makes them.
        for column, cut in enumerate(cuts if self.layers.boundaries_differ else cuts[:1]):
            for number in range(hops):
                size = self.kinds[self.kind_of_stage[number]].shards.boundary_bytes(cut[number][0][1])
                seconds[number, column] = self.pricing.remember(self._message_s, number, (number + 1) % stages, size)
        return seconds if self.layers.boundaries_differ else np.repeat(seconds[:, :1], len(cuts), axis=1)

    def _shared_s(self, family: Family, hops_s: Floats) -> list[tuple[Floats, Floats]]:
        """Of each link between sites the seconds for which a message over each boundary occupies it, and one the other
        way, (stages, cuts), as `estimator.pricing.parts.links_shared_by` has them."""
        stages, cuts = len(self.setup.stages), family.cuts
        if stages == 1 or len(self.setup.cluster.sites) == 1:
            return []
        found: dict[Direction, tuple[Floats, Floats]] = {}
        for column, cut in enumerate(cuts if self.layers.boundaries_differ else cuts[:1]):
            for number in range(stages):
                hop = float(hops_s[number, column])
                if not hop:
                    continue
                size = self.kinds[self.kind_of_stage[number]].shards.boundary_bytes(cut[number][0][1])
                both = self.pricing.remember(self._occupied_s, number, (number + 1) % stages, size, hop)
                for way, occupied in enumerate(both):
                    for direction, seconds in occupied.items():
                        if direction not in found:
                            found[direction] = np.zeros_like(hops_s), np.zeros_like(hops_s)
                        columns = slice(column, column + 1) if self.layers.boundaries_differ else slice(None)
                        found[direction][way][number, columns] = seconds
        return list(found.values())

    def _occupied_s(self, number: int, there: int, size: int, hop: float) -> Occupied:
        devices = self.degrees.stage_devices
        here, other = (self.placement.stage(stage, devices) for stage in (number, there))
        sent = sent_bytes_of(self.kinds[self.kind_of_stage[there]].stage, size)
        return partners_occupied_s(self.setup.cluster, here, other, sent, hop, self.pricing.parameters)

    def _message_s(self, number: int, there: int, size: int) -> float:
        devices, receiver = self.degrees.stage_devices, self.kinds[self.kind_of_stage[there]]
        pairs, _ = self.placement.pairs(self.links, number, there, devices)
        return self.links.split_message_s(pairs, size, receiver.stage, receiver.on_axis)

    def room(self, family: Family, classes: Classes, table: ChunkTable) -> Room:
        """Return what memory holds under every rule of state alike."""
        features, rules = self.kinds[0].shards.features, len(family.recompute)
        flying = self.flying(family)
        kept = np.rint((flying[:, :, None] * classes.spread(table.saved_bytes)).sum(axis=1))
        fullest = np.argmax(table.extra_bytes - table.freed_bytes, axis=2)[:, :, None]
        freed = np.take_along_axis(table.freed_bytes, fullest, axis=2)[:, :, 0]
        extra = np.take_along_axis(table.extra_bytes, fullest, axis=2)[:, :, 0]
        held = [
            self.kinds[where].shards.holdings(ranges)
            for where, ranges in zip(classes.where, classes.ranges, strict=True)
        ]
        cached = np.array([scratch for _, scratch in held])

        def of_stages(bytes_of_kind: list[int]) -> Floats:
            return np.array(bytes_of_kind, float)[list(self.kind_of_stage)][:, None]

        group_of = self.setup.cluster.group_of
        return Room(
            holdings=joined_holdings([holdings for holdings, _ in held]),
            rules=rules,
            activation=kept - classes.spread(freed),
            temporary=classes.each(cached, rules) + classes.spread(extra) + features.workspace_bytes,
            outside=of_stages([outside_bytes(self.setup, kind.stage, features) for kind in self.kinds]),
            device=of_stages([group_of(kind.stage.slots[0]).device.memory_bytes for kind in self.kinds]),
            capacity=of_stages([kind.memory_bytes for kind in self.kinds]),
        )

    def lacking_bytes(self, states: Sequence[StateRule], classes: Classes, room: Room) -> tuple[Floats, Floats]:
        """Return under each of `states` what every plan's fullest rank needs beyond what its device has, (states,
        plans); and by stage, (states, stages, plans), what is handed out at its fullest moment or stands outside the
        allocator, beyond the same."""
        features = self.kinds[0].shards.features
        # How state is sharded does not depend on where a stage sits.
        held = [
            standing_bytes(self.setup.recipe, self.kinds[0].under(ANY_RANGES, state), room.holdings, features)
            for state in states
        ]

        def each(amounts: list[Amount]) -> Floats:
            of_classes = np.array([np.broadcast_to(amount, len(classes.where)) for amount in amounts])
            return np.repeat(of_classes[:, classes.of_stage], room.rules, axis=2)

        standing = each([state.handed_out for state in held])
        step = each([state.step for state in held]) if any(np.any(state.step) for state in held) else 0.0
        peak = standing + room.activation + room.temporary
        reserve = reserve_bytes(room.activation, room.temporary, standing, step, room.outside, room.device, features)
        return (peak + reserve - room.capacity).max(axis=1), peak + room.outside - room.capacity
