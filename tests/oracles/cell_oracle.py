"""Brute force for `estimator.cells.cell`: every assembly of a split that is given, straight from shards, times and
formulas.

Shares `shard_layer`, `model_layer_time`, `time_collective` and `time_stage_transfer` with the estimate, and nothing of
its sums, its memory model or its search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from estimator.cells.job import Job
from estimator.cells.stage_options import Machine
from estimator.communication.collectives import describe_group, time_collective, time_stage_transfer
from estimator.compute import model_layer_time, model_working_bytes
from estimator.layers.shards import shard_layer
from models_zoo.layers import Embedding, Head
from profiles.cluster import DeviceSlot
from profiles.vocabulary import CollectiveOp, Infeasible, LayerTime, LocalLayer, Recompute, Shard

StageOfSplit = tuple[int, int, tuple[DeviceSlot, ...]]
"""First layer, end, devices."""

STATE_BYTES = {"adamw": 8, "sgd": 4}


@dataclass(frozen=True, kw_only=True)
class Priced:
    favour: str
    tp: int
    recompute: Recompute
    time_s: float
    step_s: float
    memory_bytes: int


def seconds_of(machine: Machine, op: CollectiveOp, size: float, groups: Sequence[Sequence[DeviceSlot]]) -> float:
    return max(
        time_collective(
            op,
            size,
            describe_group(machine.cluster, slots),
            tables=machine.link_tables,
            concurrent_groups=len(groups),
        ).seconds
        for slots in groups
    )


def price(
    job: Job,
    machine: Machine,
    split: Sequence[StageOfSplit],
    index: int,
    micro_batches: int,
    dp: int,
    tp: int,
    recompute: Recompute,
) -> Priced | None:
    """One stage in one way; None where it cannot be had or does not fit."""
    first, end, slots = split[index]
    micro_batch = job.global_batch // micro_batches
    if micro_batch % dp:
        return None
    shard = Shard(
        tp=tp,
        sequence_parallel=job.sequence_parallel and tp > 1,
        micro_batch_per_rank=micro_batch // dp,
        seq_len=job.seq_len,
        dtype=job.dtype,
        attention=job.attention_on(machine.device),
    )
    width = 4 if job.dtype == "fp32" else 2
    state = STATE_BYTES[job.optimizer_name]
    layers: list[LocalLayer] = []
    times: list[LayerTime] = []
    for layer in job.model.layers[first:end]:
        local = shard_layer(layer, shard)
        if isinstance(local, Infeasible):
            return None
        time = model_layer_time(
            layer,
            shard,
            local,
            device=machine.device,
            # Gradient read, fp32 weight and states read and written, 16-bit weight written.
            optimizer_bytes_per_parameter=width + 2 * (4 + state) + (2 if width == 2 else 0),
        )
        if isinstance(time, Infeasible):
            return None
        layers.append(local)
        times.append(time)
    again = recompute == "full"

    embedding, head = job.model.layers[0], job.model.layers[-1]
    assert isinstance(embedding, Embedding)
    assert isinstance(head, Head)
    table = -(-head.vocab // tp) * head.hidden if head.tied else 0
    parameters = sum(local.parameters for local in layers)
    optimizer_s = sum(time.optimizer_s for time in times)
    if len(split) == 1 and table:
        optimizer_s *= (parameters - table) / parameters
        parameters -= table

    kept = sum(local.input_bytes if again else local.saved_bytes for local in layers)
    in_flight = micro_batches if job.schedule == "gpipe" else min(micro_batches, len(split) - index)
    held = replace(shard, recompute=recompute)
    whole = job.model.layers[first:end]
    working = max(model_working_bytes(layer, held, local) for layer, local in zip(whole, layers, strict=True))
    largest = max(local.parameters for local in layers)
    if dp > 1:
        working += largest * width * {2: 1, 3: 2}.get(job.zero, 0)
    master = 4 if width == 2 else 0
    memory = kept * in_flight + working
    for stage_of_zero, size in ((3, width), (2, width), (1, state + master)):
        memory += -(-parameters * size // dp) if job.zero >= stage_of_zero else parameters * size
    if memory + round(0.08 * machine.device.memory_bytes) > machine.device.memory_bytes:
        return None

    time_s = sum(time.forward_s * (2 if again else 1) + time.backward_s for time in times)
    step_s = optimizer_s / (dp if job.zero else 1)
    for local in layers:
        for c in local.collectives:
            neighbours = [slots[i : i + c.ranks] for i in range(0, len(slots), c.ranks)]
            taken_s = seconds_of(machine, c.op, c.bytes, neighbours)
            if c.phase == "step":
                step_s += taken_s
            else:
                time_s += taken_s * (2 if again and c.phase == "forward" else 1)
    if dp > 1:
        assert tp == 1
        size = parameters * width
        if job.zero == 0:
            step_s += seconds_of(machine, "all_reduce", size, [slots])
        else:
            scatter_s = seconds_of(machine, "reduce_scatter", size, [slots])
            gather_s = seconds_of(machine, "all_gather", size, [slots])
            time_s += {1: 0.0, 2: scatter_s, 3: scatter_s + 2 * gather_s}[job.zero]
            step_s += {1: scatter_s + gather_s, 2: gather_s, 3: 0.0}[job.zero]
    if table and len(split) > 1 and index in (0, len(split) - 1):
        first_slots, last_slots = split[0][2], split[-1][2]
        pairs = [
            (first_slots[i * len(first_slots) // len(slots)], last_slots[i * len(last_slots) // len(slots)])
            for i in range(len(slots))
        ]
        step_s += seconds_of(machine, "all_reduce", table * width, pairs)
    favour = "tp" if tp > 1 else "dp"
    return Priced(favour=favour, tp=tp, recompute=recompute, time_s=time_s, step_s=step_s, memory_bytes=memory)


def price_stage(
    job: Job, machine: Machine, split: Sequence[StageOfSplit], index: int, micro_batches: int
) -> list[Priced]:
    """The stage in data and in tensor parallelism, each with the least recomputation that fits."""
    count = len(split[index][2])
    rules: tuple[Recompute, ...] = ("none", "full") if job.recompute == "auto" else (job.recompute,)
    found = []
    for dp, tp in [(count, 1), (1, count)] if count > 1 else [(1, 1)]:
        tried = (price(job, machine, split, index, micro_batches, dp, tp, rule) for rule in rules)
        found += [option for option in tried if option][:1]
    return found


def transfer_s(
    job: Job, machine: Machine, split: Sequence[StageOfSplit], index: int, tps: tuple[int, int], micro_batches: int
) -> float:
    """Both ways between stage `index` and the one before it."""
    (_, end, before), (_, _, after) = split[index - 1], split[index]
    whole = Shard(micro_batch_per_rank=job.global_batch // micro_batches, seq_len=job.seq_len, dtype=job.dtype)
    local = shard_layer(job.model.layers[end - 1], whole)
    assert isinstance(local, LocalLayer)
    ways = ((before, after, tps[1]), (after, before, tps[0]))
    return sum(
        time_stage_transfer(
            machine.cluster,
            sender,
            receiver,
            local.output_bytes,
            to_tp=tp,
            gather=not job.sequence_parallel,
            tables=machine.link_tables,
        ).total_s
        for sender, receiver, tp in ways
    )


def every_assembly(
    job: Job, machine: Machine, split: Sequence[StageOfSplit], micro_batches: int, formula: str
) -> list[tuple[float, tuple[str, ...]]]:
    """(iteration time, favours) of all assemblies, fastest first; none if a stage has no option left."""
    options = [price_stage(job, machine, split, index, micro_batches) for index in range(len(split))]
    found = []
    for chosen in product(*options):
        tps = [(before.tp, after.tp) for before, after in pairwise(chosen)]
        c = [0.0, *(transfer_s(job, machine, split, i + 1, pair, micro_batches) for i, pair in enumerate(tps))]
        t = [option.time_s + transfer for option, transfer in zip(chosen, c, strict=True)]
        if formula == "crius":
            slowest = max(range(len(t)), key=lambda i: (t[i], t[i] - c[i]))
            pace = t[slowest] - c[slowest]
        else:
            pace = max(max(t[i] - c[i], c[i]) for i in range(len(t)))
        total = sum(t) + (micro_batches - 1) * pace + max(option.step_s for option in chosen)
        found.append((total, tuple(option.favour for option in chosen)))
    return sorted(found)
