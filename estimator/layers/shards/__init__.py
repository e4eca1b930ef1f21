"""From a layer's specification to the local shard that one rank computes, holds and communicates."""

from __future__ import annotations

from functools import lru_cache

from estimator.layers.shards.convolution import shard_bottleneck, shard_classifier, shard_conv_unit
from estimator.layers.shards.traced import shard_traced
from estimator.layers.shards.transformer import shard_block, shard_embedding, shard_head
from models_zoo.layers import Bottleneck, Classifier, ConvUnit, Embedding, Head, Layer, TracedLayer, TransformerBlock
from profiles.vocabulary import Infeasible, LocalLayer, Shard


@lru_cache(maxsize=65536)
def shard_layer(layer: Layer, shard: Shard) -> LocalLayer | Infeasible:
    """The local shard of `layer`, or why a degree cannot be had.

    Tensor parallelism splits a transformer's heads and feed-forward columns, an MoE layer's experts, a convolution's
    output channels and a vocabulary (padded to a multiple of the degree); key-value heads beyond their number are
    replicated.
    """
    match layer:
        case Embedding():
            return shard_embedding(layer, shard)
        case TransformerBlock():
            return shard_block(layer, shard)
        case Head():
            return shard_head(layer, shard)
        case ConvUnit():
            return shard_conv_unit(layer, shard)
        case Bottleneck():
            return shard_bottleneck(layer, shard)
        case Classifier():
            return shard_classifier(layer, shard)
        case TracedLayer():
            return shard_traced(layer, shard)
