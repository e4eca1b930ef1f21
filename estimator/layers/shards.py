"""The local shard that one rank computes, holds and communicates: a layer as the zoo's modules run it, and are
profiled. Each degree a profile knows is a `Shard`; everything about it follows from the layer's description."""

from __future__ import annotations

from functools import lru_cache

from estimator.layers.kinds import KINDS
from estimator.layers.split import Split
from models_zoo.layers import Layer
from profiles.vocabulary import Collective, Infeasible, LocalLayer, Shard


def split_of_shard(shard: Shard) -> Split:
    """Return how a module of the zoo held as `shard` splits its layer; `shard.recompute` changes none of it."""
    return Split(
        samples=shard.micro_batch_per_rank,
        seq_len=shard.seq_len,
        dtype=shard.dtype,
        tp=shard.tp,
        sequence_parallel=shard.sequence_parallel and shard.tp > 1,
        attention=shard.attention,
        kernels="zoo",
    )


@lru_cache(maxsize=65536)
def shard_layer(layer: Layer, shard: Shard) -> LocalLayer | Infeasible:
    """Return the local shard of `layer`, or why a degree cannot be had.

    Tensor parallelism splits a transformer's heads and feed-forward columns, an MoE layer's experts, a convolution's
    output channels and a vocabulary (padded to a multiple of the degree); key-value heads beyond their number are
    replicated. `parameters` of a tied layer include the shared table. Weights that several ranks hold and of whose
    gradient each has a part cost one all-reduce a step for each group of such ranks.
    """
    kind, split = KINDS[type(layer)], split_of_shard(shard)
    refused = kind.refuse(layer, split)
    if refused:
        return refused
    piece = kind.piece(layer, split)
    sums = tuple(
        Collective(op="all_reduce", bytes=n * split.width, phase="step", ranks=ranks, name="partial gradients")
        for ranks, n in piece.partial_gradients
    )
    return LocalLayer(
        operators=piece.operators,
        collectives=piece.collectives + sums,
        parameters=piece.parameters + piece.expert_parameters,
        replicated_parameters=sum(n for _, n in piece.replicated) if split.tp > 1 else 0,
        input_bytes=piece.input_bytes,
        output_bytes=piece.output_bytes,
    )
