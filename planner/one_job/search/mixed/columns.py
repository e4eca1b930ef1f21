"""The segments of a space in columns: how fast they are and what they hold, at best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.open_ways import least_in_turn
from estimator.bulk.records import BatchedDegrees
from estimator.pricing.amounts import Floats
from planner.one_job.search.mixed.layer_bounds import Linear, LinearRank
from planner.one_job.search.mixed.space import Layout, MixedSpace, Segment
from planner.one_job.search.spaces.space import divisors, fewest_replicas
from profiles.records import dataclass, replace

Integers = NDArray[np.int64]
SCALES = 3
"""By so many different ways to weigh layers against each other frames are bounded; the highest bound counts."""
NEAR = 2
"""Where it has to be quick, so many ways to share a micro-batch on either side of the evenest one are listed."""

WeightOf = Callable[[Segment], float]
"""What a second of a segment's devices takes of the objective."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Segments on one party for one size of micro-batch, by segment first: stages, devices, what a second of them takes
    of the objective. `rule_s` (segments, scales, rules): seconds of all layers on one stage, at least; `heaviest_s`
    (segments, rules) of one layer of the heaviest kind. `standing_bytes`
    (segments, groups, kinds of layers), `saved_bytes` (segments, groups, rules, kinds) and `room_bytes` (segments,
    groups): what a rank of each group holds at least, and keeps, and has. `alike` numbers what a tool wants equal."""

    segments: tuple[Segment, ...]
    alike: Integers
    pp: Integers
    devices: Integers
    weight: Floats
    rule_s: Floats
    heaviest_s: Floats
    standing_bytes: Floats
    saved_bytes: Floats
    room_bytes: Floats

    @property
    def whole_s(self) -> Floats:
        """Seconds of all layers on one stage under the fastest rule, (segments, scales)."""
        return np.asarray(self.rule_s.min(axis=2))

    def only(self, chosen: Integers) -> Column:
        """Those of the numbers."""
        arrays = {part.name: getattr(self, part.name)[chosen] for part in fields(Column) if part.name != "segments"}
        return Column(segments=tuple(self.segments[i] for i in chosen.tolist()), **arrays)

    def fastest(self, most: int) -> Column:
        """So many whose stages together are fastest for what they take of the objective."""
        rate = self.pp / self.whole_s.max(axis=1)
        order = np.argsort(-rate / np.where(self.weight > 0, self.weight, 1.0), kind="stable")
        return self.only(order[:most])


@dataclass(frozen=True, kw_only=True)
class Columns:
    """All of them by micro-batch and party, and by scale what each kind of layer weighs (scales, kinds) and how many
    layers there are of it; all layers together weigh 1."""

    by_batch: Mapping[int, Mapping[tuple[int, ...], Column]]
    scales: Floats
    counts: Integers

    @property
    def heaviest(self) -> int:
        """The kind of layer whose layers weigh most together."""
        return _heaviest(self.scales, self.counts)

    def with_room(self, linear: Linear) -> Columns:
        """Return the same segments on devices of which plans may need as much as `linear` says."""
        by_batch = {
            micro_batch: {
                party: replace(column, room_bytes=_room_bytes(linear, column.segments))
                for party, column in columns.items()
            }
            for micro_batch, columns in self.by_batch.items()
        }
        return replace(self, by_batch=by_batch)


def list_segments(
    space: MixedSpace, linear: Linear, weight_of: WeightOf | None, *, iteration_s: float, below: float, quickly: bool
) -> Columns:
    """Return all segments with their bounds; `weight_of` None: a second costs the same wherever. Of segments on all
    groups at once only those that could have a value less than `below`; `quickly`: those with the evenest shares."""
    counts = np.bincount(linear.pricer.contents.layers.kind_of_layer)
    listing = _Listing(space, linear, weight_of or (lambda _: 1.0), counts, iteration_s, below, quickly)
    global_batch = space.first.space.global_batch
    by_batch: dict[int, dict[tuple[int, ...], list[tuple[Segment, list[LinearRank]]]]] = {}
    for micro_batch in divisors(global_batch):
        if not space.constraints.permits("micro_batches", global_batch // micro_batch):
            continue
        for party in space.parties:
            segments = (segment for choices in space.segments(party, micro_batch) for segment in listing.of(choices))
            priced = [(segment, ranks) for segment in segments if (ranks := linear.ranks(segment)) is not None]
            if priced:
                by_batch.setdefault(micro_batch, {})[party] = priced
    every = [_slowest_s(ranks) for parties in by_batch.values() for part in parties.values() for _, ranks in part]
    scales = _scales(np.concatenate(every), counts) if every else np.zeros((SCALES, len(counts)))
    alike: dict[object, int] = {}
    return Columns(
        by_batch={
            micro_batch: {
                party: _column(linear, priced, scales, counts, alike, weight_of) for party, priced in parties.items()
            }
            for micro_batch, parties in by_batch.items()
        },
        scales=scales,
        counts=counts,
    )


@dataclass(frozen=True)
class _Listing:
    """Which segments are listed of those that differ in shares alone."""

    space: MixedSpace
    linear: Linear
    weight_of: WeightOf
    counts: Integers
    iteration_s: float
    below: float
    quickly: bool

    def of(self, choices: Sequence[Segment]) -> Sequence[Segment]:
        """Return those listed of the choices of one party."""
        if len(self.space.groups) == 1:
            return [segment for segment in choices if self._is_better_alone(segment)]
        if len(choices[0].groups) < len(self.space.groups) or len(choices) == 1:
            return choices
        even = self._evenest(choices)
        return choices[max(0, even - NEAR) : even + NEAR] if self.quickly else self._promising(choices, even)

    def _is_better(self, segment: Segment, passes_s: float) -> bool:
        return (passes_s + self.iteration_s) * self.weight_of(segment) < self.below

    def _is_better_alone(self, segment: Segment) -> bool:
        """Whether a pipeline of nothing but the segment could be better: by compute alone, every stage waiting in turn.

        First by what ranks take for the most samples there are, which is no longer than for part after part."""
        samples, most = segment.samples[0], self.space.most_samples
        turns = _turns(segment.pp, self.linear.pricer.batches(segment))
        # Nobody knows how what is measured grows.
        if samples < most and not self.space.pricing.link_tables:
            parts = -(-most // samples)
            if not self._is_better(segment, self._alone_s(segment.layout, most) / parts * turns):
                return False
        return self._is_better(segment, self._alone_s(segment.layout, samples) * turns)

    def _alone_s(self, layout: Layout, samples: int) -> float:
        """Seconds of a micro-batch through all layers on the ranks of the only group, by compute alone."""
        return self.space.pricing.remember(self._compute_alone_s, layout, samples)

    def _compute_alone_s(self, layout: Layout, samples: int) -> float:
        group = self.space.groups[0]
        degrees = BatchedDegrees(
            tp=layout.tp,
            pp=1,
            dp=fewest_replicas(layout.tp, layout.ep * layout.etp),
            ep=layout.ep,
            etp=layout.etp,
            samples=samples,
            sequence_parallel=layout.sequence_parallel,
        )
        return group.own.evaluator.compute_alone_s(degrees, group.slots)

    def _evenest(self, choices: Sequence[Segment]) -> int:
        """The first of the choices in which the first type takes no less time than the second."""
        low, high = 0, len(choices)
        while low < high:
            middle = (low + high) // 2
            if self._whole_s(choices[middle], 0) >= self._whole_s(choices[middle], -1):
                high = middle
            else:
                low = middle + 1
        return low

    def _promising(self, choices: Sequence[Segment], even: int) -> Sequence[Segment]:
        """Of segments on all devices those whose bound could be better: around the shares with which both types take
        equally long, as more samples never take less time."""
        reach = 1 - (1 - 1 / self.linear.pricer.batches(choices[0])) ** choices[0].pp

        def is_promising(place: int, type_: int) -> bool:
            return self._is_better(choices[place], self._whole_s(choices[place], type_) / reach)

        after = next((place for place in range(even, len(choices)) if not is_promising(place, 0)), len(choices))
        before = next((place for place in range(even - 1, -1, -1) if not is_promising(place, -1)), -1)
        return choices[before + 1 : after]

    def _whole_s(self, segment: Segment, type_: int) -> float:
        """Seconds of all layers on a rank of the segment's first or last group, at least."""
        rank = self.linear.rank(segment, segment.groups[type_])
        return math.inf if rank is None else float((rank.seconds @ self.counts).min())


