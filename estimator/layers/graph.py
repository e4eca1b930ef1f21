"""The layer graph of a model as a value: what each layer computes, holds, keeps and communicates, and the cuts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from estimator.layers.shards import shard_layer
from models_zoo.layers import Embedding, Head, Layer, SharedWeights, TracedLayer, TransformerBlock
from models_zoo.model import Model, TokenInput
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import Collective, Infeasible, LocalLayer, Shard

DEGREES = (1, 2, 4, 8)

DegreeCollectives = tuple[tuple[int, tuple[Collective, ...] | Infeasible], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNode:
    """One layer for one micro-batch on one rank.

    `cut_bytes` crosses the cut after it, in one direction. `collectives_by_degree` holds, for each tensor-parallel
    degree, what the layer's local shard would communicate, or why it cannot have that degree.
    """

    name: str
    layer: Layer
    forward_flops: int
    backward_flops: int
    parameters: int
    saved_bytes: int
    cut_bytes: int
    collectives_by_degree: DegreeCollectives


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """A model's layers in order, for one micro-batch of `shard`.

    `distinct` holds each different layer with how often it occurs, in order of first appearance.
    """

    model: Model
    shard: Shard
    nodes: tuple[LayerNode, ...]
    distinct: tuple[tuple[Layer, int], ...]

    @property
    def parameters(self) -> int:
        """Parameters of the model (of a rank's share, where the shard has tp > 1); shared weights once."""
        shared = shared_weights(self.model, self.shard.tp)
        return sum(node.parameters for node in self.nodes) - repeated_parameters(shared, 0, len(self.nodes))


def build_graph(model: Model, *, shard: Shard, degrees: tuple[int, ...] = DEGREES) -> LayerGraph:
    """Return the layer graph of `model` with every layer held as `shard`, and the collectives of each of `degrees`.

    InputError if a layer cannot be held as `shard` at all (more tokens than learned positions, say).
    """
    distinct = Counter(model.layers)
    locals_ = {layer: _local(model, layer, shard) for layer in distinct}
    collectives = {layer: _collectives(layer, shard, degrees) for layer in distinct}
    nodes = tuple(
        LayerNode(
            name=name,
            layer=layer,
            forward_flops=locals_[layer].forward_flops,
            backward_flops=locals_[layer].backward_flops,
            parameters=locals_[layer].parameters,
            saved_bytes=locals_[layer].saved_bytes,
            cut_bytes=cut_bytes(model, index, shard),
            collectives_by_degree=collectives[layer],
        )
        for index, (name, layer) in enumerate(zip(model.layer_names, model.layers, strict=True))
    )
    return LayerGraph(model=model, shard=shard, nodes=nodes, distinct=tuple(distinct.items()))


def cut_bytes(model: Model, index: int, shard: Shard) -> int:
    """Return the bytes that a rank sends over the cut after layer `index` for one micro-batch, one way; 0 after the
    last.

    The layer's output, and where an encoder-decoder's decoder has begun and a later layer attends to it, the encoder's
    output too. Backward sends as much the other way. InputError as for `build_graph`.
    """
    if index == len(model.layers) - 1:
        return 0
    output = _local(model, model.layers[index], shard).output_bytes
    start = model.input.decoder_start if isinstance(model.input, TokenInput) else None
    if start is None or index < start:
        return output
    later = model.layers[index + 1 :]
    if not any(isinstance(layer, TransformerBlock) and layer.cross_attention for layer in later):
        return output
    return output + _local(model, model.layers[start - 1], shard).output_bytes


@lru_cache(maxsize=1024)
def shared_weights(model: Model, tp: int, *, vocabulary_multiple: int = 1) -> tuple[SharedWeights, ...]:
    """Return the groups of weights that several layers hold, each with a rank's share of it at `tp`.

    Of a model of the zoo the first embedding's table, with those tied to it; padded to a multiple of `tp` times
    `vocabulary_multiple`.
    """
    traced = [layer for layer in model.layers if isinstance(layer, TracedLayer)]
    if traced:
        return tuple(group for layer in traced for shard in layer.shards if shard.tp == tp for group in shard.shared)
    multiple = vocabulary_multiple * tp
    tied = {
        index: -(-layer.vocab // multiple) * vocabulary_multiple * (layer.factor or layer.hidden)
        for index, layer in enumerate(model.layers)
        if (isinstance(layer, Embedding) and layer.tied) or (isinstance(layer, Head) and layer.holds_table)
    }
    if not tied:
        return ()
    first = next((index for index, layer in enumerate(model.layers) if isinstance(layer, Embedding)), min(tied))
    return (SharedWeights(parameters=max(tied.values()), holders=tuple(sorted({first, *tied}))),)


def table_parameters(model: Model, tp: int, *, vocabulary_multiple: int = 1) -> int:
    """Return a rank's share of the weights that the model's first and last layer both hold; 0 where there are none."""
    ends = (0, len(model.layers) - 1)
    groups = shared_weights(model, tp, vocabulary_multiple=vocabulary_multiple)
    return sum(group.parameters for group in groups if (group.holders[0], group.holders[-1]) == ends)


def repeated_parameters(shared: Sequence[SharedWeights], first: int, end: int) -> int:
    """Return what the parameters of layers [first, end), each counted by itself, count more than once."""
    copies = (
        (group.parameters, bisect_left(group.holders, end) - bisect_left(group.holders, first)) for group in shared
    )
    return sum(parameters * max(0, count - 1) for parameters, count in copies)


def _collectives(layer: Layer, shard: Shard, degrees: tuple[int, ...]) -> DegreeCollectives:
    locals_ = (shard_layer(layer, replace(shard, tp=degree)) for degree in degrees)
    talk = (local if isinstance(local, Infeasible) else local.collectives for local in locals_)
    return tuple(zip(degrees, talk, strict=True))


def _local(model: Model, layer: Layer, shard: Shard) -> LocalLayer:
    local = shard_layer(layer, shard)
    if isinstance(local, Infeasible):
        raise InputError(where=f"model {model.name}", found=local.reason, expected="layers that can be held so")
    return local
