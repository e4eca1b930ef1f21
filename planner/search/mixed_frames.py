"""Frames: which segments follow each other, for micro-batches of which size; the most promising ones first.

A frame leaves the cut of the layers and the rules open. What its best cut takes at least is known from how fast its
stages are, before any of them is priced; all frames that could be better than the best plan known are listed so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.passes import Floats
from planner.search.constraints import Constraints, Number
from planner.search.mixed_segments import Pricer
from planner.search.mixed_space import MixedSpace, Segment

Integers = NDArray[np.int64]
MOST_FRAMES = 2_000_000
"""So many frames of one sequence of groups are listed at most; of the others only the least bound is kept."""
AT_ONCE = 1_000_000
"""So many are bounded in one go."""
MOST_SEQUENCES = 400
"""So many sequences of groups are looked at, the shortest first."""
SCALES = 3
"""By so many different ways to weigh layers against each other frames are bounded; the highest bound counts."""

WeightOf = Callable[[Segment], float]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Segments in the order of their layers."""

    segments: tuple[Segment, ...]

    @property
    def stages(self) -> int:
        """Stages of all segments."""
        return sum(segment.pp for segment in self.segments)


@dataclass(frozen=True, kw_only=True)
class Column:
    """Segments on one party for one size of micro-batch: stages, devices, what a second of them costs, and seconds of
    all layers on one of their stages by each scale (scales x segments)."""

    segments: tuple[Segment, ...]
    alike: Integers
    pp: Integers
    devices: Integers
    weight: Floats
    whole_s: Floats


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Frames by bound, in the unit of the objective. `beyond`: no frame that is not listed has a smaller value, other
    than those that were asked to be left out."""

    bounds: Floats
    rows: tuple[tuple[tuple[Column, ...], Integers], ...]
    place: Integers
    considered: int
    beyond: float

    def frame(self, number: int) -> Frame:
        """The frame of that number."""
        part = int(np.searchsorted(self.place, number, side="right")) - 1
        columns, numbers = self.rows[part]
        row = numbers[number - int(self.place[part])]
        return Frame(segments=tuple(column.segments[i] for column, i in zip(columns, row.tolist(), strict=True)))


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The last segments of sequences: their numbers, what they need, 1 / T of the layers that they hold within T
    (scales x parts), and whether all are shared alike."""

    numbers: Integers
    pp: Integers
    devices: Integers
    weight: Floats
    speed: Floats
    bound: Floats
    first: Integers
    alike: NDArray[np.bool_]

    @staticmethod
    def none() -> _Parts:
        """No segment yet."""
        nothing = np.zeros(1, dtype=np.int64)
        return _Parts(
            numbers=np.zeros((1, 0), dtype=np.int64),
            pp=nothing,
            devices=nothing,
            weight=np.zeros(1),
            speed=np.zeros((SCALES, 1)),
            bound=np.zeros(1),
            first=nothing - 1,
            alike=np.ones(1, dtype=np.bool_),
        )

    @staticmethod
    def joined(blocks: Sequence[_Parts]) -> _Parts:
        """All of these."""
        if not blocks:
            return _Parts.none().only(np.zeros(0, dtype=np.int64))
        found = {
            part.name: np.concatenate([getattr(block, part.name) for block in blocks], axis=int(part.name == "speed"))
            for part in fields(_Parts)
        }
        return _Parts(**found)

    def only(self, chosen: Integers) -> _Parts:
        """Those of the numbers."""
        found = {part.name: getattr(self, part.name)[..., chosen] for part in fields(_Parts) if part.name != "numbers"}
        return _Parts(numbers=self.numbers[chosen], **found)

    def with_part(self, part: Column, micro_batches: int) -> _Parts:
        """Each with every segment of `part` before it; the bounds are left as they were."""
        here = np.arange(len(part.segments))
        old, new = np.repeat(np.arange(len(self.bound)), len(here)), np.tile(here, len(self.bound))
        later, own = self.speed[:, old], 1 / part.whole_s[:, new]
        waits = (1 - 1 / micro_batches) ** part.pp[new]
        return _Parts(
            numbers=np.concatenate([new[:, None], self.numbers[old]], axis=1),
            pp=self.pp[old] + part.pp[new],
            devices=self.devices[old] + part.devices[new],
            weight=self.weight[old] + part.weight[new],
            speed=np.where(own > later, own - (own - later) * waits, later),
            bound=self.bound[old],
            first=part.alike[new],
            alike=self.alike[old] & ((self.first[old] < 0) | (self.first[old] == part.alike[new])),
        )