@lru_cache(maxsize=4096)
def _turns(stages: int, micro_batches: int) -> float:
    """What a pipeline whose stages wait takes at least, in micro-batches through all stages."""
    return float(least_in_turn(1.0, stages, micro_batches, waits=True))


def _slowest_s(ranks: Sequence[LinearRank]) -> Floats:
    """Seconds by rule and kind of layer: a stage waits for its slowest ranks."""
    return np.asarray(np.maximum.reduce([rank.seconds for rank in ranks]))


def _column(
    linear: Linear,
    priced: Sequence[tuple[Segment, list[LinearRank]]],
    scales: Floats,
    counts: Integers,
    alike: dict[object, int],
    weight_of: WeightOf | None,
) -> Column:
    segments = tuple(segment for segment, _ in priced)
    keys = [(segment.layout, segment.dp, segment.shares) for segment in segments]
    seconds = np.array([_slowest_s(ranks) for _, ranks in priced])  # (segments, rules, kinds)
    heaviest = _heaviest(scales, counts)
    weighed = scales > 0
    ratios = seconds[:, None, :, :] / np.where(weighed, scales, 1.0)[None, :, None, :]
    return Column(
        segments=segments,
        alike=np.array([alike.setdefault(key, len(alike)) for key in keys]),
        pp=np.array([segment.pp for segment in segments]),
        devices=np.array([segment.devices for segment in segments]),
        weight=np.array([weight_of(segment) if weight_of else 0.0 for segment in segments]),
        rule_s=np.where(weighed[None, :, None, :], ratios, np.inf).min(axis=3),
        heaviest_s=seconds[:, :, heaviest],
        standing_bytes=np.array(
            [[linear.standing_bytes(segment, rank) for rank in ranks] for segment, ranks in priced]
        ),
        saved_bytes=np.array([[rank.saved_bytes for rank in ranks] for _, ranks in priced]),
        room_bytes=_room_bytes(linear, segments),
    )


def _room_bytes(linear: Linear, segments: Sequence[Segment]) -> Floats:
    """What devices of each segment's groups have for layers; all segments are on the same groups."""
    return np.tile([linear.room_bytes(number) for number in segments[0].groups], (len(segments), 1))


def _scales(least: Floats, counts: Integers) -> Floats:
    """Weights of the kinds of layers, such that all layers weigh 1 (scales x kinds): as the layers' seconds are where
    the heaviest kind weighs least, most, and in the middle."""
    weights = least / (least @ counts)[:, None]
    heaviest = _heaviest(weights, counts)
    order = np.argsort(weights[:, heaviest], kind="stable")
    return np.asarray(weights[order[[0, len(order) // 2, -1]]])


def _heaviest(weights: Floats, counts: Integers) -> int:
    return int(np.argmax((weights * counts).mean(axis=0)))
