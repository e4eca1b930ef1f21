"""Which runs of layers a number of devices can hold: the feasibility mask of the exact partition.

For a device count and a first layer, feasibility ends at some layer and never returns (memory grows, legal degrees
shrink), so one number for each pair says it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, cast

import numpy as np

from estimator.cells.job import Job
from estimator.cells.partition import BoolArray, IntArray
from estimator.cells.stage_options import Machine, Parallelism, shard_of
from estimator.layer_times import ShardCost
from estimator.layers.graph import shared_weights
from estimator.memory import estimate_memory, micro_batches_in_flight
from models_zoo.layers import Layer
from profiles.vocabulary import Infeasible, Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to share layers: every layer's cost in it, None where a layer cannot be had."""

    parallelism: Parallelism
    costs: tuple[ShardCost | None, ...]


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


def list_ways(job: Job, machine: Machine, *, devices: int, micro_batch: int) -> dict[int, tuple[Way, ...]]:
    """The ways of 1 to `devices` devices, in data or in tensor parallelism alone, with the recomputation that the job
    allows, whatever the memory; by device count, ascending.

    A way must suit at least half of the layers: an embedding can be cut into any number of rows, which is no reason to
    give seven devices to it alone.
    """
    rules: tuple[Recompute, ...] = ("none", "full") if job.recompute == "auto" else (job.recompute,)
    layers = Counter(job.model.layers).most_common()
    kinds = {layer: kind for kind, (layer, _) in enumerate(layers)}
    kind_of = [kinds[layer] for layer in job.model.layers]
    found: dict[int, tuple[Way, ...]] = {}
    for count in range(1, devices + 1):
        ways = []
        for dp, tp in dict.fromkeys([(count, 1), (1, count)]):
            if micro_batch % dp:
                continue
            for rule in rules:
                parallelism = Parallelism(dp=dp, tp=tp, recompute=rule)
                costs = _costs(job, machine, parallelism, micro_batch, layers)
                if costs is None:
                    break
                ways.append(Way(parallelism=parallelism, costs=tuple(costs[kind] for kind in kind_of)))
        if ways:
            found[count] = tuple(ways)
    return found


def _costs(
    job: Job, machine: Machine, parallelism: Parallelism, micro_batch: int, layers: Sequence[tuple[Layer, int]]
) -> list[ShardCost | None] | None:
    """Cost of each kind of layer, None where it cannot be had; None instead of a list where most layers cannot."""
    shard = shard_of(job, machine.device, parallelism, micro_batch)
    if isinstance(shard, Infeasible):
        return None
    costs: list[ShardCost | None] = []
    refused = 0
    for layer, count in layers:
        cost = machine.costs.cost(layer, shard)
        if isinstance(cost, Infeasible):
            refused += count
        if 2 * refused > len(job.model.layers):
            return None
        costs.append(None if isinstance(cost, Infeasible) else cost)
    return costs


def add_up(counts: Iterable[int], *, stages: int, devices: int) -> bool:
    """Whether `stages` of these counts, each as often as need be, can sum to `devices`.

    >>> add_up([1, 4], stages=3, devices=9), add_up([1, 4], stages=3, devices=8)
    (True, False)
    """
    sums = 1  # bit n stands for the sum n
    for _ in range(stages):
        sums = reduce(or_, (sums << count for count in counts), 0) & ((2 << devices) - 1)
    return bool(sums >> devices)


def guess_in_flight(job: Job, *, stages: int, micro_batches: int) -> tuple[tuple[int, ...], ...]:
    """Guesses of the micro-batches in flight in a stage, by its first layer: what a stage holds depends on its place in
    the pipeline, which the partition has yet to find.

    First the fewest there can be (every earlier stage has one layer), then as many as in stages of equal length, then
    the most: what the first refuses cannot be had, what the last allows surely fits. (Between them a split that just
    fits can be missed.)
    """
    layers = len(job.model.layers)
    places = (
        [min(first, stages - 1) for first in range(layers)],
        [first * stages // layers for first in range(layers)],
        [min(first, stages - 1, 1) for first in range(layers)],
    )
    guesses = (
        tuple(
            micro_batches_in_flight(schedule=job.schedule, stage=index, stages=stages, micro_batches=micro_batches)
            for index in indices
        )
        for indices in places
    )
    return tuple(dict.fromkeys(guesses))


def find_reach(job: Job, machine: Machine, ways: dict[int, tuple[Way, ...]], *, in_flight: Sequence[int]) -> Reach:
    """How far stages of each device count reach in the best of their `ways`.

    `in_flight` are micro-batches in flight by a stage's first layer, never more for a later one.
    """
    ends = [
        [max(column) for column in zip(*(_reach_of(job, machine, way, in_flight) for way in some), strict=True)]
        for some in ways.values()
    ]
    return Reach(device_counts=tuple(ways), ends=np.array(ends, dtype=np.int64))


def _reach_of(job: Job, machine: Machine, way: Way, in_flight: Sequence[int]) -> list[int]:
    """The end of every start's reach, from the memory of all runs of layers at once, (first, last)."""
    costs, count = way.costs, len(way.costs)
    listed = np.array([cost.local.parameters if cost else 0 for cost in costs], dtype=np.int64)
    repeated: Any = 0
    for one in shared_weights(job.model, way.parallelism.tp):
        holders = np.bincount(one.holders, minlength=count)
        repeated = repeated + one.parameters * np.maximum(0, _sums(holders) - 1)
    sums: Any = _sums(listed) - repeated
    kept: Any = _sums(np.array([cost.saved_bytes if cost else 0 for cost in costs], dtype=np.int64))
    memory = estimate_memory(
        parameters=sums,
        layer_parameters=cast("int", _greatest(listed)),
        saved_bytes=kept,
        working_bytes=cast("int", _greatest(np.array([cost.working_bytes if cost else 0 for cost in costs]))),
        in_flight=cast("int", np.array(in_flight, dtype=np.int64)[:, None]),
        dtype=job.dtype,
        optimizer=job.optimizer,
        zero=job.zero,
        dp=way.parallelism.dp,
        capacity_bytes=machine.device.memory_bytes,
    )
    known = np.array([cost is not None for cost in costs])
    fits = (np.asarray(memory.peak_bytes) + memory.reserve_bytes <= machine.device.memory_bytes) & known[None, :]
    fits |= np.tri(count, k=-1, dtype=np.bool_)
    ends = np.where(fits.all(axis=1), count, np.argmin(fits, axis=1))
    # A stage cannot begin where a layer before it is lacking, and ends never move back.
    found: list[int] = np.maximum.accumulate(np.maximum(ends, np.arange(count))).tolist()
    return found


def _sums(values: IntArray) -> IntArray:
    """Of every run of layers (first, last); nothing sensible where the last comes before the first."""
    before = np.concatenate([[0], np.cumsum(values)])
    found: IntArray = before[None, 1:] - before[:-1, None]
    return found


def _greatest(values: IntArray) -> IntArray:
    """The greatest of every run of layers (first, last)."""
    after = np.where(np.tri(len(values), dtype=np.bool_).T, values[None, :], 0)
    found: IntArray = np.maximum.accumulate(after, axis=1)
    return found
