"""What a stage costs under one choice of data and tensor parallelism: compute, collectives, gradient sync, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from estimator.collectives import CollectiveTime, Group, describe_group, time_collective
from estimator.job import Job
from estimator.layer_times import LayerCosts, ShardCost
from estimator.memory import Memory, estimate_memory, micro_batches_in_flight
from models_zoo.layers import Layer
from profiles.cluster import Cluster, DeviceSlot
from profiles.vocabulary import (
    DTYPE_BYTES,
    Collective,
    CollectiveOp,
    Device,
    Infeasible,
    LinkTable,
    Provenance,
    Recompute,
    Shard,
    combine_provenance,
)

Favour = Literal["dp", "tp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a stage's devices are used: `dp` replicas of `tp` shards, tp the faster rank axis."""

    dp: int
    tp: int
    recompute: Recompute = "none"

    @property
    def devices(self) -> int:
        return self.dp * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOption:
    """One stage under one choice. Times are per micro-batch, except the two that end on `_step_s` (once an iteration).

    `blocking_s` are the collectives that forward and backward wait for. `spread_s` is the half-width of the 90% range
    that the profiles behind the time show.
    """

    parallelism: Parallelism
    compute_s: float
    blocking_s: float
    gradient_sync_step_s: float
    optimizer_step_s: float
    memory: Memory
    compute_provenance: Provenance
    communication_provenance: Provenance | None
    communication_basis: tuple[str, ...]
    profile_ids: tuple[str, ...]
    spread_s: float

    @property
    def time_s(self) -> float:
        """Forward, backward and blocking collectives of one micro-batch."""
        return self.compute_s + self.blocking_s

    @property
    def step_s(self) -> float:
        """Gradient synchronisation and optimizer, once an iteration."""
        return self.gradient_sync_step_s + self.optimizer_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """Where a stage stands: its layers, from the model's layer `first` on, its devices, its place in the pipeline."""

    first: int
    layers: tuple[Layer, ...]
    slots: tuple[DeviceSlot, ...]
    index: int
    stages: int
    micro_batch: int
    micro_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The hardware that a Cell runs on, and what is known of it."""

    cluster: Cluster
    device: Device
    link_tables: tuple[LinkTable, ...]
    costs: LayerCosts


def shard_of(job: Job, device: Device, parallelism: Parallelism, micro_batch: int) -> Shard | Infeasible:
    """The shard that every layer of a stage is held as; Infeasible if dp does not divide the micro-batch."""
    if micro_batch % parallelism.dp:
        return Infeasible(
            reason=f"dp={parallelism.dp} does not divide the micro-batch of {micro_batch} samples",
            lacking="divisibility",
        )
    return Shard(
        tp=parallelism.tp,
        sequence_parallel=job.sequence_parallel and parallelism.tp > 1,
        micro_batch_per_rank=micro_batch // parallelism.dp,
        seq_len=job.seq_len,
        dtype=job.dtype,
        attention=job.attention_on(device),
        recompute=parallelism.recompute,
    )


def estimate_option(
    job: Job, machine: Machine, place: StagePlace, parallelism: Parallelism
) -> StageOption | Infeasible:
    """Cost of a stage under `parallelism`; Infeasible with the reason if a layer cannot have the degree, the dp does
    not divide the micro-batch, or the memory does not suffice (Crius section 5.1: such a choice is dropped)."""
    shard = shard_of(job, machine.device, parallelism, place.micro_batch)
    if isinstance(shard, Infeasible):
        return shard
    costs = _layer_costs(machine.costs, place.layers, shard)
    if isinstance(costs, Infeasible):
        return costs
    memory = _stage_memory(job, machine.device, place, parallelism, costs)
    lacking = memory.lacking_bytes(machine.device.memory_bytes)
    if lacking:
        return Infeasible(
            reason=f"dp={parallelism.dp} tp={parallelism.tp} recompute={parallelism.recompute}: needs"
            f" {memory.peak_bytes / 2**30:.1f} GiB and {memory.reserve_bytes / 2**30:.1f} GiB reserve, the device has"
            f" {machine.device.memory_bytes / 2**30:.1f} GiB",
            lacking="memory",
            lacking_bytes=lacking,
        )
    communication = _StageCommunication(machine, place.slots, parallelism)
    blocking_s, step_s = communication.layer_collectives(costs)
    sync_s, gather_s = communication.data_parallel(
        parameters=sum(cost.local.parameters * count for cost, count in costs.items()), job=job
    )
    times = [(cost.time, count) for cost, count in costs.items()]
    return StageOption(
        parallelism=parallelism,
        compute_s=sum((time.forward_s + time.backward_s) * count for time, count in times),
        blocking_s=blocking_s + gather_s,
        gradient_sync_step_s=step_s + sync_s,
        optimizer_step_s=sum(time.optimizer_s * count for time, count in times) / (parallelism.dp if job.zero else 1),
        memory=memory,
        compute_provenance=combine_provenance(tuple(time.provenance for time, _ in times)),
        communication_provenance=communication.provenance(),
        communication_basis=communication.basis(),
        profile_ids=tuple(sorted({time.profile_id for time, _ in times if time.profile_id})),
        spread_s=sum(time.relative_spread * (time.forward_s + time.backward_s) * count for time, count in times),
    )


def best_recompute(job: Job, machine: Machine, place: StagePlace, *, dp: int, tp: int) -> StageOption | Infeasible:
    """The option with the least recomputation that fits: what `job.recompute` says, or none and then full for auto."""
    rules: tuple[Recompute, ...] = ("none", "full") if job.recompute == "auto" else (job.recompute,)
    option: StageOption | Infeasible | None = None
    for rule in rules:
        option = estimate_option(job, machine, place, Parallelism(dp=dp, tp=tp, recompute=rule))
        if isinstance(option, StageOption) or option.lacking != "memory":
            return option
    assert option is not None, "no recomputation rule was tried"
    return option


def _layer_costs(costs: LayerCosts, layers: Sequence[Layer], shard: Shard) -> Counter[ShardCost] | Infeasible:
    found: Counter[ShardCost] = Counter()
    for layer, count in Counter(layers).items():
        cost = costs.cost(layer, shard)
        if isinstance(cost, Infeasible):
            return replace(cost, reason=f"tp={shard.tp}: {cost.reason}" if shard.tp > 1 else cost.reason)
        found[cost] += count
    return found


def _stage_memory(
    job: Job, device: Device, place: StagePlace, parallelism: Parallelism, costs: Counter[ShardCost]
) -> Memory:
    return estimate_memory(
        parameters=sum(cost.local.parameters * count for cost, count in costs.items()),
        saved_bytes=sum(cost.saved_bytes * count for cost, count in costs.items()),
        working_bytes=max(cost.working_bytes for cost in costs),
        in_flight=micro_batches_in_flight(
            schedule=job.schedule, stage=place.index, stages=place.stages, micro_batches=place.micro_batches
        ),
        dtype=job.dtype,
        optimizer=job.optimizer,
        zero=job.zero,
        dp=parallelism.dp,
        capacity_bytes=device.memory_bytes,
    )


class _StageCommunication:
    """Times the collectives inside one stage and remembers where the times came from."""

    def __init__(self, machine: Machine, slots: tuple[DeviceSlot, ...], parallelism: Parallelism) -> None:
        self._machine = machine
        self._parallelism = parallelism
        tp, dp = parallelism.tp, parallelism.dp
        self._tp_groups = {describe_group(machine.cluster, slots[r * tp : (r + 1) * tp]) for r in range(dp)}
        self._dp_groups = {describe_group(machine.cluster, slots[r::tp]) for r in range(tp)}
        self._timed: list[CollectiveTime] = []

    def provenance(self) -> Provenance | None:
        """Provenance of all that was timed; None where nothing had to be communicated."""
        return combine_provenance(tuple(time.provenance for time in self._timed)) if self._timed else None

    def basis(self) -> tuple[str, ...]:
        """Which tables and algorithms gave the times."""
        return tuple(sorted({time.how for time in self._timed}))

    def layer_collectives(self, costs: Counter[ShardCost]) -> tuple[float, float]:
        """(seconds per micro-batch that forward and backward wait, seconds once an iteration) of the layers' own
        collectives. With full recomputation forward's are issued once more."""
        forward_times = 2 if self._parallelism.recompute == "full" else 1
        wanted: Counter[Collective] = Counter()
        for cost, count in costs.items():
            for collective in cost.local.collectives:
                wanted[collective] += count
        blocking_s = step_s = 0.0
        for collective, count in wanted.items():
            seconds = self._slowest(self._tp_groups, collective.op, collective.bytes, self._parallelism.dp) * count
            if collective.phase == "step":
                step_s += seconds
            else:
                blocking_s += seconds * (forward_times if collective.phase == "forward" else 1)
        return blocking_s, step_s

    def data_parallel(self, *, parameters: int, job: Job) -> tuple[float, float]:
        """(gradient synchronisation once an iteration, weight gathers per micro-batch under ZeRO 3), in seconds.

        Not overlapped with backward. ZeRO 1 and 2 reduce-scatter gradients and all-gather weights, ZeRO 3 gathers
        the weights before forward and before backward instead.
        """
        if self._parallelism.dp == 1:
            return 0.0, 0.0
        size = parameters * DTYPE_BYTES[job.dtype]

        def timed(op: CollectiveOp) -> float:
            return self._slowest(self._dp_groups, op, size, self._parallelism.tp)

        if job.zero == 0:
            return timed("all_reduce"), 0.0
        if job.zero == 3:
            return timed("reduce_scatter"), 2 * timed("all_gather")
        return timed("reduce_scatter") + timed("all_gather"), 0.0

    def _slowest(self, groups: set[Group], op: CollectiveOp, size: int, concurrent: int) -> float:
        times = [
            time_collective(op, size, group, tables=self._machine.link_tables, concurrent_groups=concurrent)
            for group in groups
        ]
        slowest = max(times, key=lambda time: time.seconds)
        self._timed.append(slowest)
        return slowest.seconds
