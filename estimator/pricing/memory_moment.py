"""What lives on a rank at the fullest moment of its passes: what is in flight, and what one layer needs as it runs.

What a rank holds whatever the schedule does stands in `memory.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod

from estimator.layers.split import Work
from estimator.pricing.memory_features import MemoryFeatures
from estimator.pricing.offload import offloaded_share
from estimator.pricing.recipe import Recipe, StageSetup
from estimator.pricing.stage_work import ChunkWork
from profiles.records import dataclass
from profiles.vocabulary import Operator, held_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What lives besides weights and their state."""

    activation_bytes: int
    temporary_bytes: int


def moment_of(
    chunks: Sequence[ChunkWork],
    in_flight: Sequence[float],
    stage: StageSetup,
    recipe: Recipe,
    features: MemoryFeatures,
) -> Moment:
    """Return the moment of a layer's pass at which most lives: all that is in flight, less what backward has freed."""
    width = held_bytes(recipe.dtype)
    kept = sum(
        flying * sum((work.saved_bytes + _gathered_bytes(work, stage, features)) * count for work, count in chunk.works)
        for chunk, flying in zip(chunks, in_flight, strict=True)
    )
    if "activations" in stage.offload:
        here = _on_device_bytes(work for chunk in chunks for work, _ in chunk.works)
        kept += offloaded_share(recipe) * (here - kept)
    cached = cached_scratch((work for chunk in chunks for work, _ in chunk.works), recipe, features)
    staying = 1 - offloaded_share(recipe) if "activations" in stage.offload else 1.0
    moments = [
        fullest_moment(
            [
                (
                    work.saved_bytes if work.is_end else round(staying * work.saved_bytes),
                    layer_bytes(work, width, features),
                    count,
                )
                for work, count in chunk.works
            ]
        )
        for number, chunk in enumerate(chunks)
        if number == 0 or chunk.works != chunks[number - 1].works
    ]
    extra, freed = max(moments, key=lambda both: both[0] - both[1])
    return Moment(activation_bytes=round(kept) - freed, temporary_bytes=cached + extra)


def _gathered_bytes(work: Work, stage: StageSetup, features: MemoryFeatures) -> int:
    """What a block keeps of its products' inputs beside its own share, where it keeps them as gathered."""
    if not features.keeps_gathered or work.is_end or work.again:
        return 0
    gathered = sum(
        each.bytes for each in work.collectives if (each.op, each.axis, each.phase) == ("all_gather", "tp", "forward")
    )
    return gathered - gathered // stage.tp


def _on_device_bytes(works: Iterable[Work]) -> int:
    """What stays on the device of activations that are kept on the host: one block's while they are copied, and the
    next one's; embedding and head are no checkpoints and keep their own."""
    listed = tuple(works)
    blocks = max((work.saved_bytes for work in listed if not work.is_end), default=0)
    return 2 * blocks + sum(work.saved_bytes for work in listed if work.is_end)


def fullest_moment(layers: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Return, of the moment in a backward pass at which most lives, what lives for that layer alone and what the layers
    after it have given back; zeros where nothing lives beside what is kept. `layers`: bytes that one keeps and bytes
    that live while it runs, and how many such layers follow each other."""
    extra = freed = past = 0
    for saved, alone, count in reversed(layers):
        if alone - past > extra - freed:
            extra, freed = alone, past
        past += saved * count
    return extra, freed


def cached_scratch(works: Iterable[Work], recipe: Recipe, features: MemoryFeatures) -> int:
    """Return the bytes of weight gradients' scratch that the software keeps: a buffer for each distinct shape of the
    matrices inside blocks."""
    if features.weight_gradient_scratch != "cached":
        return 0
    shapes = {
        (op.shape[-2], op.shape[-1])
        for work in works
        if not work.is_end
        for op in work.operators
        if op.kind == "gemm" and _learns(op, work)
    }
    return sum(n * k for n, k in shapes) * held_bytes(recipe.dtype)


def _learns(op: Operator, work: Work) -> bool:
    """Whether the weight of a product learns: of a frozen layer the adapters' alone."""
    return not work.frozen or ".lora_" in op.name


def layer_bytes(work: Work, width: int, features: MemoryFeatures, backward: int | None = None) -> int:
    """The most that lives only while one layer runs: forward its own, backward gradients (and what was recomputed).
    `backward`: its `backward_bytes`, where they are known."""
    gathered = max(
        (one.bytes for one in work.collectives if one.op == "all_gather" and one.axis == "tp"),
        default=0,
    )
    if gathered:
        # The gradient of what was gathered is whole, then this rank's slice of it.
        gathered += work.input_bytes
    recomputed = work.temporary_bytes if work.again else gathered
    held_backward = backward_bytes(work, width, features) if backward is None else backward
    return max(work.temporary_bytes, recomputed + held_backward)


@lru_cache(maxsize=16384)
def backward_bytes(work: Work, width: int, features: MemoryFeatures) -> int:
    """Return the most that a layer's backward holds beyond what was kept for it, as its operators run from last to
    first; the same whatever of it is computed again.

    An operator's backward holds the gradients of its result and of its input; what later operators kept is free by
    then. The last one's result is the layer's own, whose gradient the residual stream carries along.
    """
    end = work.is_end
    carried = 0 if end else work.output_bytes
    most = freed = 0
    for number, op in enumerate(reversed(work.operators)):
        if number or not end:
            scratch = _scratch_bytes(op, width, features, end=end) if _learns(op, work) else 0
            most = max(most, _gradient_bytes(op, width) + scratch + carried - freed)
        freed += op.saved_bytes
    return most


def _scratch_bytes(op: Operator, width: int, features: MemoryFeatures, *, end: bool) -> int:
    """What one product's backward hands over beside the gradient buffer; grouped products do so for each expert."""
    kind = features.weight_gradient_scratch
    if op.kind == "grouped_gemm" and kind != "none":
        groups, _, n, k = op.shape
        return groups * n * k * width
    if op.kind == "gemm" and (kind == "current" or (end and kind == "cached")):
        return op.shape[1] * op.shape[2] * width
    return 0


def _gradient_bytes(op: Operator, width: int) -> int:
    """Bytes of the gradients of an operator's result and inputs."""
    match op.kind:
        case "gemm":
            m, n, k = op.shape
            return m * (n + k) * width
        case "grouped_gemm" | "batched_gemm":
            groups, m, n, k = op.shape
            other = n * k if op.kind == "batched_gemm" else 0
            return groups * (m * (n + k) + other) * width
        case "attention":
            batch, heads, kv_heads, q_len, _, qk_dim, v_dim, _ = op.shape
            return batch * q_len * (heads * (qk_dim + v_dim) + kv_heads * (qk_dim + v_dim)) * width
        case "memory":
            elements = op.shape[0] * width
            # A gated activation's input is as large as what it keeps of it.
            return elements + max(elements, op.saved_bytes)
        case "conv":
            batch, c_in, c_out, out_h, out_w, _, _, stride = op.shape
            return batch * out_h * out_w * (c_out + c_in * stride * stride) * width
        case _:
            return 2 * prod(op.shape) * width
