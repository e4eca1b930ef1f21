"""Which runs of layers a number of devices can hold: the feasibility mask of the exact partition.

For a device count and a first layer, feasibility ends at some layer and never returns (memory grows, legal degrees
shrink), so one number for each pair says it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import numpy as np
import numpy.typing as npt

from estimator.cells.held_stages import StagePlace
from estimator.cells.partition import BoolArray, IntArray
from estimator.cells.stage_pricing import StagePricing
from estimator.pricing.memory import FIRM_SHARE, features_of, outside_bytes, standing_bytes
from estimator.pricing.recipe import ScheduleName, StageSetup
from estimator.schedules.in_flight import in_flight as in_flight_of
from profiles.records import dataclass, replace
from profiles.vocabulary import RecomputeKind

Amounts = npt.NDArray[np.float64]


Ways = dict[int, tuple[tuple[int, int], ...]]
"""By a stage's device count, ascending, how it may share layers, whatever the memory: (dp, tp), all of its devices in
data or in tensor parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """`ends[k, first]` is the first layer that a stage of `device_counts[k]` devices (ascending) from layer `first` on
    can no longer hold."""

    device_counts: tuple[int, ...]
    ends: IntArray

    def usable(self, first: IntArray, end: IntArray, devices: IntArray) -> BoolArray:
        """Element by element whether `devices` devices can hold layers [first, end) in at least one way. `devices` are
        among `device_counts`."""
        held: BoolArray = end <= self.ends[np.searchsorted(self.device_counts, devices), first]
        return held


def list_ways(pricing: StagePricing, *, devices: int, micro_batch: int) -> Ways:
    """Return the ways of 1 to `devices` devices.

    A way must suit at least half of the layers: an embedding can be cut into any number of rows, which is no reason to
    give seven devices to it alone.
    """
    ways: Ways = {}
    for count in range(1, devices + 1):
        shared = [(1, count)] if count > 1 and pricing.suits_half(count) else []
        replicated = [(count, 1)] if micro_batch % count == 0 and pricing.suits_half(1) else []
        if replicated or shared:
            ways[count] = (*replicated, *shared)
    return ways


def _place_of(pricing: StagePricing, devices: int, *, stages: int, micro_batch: int) -> StagePlace:
    """Some place of a stage that holds the whole model on so many devices."""
    slots = pricing.hardware.cluster.slots
    return StagePlace(
        first=0,
        end=len(pricing.held.kinds),
        slots=slots[:devices],
        others=slots[devices : devices + 1] if stages > 1 else (),
        index=0,
        stages=stages,
        micro_batch=micro_batch,
    )


def _memory_choices(pricing: StagePricing, place: StagePlace, dp: int, tp: int) -> list[StageSetup]:
    """Of all memory choices those that may hold most: the most sharding, with nothing recomputed and with all."""
    wanted = pricing.job.recompute
    kinds: tuple[RecomputeKind, ...] = ("none", "full") if wanted == "auto" else (wanted[0],)
    # Under ZeRO 3 layers are gathered, so that 2 may hold more.
    least = min(max(pricing.job.zero), 2) if dp > 1 else 0
    stages = [stage for stage in pricing.ways(place, dp=dp, tp=tp) if stage.zero >= least]
    return [replace(stage, recompute=kind) for stage in stages for kind in kinds]


def add_up(counts: Iterable[int], *, stages: int, devices: int) -> bool:
    """Whether `stages` of these counts, each as often as need be, can sum to `devices`.

    >>> add_up([1, 4], stages=3, devices=9), add_up([1, 4], stages=3, devices=8)
    (True, False)
    """
    sums = 1  # bit n stands for the sum n
    for _ in range(stages):
        sums = reduce(or_, (sums << count for count in counts), 0) & ((2 << devices) - 1)
    return bool(sums >> devices)


def guess_in_flight(
    schedule: ScheduleName, layers: int, *, stages: int, micro_batches: int
) -> tuple[tuple[int, ...], ...]:
    """Return guesses of the micro-batches in flight in a stage, by its first layer: what a stage holds depends on its
    place in the pipeline, which the partition has yet to find.

    First the fewest there can be (every earlier stage has one layer), then as many as in stages of equal length, then
    the most: what the first refuses cannot be had, what the last allows surely fits. (Between them a split that just
    fits can be missed.)
    """
    places = (
        [min(first, stages - 1) for first in range(layers)],
        [first * stages // layers for first in range(layers)],
        [min(first, stages - 1, 1) for first in range(layers)],
    )
    flying = [
        int(in_flight_of(schedule, stage=index, stages=stages, chunks=1, micro_batches=micro_batches)[0])
        for index in range(stages)
    ]
    return tuple(dict.fromkeys(tuple(flying[index] for index in indices) for indices in places))


def find_reach(
    pricing: StagePricing, ways_by_count: Ways, *, stages: int, micro_batch: int, in_flight: Sequence[int]
) -> Reach:
    """Return how far stages of each device count reach in the best of their ways, in a pipeline of so many `stages`.

    `in_flight` are micro-batches in flight by a stage's first layer, never more for a later one.
    """
    ends = []
    for count, ways in ways_by_count.items():
        place = _place_of(pricing, count, stages=stages, micro_batch=micro_batch)
        reaches = [
            _reach_of(pricing, place, stage, in_flight)
            for dp, tp in ways
            for stage in _memory_choices(pricing, place, dp, tp)
        ]
        ends.append([max(column) for column in zip(*reaches, strict=True)])
    return Reach(device_counts=tuple(ways_by_count), ends=np.array(ends, dtype=np.int64))


def _reach_of(pricing: StagePricing, place: StagePlace, stage: StageSetup, in_flight: Sequence[int]) -> list[int]:
    """The end of every start's reach, from the memory of all runs of layers at once, (first, last): `rank_memory` for
    layers whose like follow each other."""
    setup, runs = pricing.probe(place, stage), pricing.held.layer_runs(stage, place.micro_batch // stage.dp)
    recipe, features, held = setup.recipe, features_of(setup.recipe), runs.held
    count = len(runs.there)
    standing = standing_bytes(recipe, stage, held, features)
    kept = np.array(in_flight, dtype=np.float64)[:, None] * runs.saved
    activation, temporary = np.rint(kept) - runs.freed, runs.extra + features.workspace_bytes
    whole = standing.weights + standing.gradients + standing.optimizer + standing.communication
    loose = features.fragmentation * temporary + features.activation_fragmentation * activation
    firm = np.rint(np.maximum(FIRM_SHARE * loose, standing.step - temporary - activation))
    # A stage without experts does not split them, and needs no communicator for that.
    outside, plain = (outside_bytes(setup, held_so, features) for held_so in (stage, replace(stage, ep=1, etp=1)))
    needed = whole + activation + temporary + firm + np.where(np.greater(held.experts, 0), outside, plain)
    fits = (needed <= pricing.hardware.device.memory_bytes) & runs.there[None, :]
    fits |= np.tri(count, k=-1, dtype=np.bool_)
    ends = np.where(fits.all(axis=1), count, np.argmin(fits, axis=1))
    # A stage cannot begin where a layer before it is lacking, and ends never move back.
    reach: list[int] = np.maximum.accumulate(np.maximum(ends, np.arange(count))).tolist()
    return reach
