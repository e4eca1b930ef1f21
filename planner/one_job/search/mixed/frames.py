"""Frames: which segments follow each other, for micro-batches of which size; the most promising ones first.

A frame leaves the cut of the layers and the rules open. What its best cut takes at least is known from how fast its
stages are, before any of them is priced; all frames that could be better than the best plan known are listed so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.amounts import Floats
from planner.one_job.search.mixed.columns import SCALES, Column, Columns
from planner.one_job.search.mixed.space import MixedSpace, Segment
from profiles.records import dataclass, replace

Integers = NDArray[np.int64]
MOST_FRAMES = 2_000_000
"""So many frames of one sequence of groups are listed at most; of the others only the least bound is kept."""
AT_ONCE = 1_000_000
"""So many are bounded in one go."""
MOST_SEQUENCES = 400
"""So many sequences of groups are looked at, the shortest first."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Segments in the order of their layers."""

    segments: tuple[Segment, ...]

    @property
    def stages(self) -> int:
        """Stages of all segments."""
        return sum(segment.pp for segment in self.segments)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Frames of one sequence of parties for one size of micro-batch: of each frame and column the segment's number."""

    columns: tuple[Column, ...]
    numbers: Integers
    micro_batches: int


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Frames by sequence, with bounds in the unit of the objective and what a second of their devices takes of it;
    `place` is the number of the first of each sequence. `beyond`: no frame that is not listed has a smaller value,
    other than those that were asked to be left out."""

    bounds: Floats
    weights: Floats
    rows: tuple[Rows, ...]
    place: Integers
    considered: int
    beyond: float

    def frame(self, number: int) -> Frame:
        """The frame of that number."""
        part = int(np.searchsorted(self.place, number, side="right")) - 1
        rows = self.rows[part]
        row = rows.numbers[number - int(self.place[part])]
        return Frame(segments=tuple(column.segments[i] for column, i in zip(rows.columns, row.tolist(), strict=True)))


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
        columns = {
            part.name: np.concatenate([getattr(block, part.name) for block in blocks], axis=int(part.name == "speed"))
            for part in fields(_Parts)
        }
        return _Parts(**columns)

    def only(self, chosen: Integers) -> _Parts:
        """Those of the numbers."""
        columns = {
            part.name: getattr(self, part.name)[..., chosen] for part in fields(_Parts) if part.name != "numbers"
        }
        return _Parts(numbers=self.numbers[chosen], **columns)

    def with_part(self, part: Column, micro_batches: int) -> _Parts:
        """Each with every segment of `part` before it; the bounds are left as they were."""
        here = np.arange(len(part.segments))
        old, new = np.repeat(np.arange(len(self.bound)), len(here)), np.tile(here, len(self.bound))
        later, earlier = self.speed[:, old], 1 / part.whole_s[new].T
        waits = (1 - 1 / micro_batches) ** part.pp[new]
        return _Parts(
            numbers=np.concatenate([new[:, None], self.numbers[old]], axis=1),
            pp=self.pp[old] + part.pp[new],
            devices=self.devices[old] + part.devices[new],
            weight=self.weight[old] + part.weight[new],
            speed=np.where(earlier > later, earlier - (earlier - later) * waits, later),
            bound=self.bound[old],
            first=part.alike[new],
            alike=self.alike[old] & ((self.first[old] < 0) | (self.first[old] == part.alike[new])),
        )


@dataclass(frozen=True, kw_only=True)
class Lister:
    """Lists the frames of a space by its columns. `same_value`: a second costs the same wherever."""

    space: MixedSpace
    columns: Columns
    iteration_s: float
    same_value: bool

    def frames(self, below: float, *, most: int | None = None) -> Frames:
        """All frames whose bound is less than `below`; with `most`, of the fastest so many segments of each party."""
        bounds, weights, rows, considered, beyond = [], [], [], 0, math.inf
        every = sequences(self.space.parties)
        for micro_batch, columns in self.columns.by_batch.items():
            chosen = columns if most is None else {party: column.fastest(most) for party, column in columns.items()}
            batches = self.space.first.space.global_batch // micro_batch
            for sequence in every[:MOST_SEQUENCES]:
                if any(party not in chosen for party in sequence):
                    continue
                parts = tuple(chosen[party] for party in sequence)
                considered += math.prod(len(part.segments) for part in parts)
                listed, left = self._combined(parts, batches, below)
                beyond = min(beyond, left)
                if len(listed.bound):
                    bounds.append(listed.bound)
                    weights.append(listed.weight)
                    rows.append(Rows(columns=parts, numbers=listed.numbers, micro_batches=batches))
            if len(every) > MOST_SEQUENCES:
                reach = sum((_gain(part, batches) for part in chosen.values()), np.zeros(SCALES))
                lightest = min(float(part.weight.min()) for part in chosen.values())
                least_s = (1 / reach).max(keepdims=True)
                beyond = min(beyond, float(self.value(np.array([lightest]), least_s)[0]))
        place = np.cumsum([0, *(len(listed) for listed in bounds)])
        return Frames(
            bounds=np.concatenate(bounds) if bounds else np.zeros(0),
            weights=np.concatenate(weights) if weights else np.zeros(0),
            rows=tuple(rows),
            place=place[:-1],
            considered=considered,
            beyond=beyond,
        )

    def _combined(self, parts: Sequence[Column], micro_batches: int, below: float) -> tuple[_Parts, float]:
        """The frames of these columns, and the least bound of those left out because there are too many.

        Where stages before take S for a micro-batch and a stage c, the iteration takes at least S + m c
        (`estimator.schedules.lower_bounds`). So within T - S a stage that takes t for all layers holds (T - S) /
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
                more = replace(more, bound=self.value(more.weight, (1 / (more.speed + reach[:, None])).max(axis=0)))
                kept = (more.bound < below) & self._possible(more)
                blocks.append(more.only(np.flatnonzero(kept)))
            done = _Parts.joined(blocks)
            if len(done.bound) > MOST_FRAMES:
                order = np.argsort(done.bound, kind="stable")
                beyond = min(beyond, float(done.bound[order[MOST_FRAMES]]))
                done = done.only(np.sort(order[:MOST_FRAMES]))
        least_stages, least_devices = limits.bounds("pp")[0], limits.bounds("devices")[0]
        return done.only(np.flatnonzero((done.pp >= least_stages) & (done.devices >= least_devices))), beyond

    def _possible(self, parts: _Parts) -> NDArray[np.bool_]:
        """Whether parts of a sequence do not break the user's limits already."""
        limits, layers = self.space.constraints, len(self.space.model.layers)
        kept = parts.pp <= min(layers, limits.bounds("pp")[1])
        kept &= parts.devices <= limits.bounds("devices")[1]
        return np.asarray(kept & parts.alike if limits.alike else kept)

    def value(self, weight: Floats, passes_s: Floats) -> Floats:
        """What an iteration of such passes takes at least, in the unit of the objective."""
        return (passes_s + self.iteration_s) * (1.0 if self.same_value else weight)


def _gain(part: Column, micro_batches: int) -> Floats:
    """By how much, at most, a segment of `part` before others raises 1 / T of what they hold within T."""
    return np.asarray(((1 - (1 - 1 / micro_batches) ** part.pp)[:, None] / part.whole_s).max(axis=0))


def sequences(parties: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], ...]]:
    """Parties in every order, no group in two of them: the shortest sequences first.

    >>> sequences([(0,), (1,), (0, 1)])
    [((0,),), ((1,),), ((0, 1),), ((0,), (1,)), ((1,), (0,))]
    """
    every: list[tuple[tuple[int, ...], ...]] = [(party,) for party in parties]
    place = 0
    while place < len(every) and len(every) <= MOST_SEQUENCES:
        used = {number for party in every[place] for number in party}
        every += [(*every[place], party) for party in parties if not used & {*party}]
        place += 1
    return every[: MOST_SEQUENCES + 1]
