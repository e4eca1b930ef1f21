"""Which runs of layers a number of devices can hold: the feasibility mask of the exact partition.

For a device count and a first layer, feasibility ends at some layer and never returns (memory grows, legal degrees
shrink), so one number for each pair says it all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from estimator.job import Job
from estimator.layer_times import ShardCost
from estimator.memory import estimate_memory, micro_batches_in_flight
from estimator.stage_options import Machine, Parallelism, shard_of
from profiles.vocabulary import Infeasible, Recompute, Shard

LARGEST_TP = 256
"""Tensor parallelism beyond this degree is not considered: more than any island holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """`ends[n][first]` is the first layer that a stage of n devices starting at `first` can no longer hold.

    Position in the pipeline matters for memory: the first stage has the most micro-batches in flight. Stages further
    on are taken with one, the least there can be; their final price decides. `legal_counts` are the device counts that
    all layers can be shared by, whatever the memory.
    """

    ends: dict[int, tuple[int, ...]]
    legal_counts: tuple[int, ...]

    @property
    def device_counts(self) -> tuple[int, ...]:
        """Device counts that can hold some stage, ascending."""
        return tuple(n for n, ends in sorted(self.ends.items()) if any(end > first for first, end in enumerate(ends)))

    def usable(self, first: int, end: int, devices: int) -> bool:
        """Whether `devices` devices can hold layers [first, end) in at least one way."""
        ends = self.ends.get(devices)
        return ends is not None and end <= ends[first]


def find_reach(job: Job, machine: Machine, *, devices: int, stages: int, micro_batch: int, micro_batches: int) -> Reach:
    """How far stages of each device count reach, over data- and tensor-parallel-only choices and recomputation."""
    rules: tuple[Recompute, ...] = ("none", "full") if job.recompute == "auto" else (job.recompute,)
    first_in_flight = micro_batches_in_flight(
        schedule=job.schedule, stage=0, stages=stages, micro_batches=micro_batches
    )
    later_in_flight = micro_batches if job.schedule == "gpipe" else 1
    ends: dict[int, tuple[int, ...]] = {}
    legal = set()
    for count in range(1, devices - stages + 2):
        reaches = []
        for dp, tp in dict.fromkeys([(count, 1), (1, count)]):
            if micro_batch % dp or tp > LARGEST_TP:
                continue
            for rule in rules:
                way = Parallelism(dp=dp, tp=tp, recompute=rule)
                costs = _costs(job, machine, way, micro_batch)
                if not any(isinstance(cost, Infeasible) for cost in costs):
                    legal.add(count)
                reaches.append(_reach_of(job, machine, way, costs, first_in_flight, later_in_flight))
        if reaches:
            ends[count] = tuple(max(column) for column in zip(*reaches, strict=True))
    return Reach(ends=ends, legal_counts=tuple(sorted(legal)))


def _costs(job: Job, machine: Machine, way: Parallelism, micro_batch: int) -> list[ShardCost | Infeasible]:
    shard = shard_of(job, machine.device, way, micro_batch)
    assert isinstance(shard, Shard), "dp divides the micro-batch here"
    return [machine.costs.cost(layer, shard) for layer in job.model.layers]


def _reach_of(
    job: Job,
    machine: Machine,
    way: Parallelism,
    costs: list[ShardCost | Infeasible],
    first_in_flight: int,
    later_in_flight: int,
) -> list[int]:
    legal = [not isinstance(cost, Infeasible) for cost in costs]
    parameters = [0 if isinstance(cost, Infeasible) else cost.local.parameters for cost in costs]
    saved = [0 if isinstance(cost, Infeasible) else cost.saved_bytes for cost in costs]
    working = [0 if isinstance(cost, Infeasible) else cost.working_bytes for cost in costs]

    def fits(first: int, end: int, in_flight: int) -> bool:
        memory = estimate_memory(
            parameters=sum(parameters[first:end]),
            saved_bytes=sum(saved[first:end]),
            working_bytes=max(working[first:end]),
            in_flight=in_flight,
            dtype=job.dtype,
            optimizer=job.optimizer,
            zero=job.zero,
            dp=way.dp,
            capacity_bytes=machine.device.memory_bytes,
        )
        return memory.lacking_bytes(machine.device.memory_bytes) == 0

    return _two_pointers(len(costs), legal, fits, first_in_flight, later_in_flight)


def _two_pointers(
    layers: int,
    legal: list[bool],
    fits: Callable[[int, int, int], bool],
    first_in_flight: int,
    later_in_flight: int,
) -> list[int]:
    """The end of every start's reach; ends never move back, save for the first stage, which holds more in flight."""
    ends = []
    end = 0
    for first in range(layers):
        end = max(end, first)
        while end < layers and legal[end] and fits(first, end + 1, later_in_flight):
            end += 1
        ends.append(end)
    end = 0
    while end < layers and legal[end] and fits(0, end + 1, first_in_flight):
        end += 1
    ends[0] = end
    return ends
