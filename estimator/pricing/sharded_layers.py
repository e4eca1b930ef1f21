"""What it takes to bring sharded weights and gradients together: layer by layer under ZeRO 3, piece by piece where the
host copies each rank's."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.layers.split import Work
from estimator.pricing.gradient_sync import (
    FLAT_COPY_PASSES,
    PIECE_COPY_PASSES,
    ShardedLayer,
    TimeOnAxis,
    exposed_sharding_s,
)
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.pass_time import Machine, backward_pass, forward_pass
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from estimator.pricing.stage_work import ChunkWork
from profiles.training_parameters import TrainingParameters
from profiles.vocabulary import DTYPE_BYTES, CollectiveOp, LayerTime, held_bytes


def sharding_s(
    chunk: ChunkWork,
    profiles: Sequence[LayerTime | None],
    machine: Machine,
    stage: StageSetup,
    setup: Setup,
    on_axis: TimeOnAxis,
) -> float:
    """Return the seconds that ZeRO 3 adds to a micro-batch through a chunk."""
    if stage.zero != 3 or stage.dp * stage.cp == 1:
        return 0.0
    recipe = setup.recipe
    layers = [
        (
            sharded_layer(work, layer_passes_s(work, profile, machine), machine, stage.sharded_over, recipe, on_axis),
            count,
        )
        for (work, count), profile in zip(chunk.works, profiles, strict=True)
    ]
    return exposed_sharding_s(
        layers,
        overlap_cost=machine.parameters.of("overlap_cost", "fsdp"),
        overlapped="dp" in recipe.overlap,
    )


def layer_passes_s(work: Work, profile: LayerTime | None, machine: Machine) -> tuple[float, float]:
    """Return the seconds of one micro-batch forward and backward through one layer by itself."""
    both = forward_pass([(work, 1)], machine, [profile]), backward_pass([(work, 1)], machine, [profile])
    return both[0].total_s, both[1].total_s


def sharded_layer(
    work: Work,
    passes_s: tuple[float, float],
    machine: Machine,
    sharded_over: int,
    recipe: Recipe,
    on_axis: TimeOnAxis,
) -> ShardedLayer:
    """Return one layer under ZeRO 3 over so many ranks: its passes (`layer_passes_s`), and what its weights and
    gradients take to come and go."""
    width, grads = held_bytes(recipe.dtype), GRAD_WIDTH[recipe.grad_dtype]
    in_turn, copies, gathers = recipe.software.weights_in_turn, FLAT_COPY_PASSES[0], 2
    scatter_on_axis = on_axis
    if in_turn:
        matrices, pieces_s = matrices_of(work), sharded_over * machine.parameters.of("launch_piece_s")
        scatter_on_axis = _each_weight(on_axis, matrices + work.vectors, pieces_s)
        on_axis = _each_weight(on_axis, matrices, pieces_s)
        copies, gathers = PIECE_COPY_PASSES, 2 + any(op.kind in ("gemm", "grouped_gemm") for op in work.again)
    sums = work.trainable_parameters * grads
    gathered = gathered_bytes(recipe)
    gather_s = on_axis("all_gather", work.parameters * gathered, "shard")
    gather_s += on_axis("all_gather", work.expert_parameters * gathered, "expert_dp")
    scatter_s = scatter_on_axis("reduce_scatter", sums, "shard")
    scatter_s += scatter_on_axis("all_reduce", sums / sharded_over, "replicate")
    scatter_s += scatter_on_axis("reduce_scatter", work.trainable_expert_parameters * grads, "expert_dp")
    weights = work.parameters + work.expert_parameters
    learning = work.trainable_parameters + work.trainable_expert_parameters
    copied = copies * gathers * weights + FLAT_COPY_PASSES[1] * learning
    return ShardedLayer(
        forward_s=passes_s[0],
        backward_s=passes_s[1],
        gather_s=gather_s,
        scatter_s=scatter_s,
        copy_s=copied * width / machine.bandwidth_bytes_per_s if sharded_over > 1 else 0.0,
        gathers=gathers,
        in_turn=in_turn,
    )


def gathered_bytes(recipe: Recipe) -> float:
    """Return the bytes of a weight as it is gathered: as it is held, or as products take it."""
    narrow = recipe.software.narrow_parameters and recipe.dtype != "nvfp4"
    return DTYPE_BYTES[recipe.dtype] if narrow else held_bytes(recipe.dtype)


def _each_weight(on_axis: TimeOnAxis, weights: int, pieces_s: float) -> TimeOnAxis:
    """`on_axis` with what is sent cut into so many weights, one after another, each copied in `pieces_s`."""

    def seconds(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
        return weights * (on_axis(op, size_bytes / weights, axis) + pieces_s) if size_bytes else 0.0

    return seconds


def pieces_s(chunks: Sequence[ChunkWork], stage: StageSetup, recipe: Recipe, known: TrainingParameters) -> float:
    """Return the seconds that the host takes to copy each rank's piece of each weight, one by one, once for what a
    sharded step sums and once for what it gathers; 0 of software that does not."""
    if not recipe.software.copies_pieces or stage.zero not in (1, 2) or stage.sharded_over == 1:
        return 0.0
    weights = sum((matrices_of(work) + work.vectors) * count for chunk in chunks for work, count in chunk.works)
    return weights * stage.sharded_over * known.of("launch_piece_s")


def matrices_of(work: Work) -> int:
    """Return how many weights a layer has beside its vectors, which are too small to be sharded (DeepSpeed's
    param_persistence_threshold)."""
    return max(1, sum(op.kind in ("gemm", "grouped_gemm", "conv") for op in work.operators))
