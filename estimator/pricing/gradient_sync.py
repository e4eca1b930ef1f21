"""Communication and memory traffic once an iteration: gradients, sharded weights, the optimizer's step.

ZeRO (Rajbhandari et al. 2020, section 5) shards the optimizer's state (1), gradients too (2) and weights too (3, FSDP)
over `StageSetup.sharded_over` ranks, with a sum over the replicas of a shard (HSDP).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from estimator.pricing.amounts import Amount, Floats, least
from estimator.pricing.recipe import Recipe, ScheduleName
from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp

FLAT_COPY_PASSES = (1, 4)
"""Reads and writes of a layer's weights at each gather, and of its gradients, that a flat buffer takes: weights written
by the gather; gradients joined into the buffer, then scaled (PyTorch's FlatParameter)."""

PIECE_COPY_PASSES = 4
"""The same at each gather of a weight from a list of ranks' pieces: copied out of the collective's buffer into the
list, then joined (torch.distributed.all_gather, torch.cat: DeepSpeed's partition_parameters.py before its pull request
1188)."""

TimeOnAxis = Callable[[CollectiveOp, float, str | int], float]
"""Seconds of a collective of so many bytes on the groups of an axis (dp, shard, replicate, expert_dp), or on groups of
so many consecutive tensor-parallel ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Parameters that learn on one rank of a stage, outside and inside the experts; and those of whose gradient each of
    so many consecutive tensor-parallel ranks has a part, as (ranks, parameters) pairs."""

    dense: int
    experts: int
    partial: tuple[tuple[int, int], ...] = ()


def reduce_gradients_s(
    learning: Learning, *, zero: int, sharded_over: int, gradient_width: int, micro_batches: int, on_axis: TimeOnAxis
) -> float:
    """Seconds to sum gradients, once an iteration; under ZeRO 2, whose ranks keep their shard alone, once a
    micro-batch. ZeRO 3 sums inside its passes (`exposed_sharding_s`)."""
    if zero == 3:
        return 0.0
    size, experts = learning.dense * gradient_width, learning.experts * gradient_width
    seconds = on_axis("reduce_scatter" if zero else "all_reduce", experts, "expert_dp") if experts else 0.0
    if size and zero == 0:
        seconds += on_axis("all_reduce", size, "dp")
    elif size:
        seconds += on_axis("reduce_scatter", size, "shard") + on_axis("all_reduce", size / sharded_over, "replicate")
    return seconds * (micro_batches if zero == 2 else 1)


def sum_partial_gradients_s(
    learning: Learning, *, zero: int, gradient_width: int, micro_batches: int, on_axis: TimeOnAxis
) -> float:
    """Seconds to sum the gradients that tensor-parallel ranks have parts of, once an iteration, in one piece for each
    number of ranks (Megatron-LM, `finalize_model_grads`); under ZeRO 2, before gradients are sharded, once a
    micro-batch."""
    seconds = sum(on_axis("all_reduce", count * gradient_width, ranks) for ranks, count in learning.partial)
    return seconds * (micro_batches if zero == 2 else 1)


def gather_weights_s(learning: Learning, *, zero: int, width: float, on_axis: TimeOnAxis) -> float:
    """Seconds to bring the updated shards of the weights together again (ZeRO 1 and 2)."""
    if zero not in (1, 2):
        return 0.0
    size, experts = learning.dense * width, learning.experts * width
    gathered_s = on_axis("all_gather", experts, "expert_dp") if experts else 0.0
    return gathered_s + (on_axis("all_gather", size, "shard") if size else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedLayer:
    """One layer under ZeRO 3, a micro-batch: its compute, what its weights' gathering and gradients' scattering take,
    and `copy_s`, the passes over memory that put weights and gradients into the buffers of these collectives. Weights
    are gathered so many times; `in_turn`: each waits for its collectives."""

    forward_s: float
    backward_s: float
    gather_s: float
    scatter_s: float
    copy_s: float = 0.0
    gathers: int = 2
    in_turn: bool = False

    @property
    def moved_s(self) -> float:
        """What weights and gradients take to come and go, both passes together."""
        return self.gathers * self.gather_s + self.scatter_s

    @property
    def waited_s(self) -> float:
        """What of that is left where it runs beside the passes of an equal layer."""
        ahead_s = max(0.0, self.gather_s - self.forward_s)
        return ahead_s + max(0.0, self.gather_s + self.scatter_s - self.backward_s)


def exposed_sharding_s(
    layers: Sequence[tuple[ShardedLayer, int]], *, overlap_cost: float, overlapped: bool = True
) -> float:
    """Seconds of a micro-batch that gathering and scattering add; not `overlapped`: all of it.

    Else the next layer's weights are fetched ahead. Forward: the first layer's gather is waited for, each other one
    hides behind the layer before; backward likewise, with the gradients of one layer scattered beside the next one's
    compute. What is hidden still costs `overlap_cost` of itself: it takes memory bandwidth and multiprocessors.
    """
    copied_s = sum(count * layer.copy_s for layer, count in layers)
    moved_s = sum(count * layer.moved_s for layer, count in layers)
    if not overlapped or any(layer.in_turn for layer, _ in layers):
        return copied_s + moved_s
    waited_s = sum(count * layer.waited_s for layer, count in layers)
    ends_s = layers[0][0].gather_s + layers[-1][0].scatter_s
    return min(moved_s, ends_s + waited_s + overlap_cost * (moved_s - waited_s)) + copied_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Hiding:
    """How gradients' sums and weights' gathering hide beside passes: behind how many backward passes a sum hides, and
    beside how many forward passes a gathering."""

    sums: Amount
    gathers: float


def passes_beside(schedule: ScheduleName, stages: int, chunks: int, micro_batches: int) -> float:
    """Return beside how many of a micro-batch's passes through a stage its sums and gatherings run.

    One, as a sum starts when the last micro-batch has left its layers. Interleaved, each of v chunks' last micro-batch
    leaves it while as many micro-batches as there are stages have the later chunks before them: all but the last of v
    parts hide behind these (Megatron-LM's schedule: groups of `stages` micro-batches pass chunk after chunk; Narayanan
    et al. 2021, section 2.2). Weights' gathering is the same at the other end.
    """
    if schedule != "interleaved":
        return 1.0
    return (1 + min(stages, micro_batches) * (chunks - 1)) / chunks


def hiding_of(
    recipe: Recipe,
    zeros: Sequence[int],
    micro_batches: int,
    *,
    overlapped: bool,
    beside: float = 1.0,
) -> Hiding | None:
    """Return what hides beside passes under each of these stages of ZeRO; None where sums do not run beside them.

    A sum hides behind `beside` passes of a micro-batch (`passes_beside`); under ZeRO 2, which sums after each, behind
    all of them. Weights are gathered beside as many, unless each rank broadcasts its own in turn.
    """
    if not overlapped:
        return None
    sums = [max(beside, float(micro_batches)) if zero == 2 else beside for zero in zeros]
    return Hiding(
        sums=sums[0] if len(sums) == 1 else np.array(sums),
        gathers=0.0 if recipe.software.broadcast_weights or recipe.software.copies_pieces else beside,
    )


def exposed_sync_s(
    hiding: Hiding | None,
    overlap_cost: Amount,
    reduce_s: Amount,
    partial_s: Amount,
    gather_s: Amount,
    forward_s: Amount,
    backward_s: Amount,
) -> tuple[Amount, Amount]:
    """Return what is left of summing gradients and of gathering weights beside a micro-batch's passes. What is hidden
    costs `overlap_cost` of itself; `partial_s`, the sums over tensor-parallel ranks, wait for the last pass."""
    if hiding is None:
        return reduce_s + partial_s, gather_s
    free = 1 - overlap_cost
    reduce_s = reduce_s - least(reduce_s, hiding.sums * backward_s) * free
    if hiding.gathers:
        gather_s = gather_s - least(gather_s, hiding.gathers * forward_s) * free
    return reduce_s + partial_s, gather_s


def latest_sync_s(schedule: ScheduleName, reduce_s: Floats, gather_s: Floats, backward_s: Floats) -> Floats:
    """Return the seconds by which synchronisation ends after the pipeline: exposed sums and gathering, (stages, ...).

    A stage that ends its last backward early sums its gradients while the stages before it still work: only what
    reaches beyond the pipeline's end counts. It is early by the backward passes `backward_s` (stages, chunks, ...) of
    the stages before it under GPipe and 1F1B, one chunk of each where interleaved; the other schedules keep all stages
    busy to the end.
    """
    early_s = early_by_stage_s(schedule, backward_s)
    return np.asarray((np.maximum(0.0, reduce_s - early_s) + gather_s).max(axis=0))


def early_by_stage_s(schedule: ScheduleName, backward_s: Floats) -> Floats:
    """Return by how many seconds each stage ends its last backward before the pipeline ends, (stages, ...), as
    `latest_sync_s` takes it."""
    early_s = np.zeros_like(backward_s[:, 0])
    if schedule in ("gpipe", "1f1b", "interleaved"):
        early_s[1:] = np.cumsum(backward_s[:-1, 0], axis=0)
    return early_s
