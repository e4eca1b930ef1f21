"""Communication and memory traffic once an iteration: gradients, sharded weights, the optimizer's step.

ZeRO (Rajbhandari et al. 2020, section 5) shards the optimizer's state (1), gradients too (2) and weights too (3, FSDP)
over `StageSetup.sharded_over` ranks, with a sum over the replicas of a shard (HSDP).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from estimator.explicit.split import Work
from profiles.vocabulary import CollectiveOp

FLAT_COPY_PASSES = (2, 4)
"""Reads and writes of a layer's weights (forward and backward each) and of its gradients that a flat buffer takes:
weights written by the gather, both ways; gradients joined into the buffer, then scaled (PyTorch FSDP's FlatParameter)."""

TimeOnAxis = Callable[[CollectiveOp, float, str], float]
"""Seconds of a collective of so many bytes on the groups of an axis: dp, shard, replicate, expert_dp."""

GRAD_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Trainable and all parameters on one rank of a stage, outside and inside the experts."""

    parameters: int
    expert_parameters: int
    trainable: int
    trainable_experts: int


def held_by(works: Sequence[tuple[Work, int]], shared_parameters: int = 0) -> Held:
    """What a stage's rank holds; `shared_parameters` are counted twice in the layers and held once."""
    trains = any(work.trainable_parameters for work, _ in works)
    return Held(
        parameters=sum(work.parameters * n for work, n in works) - shared_parameters,
        expert_parameters=sum(work.expert_parameters * n for work, n in works),
        trainable=sum(work.trainable_parameters * n for work, n in works) - (shared_parameters if trains else 0),
        trainable_experts=sum(work.trainable_expert_parameters * n for work, n in works),
    )


def reduce_gradients_s(held: Held, *, zero: int, sharded_over: int, gradient_width: int, on_axis: TimeOnAxis) -> float:
    """Seconds to sum gradients at the end of an iteration without weights' gathering; ZeRO 3 sums within micro-batches
    (`sharded_weights_s`)."""
    if zero == 3:
        return 0.0
    size = held.trainable * gradient_width
    experts = held.trainable_experts * gradient_width
    seconds = on_axis("all_reduce", experts, "expert_dp") if experts else 0.0
    if not size:
        return seconds
    if zero == 0:
        return seconds + on_axis("all_reduce", size, "dp")
    return seconds + on_axis("reduce_scatter", size, "shard") + on_axis("all_reduce", size / sharded_over, "replicate")


def gather_weights_s(held: Held, *, zero: int, width: int, on_axis: TimeOnAxis) -> float:
    """Seconds to bring the updated shards of the weights together again (ZeRO 1 and 2)."""
    if zero not in (1, 2):
        return 0.0
    size = held.trainable * width
    return on_axis("all_gather", size, "shard") if size else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedLayer:
    """One layer under ZeRO 3, a micro-batch: its compute, what its weights' gathering and gradients' scattering take,
    and `copy_s`, the passes over memory that put weights and gradients into the buffers of these collectives."""

    forward_s: float
    backward_s: float
    gather_s: float
    scatter_s: float
    copy_s: float = 0.0


def exposed_sharding_s(
    layers: Sequence[tuple[ShardedLayer, int]], *, overlap_cost: float, keeps_weights: bool
) -> float:
    """Seconds of a micro-batch that gathering and scattering add, with the next layer's weights fetched ahead.

    Forward: the first layer's gather is waited for, each other one hides behind the layer before; backward likewise
    unless the weights are kept (SHARD_GRAD_OP), with the gradients of one layer scattered beside the next one's
    compute. What is hidden still costs `overlap_cost` of itself: it takes memory bandwidth and multiprocessors.
    """
    exposed = hidden = 0.0
    first = layers[0][0]
    exposed += first.gather_s
    last = layers[-1][0]
    exposed += last.scatter_s
    for layer, count in layers:
        forward_wait = max(0.0, layer.gather_s - layer.forward_s)
        moved = (0.0 if keeps_weights else layer.gather_s) + layer.scatter_s
        backward_wait = max(0.0, moved - layer.backward_s)
        exposed += count * (forward_wait + backward_wait + layer.copy_s)
        hidden += count * (layer.gather_s + moved - forward_wait - backward_wait)
    return exposed + overlap_cost * hidden
