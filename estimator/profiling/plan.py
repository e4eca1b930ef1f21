"""What to measure, and in which order: the distinct local shards of a model's layers. Pure; nothing is run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product

from estimator.layers.shards import shard_layer
from models_zoo.layers import Layer
from models_zoo.model import Model
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import AttentionKernel, DType, Infeasible, LocalLayer, Recompute, Shard

BALANCE_FLOPS_PER_BYTE = 50.0
"""Arithmetic that a device does in the time of one byte of memory traffic: 10 for a CPU core, 50 to 300 for GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTask:
    """One local shard to measure, or (`infeasible`) why it cannot be had.

    `multiplicity` is how many of the model's layers it stands for, `work` the FLOP-equivalents of one micro-batch
    through it, `share` the part of the model's work at the same degree and micro-batch that its layers do: 0..1, and 0
    at a degree that some other layer cannot have, since few stages can use that one.
    """

    layer: Layer
    shard: Shard
    name: str
    multiplicity: int
    work: float = 0.0
    share: float = 0.0
    infeasible: Infeasible | None = None

    @property
    def label(self) -> str:
        """What a person reads in a progress bar: `block.0 (24 alike) tp=2 mb=4`."""
        alike = f" ({self.multiplicity} alike)" if self.multiplicity > 1 else ""
        return f"{self.name}{alike} tp={self.shard.tp} mb={self.shard.micro_batch_per_rank}"


def plan_profile(
    model: Model,
    *,
    degrees: Sequence[int],
    micro_batches_per_rank: Sequence[int],
    seq_len: int | None = None,
    dtype: DType = "bf16",
    attention: AttentionKernel = "flash",
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
) -> tuple[ProfileTask, ...]:
    """Return the distinct local shards of `model` for every degree and micro-batch size, the most important first.

    Equal layers are one task. The order: first the smallest set from which a Cell can be estimated, which is every
    layer at the lowest degree and the smallest micro-batch; then the rest by their share of the work at their own
    degree and micro-batch, so that a budget that ends early leaves the lightest layers to the model. Within each,
    ties go to the lower degree, the smaller micro-batch and the earlier layer. What cannot be had stands last, with
    its reason.

    `seq_len` is tokens per sample (None: the model's own). Sequence parallelism means nothing at degree 1 and is off
    there. Raises InputError for no or non-positive degrees or micro-batches.
    """
    for key, values in (("degrees", degrees), ("micro-batches", micro_batches_per_rank)):
        if not values or min(values) < 1:
            raise InputError(where="profile", key=key, found=list(values), expected="one or more positive integers")
    shards = (
        Shard(
            tp=tp,
            sequence_parallel=sequence_parallel and tp > 1,
            micro_batch_per_rank=micro_batch,
            seq_len=model.seq_len if seq_len is None else seq_len,
            dtype=dtype,
            attention=attention,
            recompute=recompute,
        )
        for tp, micro_batch in product(sorted(set(degrees)), sorted(set(micro_batches_per_rank)))
    )
    everything = frozenset(model.layers)
    return plan_shards(model, dict.fromkeys(shards, everything))


def plan_shards(model: Model, wanted: Mapping[Shard, Collection[Layer]]) -> tuple[ProfileTask, ...]:
    """Return a task for each layer wanted of `model` and the shard it is wanted as, in the order of `plan_profile`."""
    degree_and_size = {shard: (shard.tp, shard.micro_batch_per_rank) for shard in wanted}
    first = min(degree_and_size.values(), default=None)
    tasks = [
        task
        for shard in sorted(wanted, key=degree_and_size.__getitem__)
        for task in _tasks_of_set(model, shard)
        if task.layer in wanted[shard]
    ]

    def importance(task: ProfileTask) -> tuple[bool, bool, float]:
        return (task.infeasible is not None, degree_and_size[task.shard] != first, -task.share)

    return tuple(sorted(tasks, key=importance))


def expected_work(local: LocalLayer, *, recompute: Recompute) -> float:
    """Return the FLOP-equivalents of one micro-batch, forward and backward: each operator's FLOPs or its traffic,
    whichever takes longer on a device of `BALANCE_FLOPS_PER_BYTE`. A rough weight for ordering and for guessing a
    task's cost."""

    def passed(flops: int, moved: int) -> float:
        return max(float(flops), moved * BALANCE_FLOPS_PER_BYTE)

    forward = sum(passed(op.forward_flops, op.forward_bytes) for op in local.operators)
    backward = sum(passed(op.backward_flops, op.backward_bytes) for op in local.operators)
    return (2 if recompute == "full" else 1) * forward + backward


def _tasks_of_set(model: Model, shard: Shard) -> list[ProfileTask]:
    """One task for each distinct layer held as `shard`, in the model's order."""
    tasks = []
    for layer, count in Counter(model.layers).items():
        task = ProfileTask(
            layer=layer, shard=shard, name=model.layer_names[model.layers.index(layer)], multiplicity=count
        )
        local = shard_layer(layer, shard)
        if isinstance(local, Infeasible):
            tasks.append(replace(task, infeasible=local))
            continue
        work = expected_work(local, recompute=shard.recompute)
        tasks.append(replace(task, work=work))
    total = sum(task.work * task.multiplicity for task in tasks)
    if not total or any(task.infeasible for task in tasks):
        return tasks
    return [replace(task, share=task.work * task.multiplicity / total) for task in tasks]