@dataclass(frozen=True, kw_only=True)
class Lister:
    """The segments of a space, by micro-batch and party, bounded."""

    space: MixedSpace
    columns: dict[int, dict[tuple[int, ...], Column]]
    iteration_s: float
    same_value: bool

    def frames(self, below: float, *, most: int | None = None) -> Frames:
        """All frames whose bound is less than `below`; with `most`, of the fastest so many segments of each party."""
        bounds, rows, considered, beyond = [], [], 0, math.inf
        every = sequences(self.space.parties)
        for micro_batch, columns in self.columns.items():
            chosen = columns if most is None else {party: _fastest(one, most) for party, one in columns.items()}
            batches = self.space.first.space.global_batch // micro_batch
            for sequence in every[:MOST_SEQUENCES]:
                if any(party not in chosen for party in sequence):
                    continue
                parts = tuple(chosen[party] for party in sequence)
                considered += math.prod(len(part.segments) for part in parts)
                found, numbers, left = self._combined(parts, batches, below)
                beyond = min(beyond, left)
                if len(found):
                    bounds.append(found)
                    rows.append((parts, numbers))
            if len(every) > MOST_SEQUENCES:
                reach = sum((_gain(part, batches) for part in chosen.values()), np.zeros(SCALES))
                lightest = min(float(part.weight.min()) for part in chosen.values())
                beyond = min(beyond, float(self._value(np.array([lightest]), (1 / reach).max())[0]))
        place = np.cumsum([0, *(len(found) for found in bounds)])
        return Frames(
            bounds=np.concatenate(bounds) if bounds else np.zeros(0),
            rows=tuple(rows),
            place=place[:-1],
            considered=considered,
            beyond=beyond,
        )

    def _combined(self, parts: Sequence[Column], micro_batches: int, below: float) -> tuple[Floats, Integers, float]:
        """Bounds of the frames of these columns, the number of each's segments, and the least bound of those left out
        because there are too many.

        Where stages before take S for a micro-batch and a stage c, the iteration takes at least S + m c
        (`estimator.schedules.bulk.lower_bounds`). So within T - S a stage that takes t for all layers holds (T - S) /
        (m t) of them at most, and with r = 1 / t and q = 1 - 1/m the stages from one on at most T - S times

            v = max(v', r / m + q v')       v' for the stages after it

        which is r - (r - v') q^p over p equal stages, if r > v'. All of them hold the model: T >= 1 / v of the first.
        """
        limits = self.space.constraints
        done = _Parts.none()
        beyond = math.inf
        for place in reversed(range(len(parts))):
            reach = sum((_gain(part, micro_batches) for part in parts[:place]), np.zeros(SCALES))
            blocks = []
            size = max(1, AT_ONCE // len(parts[place].segments))
            for start in range(0, len(done.bound), size):
                more = done.only(np.arange(start, min(start + size, len(done.bound)))).with_part(
                    parts[place], micro_batches
                )
                more = replace(more, bound=self._value(more.weight, (1 / (more.speed + reach[:, None])).max(axis=0)))
                kept = (more.bound < below) & self._possible(more)
                blocks.append(more.only(np.flatnonzero(kept)))
            done = _Parts.joined(blocks)
            if len(done.bound) > MOST_FRAMES:
                order = np.argsort(done.bound, kind="stable")
                beyond = min(beyond, float(done.bound[order[MOST_FRAMES]]))
                done = done.only(np.sort(order[:MOST_FRAMES]))
        done = done.only(
            np.flatnonzero(_permitted(limits, "pp", done.pp) & _permitted(limits, "devices", done.devices))
        )
        return done.bound, done.numbers, beyond

    def _possible(self, parts: _Parts) -> NDArray[np.bool_]:
        """Whether parts of a sequence do not break the user's limits already."""
        limits, layers = self.space.constraints, len(self.space.model.layers)
        kept = parts.pp <= min(layers, limits.fix.get("pp", limits.most.get("pp", layers)))
        kept &= parts.devices <= limits.fix.get("devices", limits.most.get("devices", 1 << 60))
        return np.asarray(kept & parts.alike if limits.tool is not None else kept)

    def _value(self, weight: Floats, passes_s: Floats) -> Floats:
        """What an iteration of such passes takes at least, in the unit of the objective."""
        return (passes_s + self.iteration_s) * (1.0 if self.same_value else weight)


def list_segments(
    space: MixedSpace, pricer: Pricer, weight_of: WeightOf | None, *, iteration_s: float, below: float
) -> Lister:
    """All segments with their bounds; `weight_of` None: a second costs the same wherever. Of segments on all groups at
    once only those that could have a value less than `below`."""
    limits, global_batch = space.constraints, space.first.space.global_batch
    counts = np.bincount(pricer.contents.layers.kind_of_layer)
    found: dict[int, dict[tuple[int, ...], tuple[list[Segment], list[Floats]]]] = {}
    for micro_batch in [size for size in range(1, global_batch + 1) if global_batch % size == 0]:
        if not limits.permits("micro_batches", global_batch // micro_batch):
            continue
        for party in space.parties:
            segments: list[Segment] = []
            for choices in space.segments(party, micro_batch):
                if len(party) == len(space.groups) and len(choices) > 1:
                    segments += _promising(choices, pricer, counts, weight_of, iteration_s, below)
                else:
                    segments += choices
            priced = [(segment, own) for segment in segments if (own := pricer.least_s(segment)) is not None]
            if priced:
                found.setdefault(micro_batch, {})[party] = [one for one, _ in priced], [own for _, own in priced]
    every = [own for parties in found.values() for _, least in parties.values() for own in least]
    scales = _scales(np.array(every), counts) if every else np.zeros((SCALES, len(counts)))
    layouts: dict[object, int] = {}
    return Lister(
        space=space,
        columns={
            micro_batch: {
                party: _column(segments, np.array(least), scales, layouts, weight_of)
                for party, (segments, least) in parties.items()
            }
            for micro_batch, parties in found.items()
        },
        iteration_s=iteration_s,
        same_value=weight_of is None,
    )


def _promising(
    choices: Sequence[Segment],
    pricer: Pricer,
    counts: Integers,
    weight_of: WeightOf | None,
    iteration_s: float,
    below: float,
) -> list[Segment]:
    """Of segments on all devices those whose bound is less than `below`: around the shares with which both types take
    equally long, as more samples never take less time."""
    batches = pricer.recipe.global_batch // choices[0].micro_batch
    reach = 1 - (1 - 1 / batches) ** choices[0].pp

    def whole_s(place: int, type_: int) -> float:
        least = pricer.least_of_group_s(choices[place], choices[place].groups[type_])
        return math.inf if least is None else float(least @ counts)

    def is_promising(place: int, type_: int) -> bool:
        weight = weight_of(choices[place]) if weight_of else 1.0
        return (whole_s(place, type_) / reach + iteration_s) * weight < below

    low, high = 0, len(choices)
    while low < high:
        middle = (low + high) // 2
        if whole_s(middle, 0) >= whole_s(middle, -1):
            high = middle
        else:
            low = middle + 1
    after = next((place for place in range(low, len(choices)) if not is_promising(place, 0)), len(choices))
    before = next((place for place in range(low - 1, -1, -1) if not is_promising(place, -1)), -1)
    return list(choices[before + 1 : after])


def _column(
    segments: list[Segment], least: Floats, scales: Floats, layouts: dict[object, int], weight_of: WeightOf | None
) -> Column:
    keys = [(segment.layout, segment.dp, segment.shares) for segment in segments]
    weigh = scales[:, None, :] > 0
    ratios = np.where(weigh, least[None, :, :] / np.where(weigh, scales[:, None, :], 1.0), np.inf)
    return Column(
        segments=tuple(segments),
        alike=np.array([layouts.setdefault(key, len(layouts)) for key in keys]),
        pp=np.array([segment.pp for segment in segments]),
        devices=np.array([segment.devices for segment in segments]),
        weight=np.array([weight_of(segment) if weight_of else 0.0 for segment in segments]),
        whole_s=ratios.min(axis=2),
    )


def _scales(least: Floats, counts: Integers) -> Floats:
    """Weights of the kinds of layers, such that all layers weigh 1 (scales x kinds): those of the segments in which the
    heaviest kind weighs least, most, and in the middle."""
    weights = least / (least @ counts)[:, None]
    heaviest = int(np.argmax((weights * counts).mean(axis=0)))
    order = np.argsort(weights[:, heaviest], kind="stable")
    return np.asarray(weights[order[[0, len(order) // 2, -1]]])


def _gain(part: Column, micro_batches: int) -> Floats:
    """By how much, at most, a segment of `part` before others raises 1 / T of what they hold within T."""
    return np.asarray(((1 - (1 - 1 / micro_batches) ** part.pp) / part.whole_s).max(axis=1))


def _fastest(column: Column, most: int) -> Column:
    """Those of a column whose stages together are fastest for what they cost."""
    rate = column.pp / column.whole_s.max(axis=0)
    order = np.argsort(-rate / np.where(column.weight > 0, column.weight, 1.0), kind="stable")[:most]
    return Column(
        segments=tuple(column.segments[i] for i in order.tolist()),
        alike=column.alike[order],
        pp=column.pp[order],
        devices=column.devices[order],
        weight=column.weight[order],
        whole_s=column.whole_s[:, order],
    )


def sequences(parties: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], ...]]:
    """Parties in every order, no group in two of them: the shortest sequences first.

    >>> sequences([(0,), (1,), (0, 1)])
    [((0,),), ((1,),), ((0, 1),), ((0,), (1,)), ((1,), (0,))]
    """
    found: list[tuple[tuple[int, ...], ...]] = [(party,) for party in parties]
    place = 0
    while place < len(found) and len(found) <= MOST_SEQUENCES:
        used = {number for party in found[place] for number in party}
        found += [(*found[place], party) for party in parties if not used & {*party}]
        place += 1
    return found[: MOST_SEQUENCES + 1]


def _permitted(limits: Constraints, name: Number, values: Integers) -> NDArray[np.bool_]:
    if name in limits.fix:
        return np.asarray(values == limits.fix[name])
    low, high = limits.least.get(name, 0), limits.most.get(name, 1 << 60)
    return np.asarray((values >= low) & (values <= high))


def in_order(frames: Frames) -> Iterator[tuple[float, int]]:
    """(bound, number) of the frames, the least bound first."""
    order = np.argsort(frames.bounds, kind="stable")
    return ((float(frames.bounds[number]), int(number)) for number in order)
