"""What a stage costs under one choice of data and tensor parallelism: compute, collectives, gradient sync, memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from estimator.cells.job import Job
from estimator.communication.collectives import CollectiveTime, Group, describe_group, time_collective
from estimator.layer_times import LayerCosts, ShardCost
from estimator.layers.graph import repeated_parameters, shared_weights
from estimator.memory import Memory, estimate_memory, micro_batches_in_flight
from models_zoo.layers import Layer, SharedWeights
from profiles.cluster import Cluster, DeviceSlot
from profiles.vocabulary import (
    CollectiveOp,
    Device,
    Infeasible,
    LinkTable,
    Phase,
    Provenance,
    Recompute,
    Shard,
    combine_provenance,
    held_bytes,
)

Favour = Literal["dp", "tp"]
Costs = list[tuple[ShardCost, int]]
"""A stage's distinct layers, each with how often it occurs."""


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

    `blocking_s` are the collectives that forward and backward wait for. `spread_s` is how far below and above
    the compute time the 90% range reaches that the profiles behind it show. `link_table_ids` names the tables behind
    the times of collectives.
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
    link_table_ids: tuple[str, ...]
    profile_ids: tuple[str, ...]
    spread_s: tuple[float, float]

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
    """Where a stage stands: its layers, from the model's layer `first` on, its devices in rank order, and its `index`
    among the pipeline's `stages`; and the batch: `micro_batch` samples at a time, `micro_batches` an iteration.

    `pipeline` holds every stage's first layer and devices; empty where nothing is known of the others.
    """

    first: int
    layers: tuple[Layer, ...]
    slots: tuple[DeviceSlot, ...]
    index: int
    stages: int
    micro_batch: int
    micro_batches: int
    pipeline: tuple[tuple[int, tuple[DeviceSlot, ...]], ...] = ()


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
    listed = sum(cost.local.parameters * count for cost, count in costs)
    shared = shared_weights(job.model, parallelism.tp)
    parameters = listed - repeated_parameters(shared, place.first, place.first + len(place.layers))
    memory = _stage_memory(job, machine.device, place, parallelism, costs, parameters)
    lacking = memory.lacking_bytes(machine.device.memory_bytes)
    if lacking:
        return Infeasible(
            reason=f"dp={parallelism.dp} tp={parallelism.tp} recompute={parallelism.recompute}: needs"
            f" {memory.peak_bytes / 2**30:.4g} GiB and {memory.reserve_bytes / 2**30:.4g} GiB reserve, the device has"
            f" {machine.device.memory_bytes / 2**30:.4g} GiB",
            lacking="memory",
            lacking_bytes=lacking,
        )
    communication = _StageCommunication(job, machine, place, parallelism)
    blocking_s, partial_sums_step_s = communication.layer_collectives(costs)
    sharding_s, sync_step_s = communication.data_parallel(parameters)
    optimizer_s = sum(cost.time.optimizer_s * count for cost, count in costs) * parameters / max(1, listed)
    return StageOption(
        parallelism=parallelism,
        compute_s=sum((cost.time.forward_s + cost.time.backward_s) * count for cost, count in costs),
        blocking_s=blocking_s + sharding_s,
        gradient_sync_step_s=partial_sums_step_s + sync_step_s + communication.shared_weights(shared),
        optimizer_step_s=optimizer_s / (parallelism.dp if job.zero else 1),
        memory=memory,
        compute_provenance=combine_provenance(tuple(cost.time.provenance for cost, _ in costs)),
        communication_provenance=communication.provenance(),
        communication_basis=communication.basis(),
        link_table_ids=communication.link_table_ids(),
        profile_ids=tuple(sorted({cost.time.profile_id for cost, _ in costs if cost.time.profile_id})),
        spread_s=_spread(costs),
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


def _layer_costs(costs: LayerCosts, layers: Sequence[Layer], shard: Shard) -> Costs | Infeasible:
    found: Costs = []
    for layer, count in Counter(layers).items():
        cost = costs.cost(layer, shard)
        if isinstance(cost, Infeasible):
            return cost
        found.append((cost, count))
    return found


def _spread(costs: Costs) -> tuple[float, float]:
    """Seconds below and above the compute time, if all layers err the same way."""
    times = [(cost.time, (cost.time.forward_s + cost.time.backward_s) * count) for cost, count in costs]
    return (
        sum(time.relative_low * seconds for time, seconds in times),
        sum(time.relative_high * seconds for time, seconds in times),
    )


def _stage_memory(
    job: Job, device: Device, place: StagePlace, parallelism: Parallelism, costs: Costs, parameters: int
) -> Memory:
    return estimate_memory(
        parameters=parameters,
        layer_parameters=max(cost.local.parameters for cost, _ in costs),
        saved_bytes=sum(cost.saved_bytes * count for cost, count in costs),
        working_bytes=max(cost.working_bytes for cost, _ in costs),
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
    """Times the collectives of one stage's ranks and remembers where the times came from."""

    def __init__(self, job: Job, machine: Machine, place: StagePlace, parallelism: Parallelism) -> None:
        self._job = job
        self._machine = machine
        self._place = place
        self._parallelism = parallelism
        self._timed: list[CollectiveTime] = []

    def provenance(self) -> Provenance | None:
        """Provenance of all that was timed; None where nothing had to be communicated."""
        return combine_provenance(tuple(time.provenance for time in self._timed)) if self._timed else None

    def basis(self) -> tuple[str, ...]:
        """Which tables and algorithms gave the times."""
        return tuple(sorted({time.how for time in self._timed}))

    def link_table_ids(self) -> tuple[str, ...]:
        """The tables among them."""
        return tuple(sorted({name for time in self._timed for name in time.table_ids}))

    def layer_collectives(self, costs: Costs) -> tuple[float, float]:
        """(seconds per micro-batch that forward and backward wait, seconds once an iteration) of the layers' own
        collectives. With full recomputation forward's are issued once more."""
        forward_times = 2 if self._parallelism.recompute == "full" else 1
        wanted: Counter[tuple[CollectiveOp, int, int, Phase]] = Counter()
        for cost, count in costs:
            for collective in cost.local.collectives:
                wanted[collective.op, collective.bytes, collective.ranks, collective.phase] += count
        blocking_s = step_s = 0.0
        for (op, size, ranks, phase), count in wanted.items():
            seconds = self._slowest(op, size, self._neighbours(ranks)) * count
            if phase == "step":
                step_s += seconds
            else:
                blocking_s += seconds * (forward_times if phase == "forward" else 1)
        return blocking_s, step_s

    def data_parallel(self, parameters: int) -> tuple[float, float]:
        """(seconds per micro-batch, seconds once an iteration) that replicas of `parameters` take to stay alike.

        Not overlapped with backward. ZeRO 1 reduce-scatters gradients and all-gathers weights, once an iteration. ZeRO
        2, which holds a mere shard of the gradients, reduce-scatters those of every micro-batch; ZeRO 3 besides gathers
        the weights for every forward and backward, and not after the step.
        """
        if self._parallelism.dp == 1:
            return 0.0, 0.0
        size = parameters * held_bytes(self._job.dtype)
        if self._job.zero == 0:
            return 0.0, self._slowest("all_reduce", size, self._replicas())
        scatter_s = self._slowest("reduce_scatter", size, self._replicas())
        gather_s = self._slowest("all_gather", size, self._replicas())
        match self._job.zero:
            case 1:
                return 0.0, scatter_s + gather_s
            case 2:
                return scatter_s, gather_s
            case 3:
                return scatter_s + 2 * gather_s, 0.0

    def shared_weights(self, shared: Sequence[SharedWeights]) -> float:
        """Seconds once an iteration to add up the gradients of weights that other stages hold too, group after group.

        An all-reduce of this stage's shard between one rank of each such stage, all ranks at once. Where the stages
        shard it differently the longest one counts, as it does of all that is done once an iteration.
        """
        place, ranks = self._place, len(self._place.slots)
        starts = [first for first, _ in place.pipeline]
        seconds = 0.0
        for one in shared:
            stages = sorted({bisect_right(starts, holder) - 1 for holder in one.holders})
            if place.index not in stages or len(stages) == 1:
                continue
            holding = [place.pipeline[stage][1] for stage in stages]
            partners = [tuple(slots[i * len(slots) // ranks] for slots in holding) for i in range(ranks)]
            seconds += self._slowest("all_reduce", one.parameters * held_bytes(self._job.dtype), partners)
        return seconds

    def _neighbours(self, ranks: int) -> list[tuple[DeviceSlot, ...]]:
        """The tensor-parallel groups, or the parts of them that hold the same key-value heads."""
        slots = self._place.slots
        return [slots[i : i + ranks] for i in range(0, len(slots), ranks)]

    def _replicas(self) -> list[tuple[DeviceSlot, ...]]:
        """For each shard the ranks that hold it."""
        tp = self._parallelism.tp
        return [self._place.slots[shard::tp] for shard in range(tp)]

    def _slowest(self, op: CollectiveOp, size: int, slots_of_groups: list[tuple[DeviceSlot, ...]]) -> float:
        """Seconds of the slowest of these groups, all of them busy at once."""
        times = [
            time_collective(op, size, group, tables=self._machine.link_tables, concurrent_groups=len(slots_of_groups))
            for group in self._groups(slots_of_groups)
        ]
        slowest = max(times, key=lambda time: time.seconds)
        self._timed.append(slowest)
        return slowest.seconds

    def _groups(self, slots_of_groups: list[tuple[DeviceSlot, ...]]) -> dict[Group, None]:
        """The different ones, in order: of equally slow groups the first is named, whatever the hash seed."""
        return dict.fromkeys(describe_group(self._machine.cluster, slots) for slots in slots_of_groups)
