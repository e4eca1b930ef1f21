"""Which runs of layers a number of devices can hold: the feasibility mask of the exact partition.

For a device count and a first layer, feasibility ends at some layer and never returns (memory grows, legal degrees
shrink), so one number for each pair says it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import or_

import numpy as np

from estimator.graph import repeated_parameters, shared_weights
from estimator.job import Job
from estimator.layer_times import ShardCost
from estimator.memory import estimate_memory, micro_batches_in_flight
from estimator.partition import BoolArray, IntArray
from estimator.stage_options import Machine, Parallelism, shard_of
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
    """The end of every start's reach. Ends never move back, so that two pointers find them all in one sweep."""
    costs = way.costs
    listed = [cost.local.parameters if cost else 0 for cost in costs]
    working = [cost.working_bytes if cost else 0 for cost in costs]
    parameters_before = [0, *accumulate(listed)]
    saved_before = [0, *accumulate(cost.saved_bytes if cost else 0 for cost in costs)]
    shared = shared_weights(job.model, way.parallelism.tp)

    def fits(first: int, end: int) -> bool:
        memory = estimate_memory(
            parameters=parameters_before[end] - parameters_before[first] - repeated_parameters(shared, first, end),
            layer_parameters=max(listed[first:end]),
            saved_bytes=saved_before[end] - saved_before[first],
            working_bytes=max(working[first:end]),
            in_flight=in_flight[first],
            dtype=job.dtype,
            optimizer=job.optimizer,
            zero=job.zero,
            dp=way.parallelism.dp,
            capacity_bytes=machine.device.memory_bytes,
        )
        return memory.lacking_bytes(machine.device.memory_bytes) == 0

    ends = []
    end = 0
    for first in range(len(costs)):
        end = max(end, first)
        while end < len(costs) and costs[end] and fits(first, end + 1):
            end += 1
        ends.append(end)
    return ends
