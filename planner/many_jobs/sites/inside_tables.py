"""The costs of the choice inside a site, from the estimator: options with their tables, and a choice's devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from estimator.pricing.amounts import Floats
from estimator.pricing.recipe import StageSetup
from planner.many_jobs.sites.inside import MOST_PATTERNS, InsideChoice, InsideOption, Pattern, best_inside, patterns_of
from planner.one_job.search.mixed.pricer import Pricer
from planner.one_job.search.mixed.space import Group, Segment
from profiles.cluster import DeviceSlot
from profiles.records import dataclass, replace

MOST_TOLD_APART = 12
"""Of more units that are told apart by their places in the fabric, what is left of each is too much to go through."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Stages of a pipeline that are shared alike: the segment, and its devices stage by stage. `total_s` is T of
    `planner.many_jobs.sites.inside`, `fill_s` how long one micro-batch takes through all of the stages."""

    segment: Segment
    slots: tuple[DeviceSlot, ...]
    total_s: float
    fill_s: float

    def stage_slots(self, number: int) -> tuple[DeviceSlot, ...]:
        """Return the devices of stage `number`."""
        size = len(self.slots) // self.segment.pp
        return self.slots[number * size : (number + 1) * size]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InsideTables:
    """Makes the options of a group of devices."""

    pricer: Pricer

    @property
    def _layers(self) -> int:
        return len(self.pricer.space.model.layers)

    def ranked(self, segments: Iterable[Segment], share: float, *, most: int, many: bool) -> list[Part]:
        """Return the best choices of the segments that can hold `share` of the model, the least T first, at most so
        many; of each segment the best places of its stages. `many`: other stages come before or after."""
        best: list[Part] = []
        for least_s, segment in self._by_bound(segments, share, many=many):
            limit_s = best[most - 1].total_s if len(best) >= most else math.inf
            if least_s >= limit_s:
                break
            once_s = self._pass_s(segment, share, many=many)
            if once_s is None or self._passes_s(segment, once_s) >= limit_s:
                continue
            option = self._option(segment, share, once_s, many=many)
            choice = best_inside([option], limit_s)
            if choice is not None:
                slots = self._slots(segment, option, choice)
                fill_s = segment.pp * once_s
                best.append(Part(segment=segment, slots=slots, total_s=choice.total_s, fill_s=fill_s))
                best = sorted(best, key=lambda part: part.total_s)[:most]
        return best

    def _by_bound(self, segments: Iterable[Segment], share: float, *, many: bool) -> list[tuple[float, Segment]]:
        """Segments that can hold a layer, by what T is at least: their passes as if all rules fitted. That is known of
        all that share layers and samples alike once it is of one; the fewest replicas, which are on the links alone,
        are asked first."""
        passes: dict[object, Floats] = {}
        bounds = []
        for segment in sorted(segments, key=lambda segment: segment.dp):
            if segment.pp > self._layers:
                continue
            key = (segment.groups, segment.layout, segment.samples, self.pricer.batches(segment) == 1)
            if key not in passes:
                table = self.pricer.first_table(segment, many=many or segment.pp > 1)
                if table is None:
                    continue
                passes[key] = table.least_relaxed_s
            length, content = self._content(segment, share)
            layers = self._layers
            once_s = float(passes[key][content]) * share * layers / segment.pp / length
            bounds.append((self._passes_s(segment, once_s), segment))
        return sorted(bounds, key=lambda bound: bound[0])

    def _option(self, segment: Segment, share: float, once_s: float, *, many: bool) -> InsideOption:
        """The segment's costs; `once_s` are a micro-batch's on one stage. Replicas over several groups, and those of
        which there are too many patterns to choose from, are in the order of the devices, as if one unit held all; so
        are those of many units whose places in the fabric differ."""
        group = self.pricer.space.groups[segment.groups[0]]
        units = list(self._units(group, segment.layout.tp).values())
        room = tuple(len(blocks) // segment.layout.tp for blocks in units)
        size_bytes = self._gradient_bytes(segment, share / segment.pp, many=many)
        patterns: tuple[Pattern, ...] = ()
        site = self.pricer.space.cluster.site(group.site)
        many_differ = len(units) > MOST_TOLD_APART and not site.network.is_flat
        if len(segment.groups) == 1 and not many_differ and _is_small(room, segment.dp):
            patterns = patterns_of(room, segment.dp)
        if patterns:
            alike = _alike(group, units)
            one_kind = len(set(alike)) == 1
            sync_s = tuple(self._sync_s(segment, units, pattern, size_bytes) for pattern in patterns)
            hop_s = tuple(
                tuple(
                    self._hop_s(segment, units, before, after, one_kind=one_kind) if segment.pp > 1 else 0.0
                    for after in patterns
                )
                for before in patterns
            )
        else:
            room, alike, patterns = (segment.pp * segment.dp,), (0,), ((segment.dp,),)
            stages = [self.pricer.space.stage(segment, number) for number in range(segment.pp)]
            sync_s = (max(self.pricer.sum_s(stage, size_bytes) for stage in {stages[0]: 0, stages[-1]: 0}),)
            pairs = itertools.pairwise(stages[:2])
            hop_s = ((sum(float(self.pricer.hop_s(*pair, segment.micro_batch)[1]) for pair in pairs),),)
        return InsideOption(
            pp=segment.pp,
            compute_s=self._passes_s(segment, once_s),
            micro_batches=self.pricer.batches(segment),
            room=room,
            alike=alike,
            patterns=patterns,
            sync_s=sync_s,
            hop_s=hop_s,
        )

    def _passes_s(self, segment: Segment, once_s: float) -> float:
        """Seconds of the passes of an iteration, of `once_s` each on each of equal stages
        (`estimator.schedules.one_chunk`)."""
        return (self.pricer.batches(segment) + segment.pp - 1) * once_s

    def _pass_s(self, segment: Segment, share: float, *, many: bool) -> float | None:
        """Seconds of a micro-batch on one stage of so much of the model, under the fastest rule that fits."""
        table, layers = self.pricer.first_table(segment, many=many or segment.pp > 1), self._layers
        if table is None:
            return None
        length, content = self._content(segment, share)
        fits = table.fits(min(segment.pp, self.pricer.batches(segment)))[:, content]
        if not fits.any():
            return None
        takes = np.where(fits, table.relaxed_s[:, content], np.inf)
        return float(takes.min()) * share * layers / segment.pp / length

    def _content(self, segment: Segment, share: float) -> tuple[int, int]:
        """How many layers a stage has of that share of the model, and the content in the model's middle."""
        layers = self._layers
        length = min(layers, max(1, round(share * layers / segment.pp)))
        first = (layers - length) // 2
        return length, int(self.pricer.contents.ids[first, first + length])

    def _gradient_bytes(self, segment: Segment, share: float, *, many: bool) -> float:
        """Of a rank's gradients for so much of the model."""
        table = self.pricer.first_table(segment, many=many or segment.pp > 1) if segment.dp > 1 else None
        if table is None:
            return 0.0
        whole = self.pricer.contents.ids[0, self._layers]
        return float(self.pricer.gradient_bytes(table)[whole]) * share

    def _sync_s(self, segment: Segment, units: list[list[DeviceSlot]], pattern: Pattern, size_bytes: float) -> float:
        if size_bytes == 0:
            return 0.0
        stage = self._stage(segment, _first_of(units, pattern, segment.layout.tp))
        return self.pricer.pricing.remember(self.pricer.sum_s, stage, size_bytes)

    def _hop_s(
        self, segment: Segment, units: list[list[DeviceSlot]], before: Pattern, other: Pattern, *, one_kind: bool
    ) -> float:
        """Seconds of a message where every replica's partner sits on its own unit as far as there is one. Units of
        `one_kind` may change places."""
        pairs = tuple(zip(map(len, units), before, other, strict=True))
        # Alike however many stages there are.
        key = (
            self._hop_s,
            segment.groups,
            segment.layout,
            segment.micro_batch,
            tuple(sorted(pairs)) if one_kind else pairs,
        )
        return self.pricer.pricing.keep(key, lambda: self._make_hop_s(segment, units, before, other))

    def _make_hop_s(self, segment: Segment, units: list[list[DeviceSlot]], before: Pattern, other: Pattern) -> float:
        tp, taken = segment.layout.tp, [0] * len(units)
        here = _blocks(units, list(_units_in_turn(before)), taken, tp)
        there = _blocks(units, _partners(list(_units_in_turn(before)), other), taken, tp)
        if here is None or there is None:
            # They do not both fit at once, so no two stages ever have them.
            return 0.0
        took_s = self.pricer.hop_s(self._stage(segment, here), self._stage(segment, there), segment.micro_batch)
        return float(took_s[1])

    def _stage(self, segment: Segment, slots: tuple[DeviceSlot, ...]) -> StageSetup:
        return replace(self.pricer.space.stage(segment, 0), slots=slots)

    def _units(self, group: Group, tp: int) -> dict[tuple[int, int], list[DeviceSlot]]:
        """The group's devices by island, or by node where an island is larger or too small for tp; whole blocks of tp
        alone."""
        nodes = group.own.evaluator.cluster.group_of(group.slots[0])
        island = nodes.island_size if tp <= nodes.island_size < nodes.devices else nodes.devices
        units: dict[tuple[int, int], list[DeviceSlot]] = {}
        for slot in group.slots:
            units.setdefault((slot.node, slot.index // island), []).append(slot)
        return {key: slots[: len(slots) // tp * tp] for key, slots in units.items() if len(slots) >= tp}

    def _slots(self, segment: Segment, option: InsideOption, choice: InsideChoice) -> tuple[DeviceSlot, ...]:
        """The devices, stage by stage, replicas in the same order in all."""
        tp, group = segment.layout.tp, self.pricer.space.groups[segment.groups[0]]
        units = list(self._units(group, tp).values())
        if len(option.room) != len(units) or option.patterns == ((segment.dp,),):
            return tuple(
                slot for number in range(segment.pp) for slot in self.pricer.space.stage_slots(segment, number)
            )
        taken, slots = [0] * len(units), list[DeviceSlot]()
        order = list(_units_in_turn(option.patterns[choice.stages[0]]))
        for number in choice.stages:
            order = _partners(order, option.patterns[number])
            blocks = _blocks(units, order, taken, tp)
            if blocks is None:
                raise RuntimeError(f"inside: stages {choice.stages} do not fit into {option.room}")
            slots += blocks
        return tuple(slots)


def _is_small(room: Sequence[int], replicas: int) -> bool:
    """Whether there are few patterns, without listing them: by counting."""
    ways = [1] + [0] * replicas
    for most in room:
        ways = [sum(ways[max(0, total - most) : total + 1]) for total in range(replicas + 1)]
    return 0 < ways[replicas] <= MOST_PATTERNS


def _alike(group: Group, units: Sequence[Sequence[DeviceSlot]]) -> tuple[int, ...]:
    """Units are alike that are whole nodes, where parts of the fabric hold nothing back; else those in the same part of
    its lowest level; others are told apart."""
    cluster = group.own.evaluator.cluster
    site, nodes = cluster.site(group.site), cluster.group_of(group.slots[0])
    one_each = len({unit[0].node for unit in units}) == len(units)
    if nodes.island_size > nodes.devices or not one_each:
        return tuple(range(len(units)))
    return tuple(0 if site.network.is_flat else site.network.path(unit[0].node)[0] for unit in units)


def _units_in_turn(pattern: Pattern) -> list[int]:
    return [unit for unit, count in enumerate(pattern) for _ in range(count)]


def _partners(order: Sequence[int], pattern: Pattern) -> list[int]:
    """The unit of each replica of the next stage: the one of its partner before, as far as there is room."""
    left = list(pattern)
    partners: list[int] = []
    for unit in order:
        partners.append(unit if left[unit] > 0 else -1)
        left[unit] -= left[unit] > 0
    spare = iter(_units_in_turn(tuple(left)))
    return [next(spare) if unit < 0 else unit for unit in partners]


def _blocks(
    units: Sequence[Sequence[DeviceSlot]], order: Sequence[int], taken: list[int], tp: int
) -> tuple[DeviceSlot, ...] | None:
    """The next free block of tp devices of each unit in `order`; None where one has none left."""
    slots: list[DeviceSlot] = []
    for unit in order:
        block = units[unit][taken[unit] * tp : (taken[unit] + 1) * tp]
        if len(block) < tp:
            return None
        slots += block
        taken[unit] += 1
    return tuple(slots)


def _first_of(units: Sequence[Sequence[DeviceSlot]], pattern: Pattern, tp: int) -> tuple[DeviceSlot, ...]:
    return tuple(slot for unit, count in zip(units, pattern, strict=True) for slot in unit[: count * tp])
