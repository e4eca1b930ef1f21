"""The layer graph of a model as a value: what each layer computes, holds, keeps and communicates, and the cuts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from estimator.shards import shard_layer
from models_zoo.layers import Embedding, Head, Layer, TracedLayer, TransformerBlock
from models_zoo.model import Model, TokenInput
from profiles.errors import InputError
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
        """Parameters of the model (of a rank's share, where the shard has tp > 1); tied weights once."""
        tied = sum(tied_parameters(node.layer, self.shard.tp) for node in self.nodes)
        return sum(node.parameters for node in self.nodes) - tied

    @property
    def flops(self) -> int:
        """FLOPs of forward and backward, with what the kernels compute twice."""
        return sum(node.forward_flops + node.backward_flops for node in self.nodes)

    @property
    def causal_half_flops(self) -> int:
        """Forward FLOPs that causal attention kernels need not execute: half of each such operator's square."""
        half = 0
        for layer, count in self.distinct:
            operators = _held(self.model, layer, self.shard).operators
            half += count * sum(op.forward_flops // 2 for op in operators if op.kind == "attention" and op.shape[-1])
        return half

    @property
    def model_flops(self) -> int:
        """Three times forward's matrix products, attention in full (PaLM, appendix B): nothing counted twice."""
        return 3 * sum(node.forward_flops for node in self.nodes)


def build_graph(model: Model, *, shard: Shard, degrees: tuple[int, ...] = DEGREES) -> LayerGraph:
    """The layer graph of `model` with every layer held as `shard`, and the collectives of each of `degrees`.

    InputError if a layer cannot be held as `shard` at all (more tokens than learned positions, say).
    """
    distinct = Counter(model.layers)
    held = {layer: _held(model, layer, shard) for layer in distinct}
    collectives = {layer: _collectives(layer, shard, degrees) for layer in distinct}
    nodes = tuple(
        LayerNode(
            name=name,
            layer=layer,
            forward_flops=held[layer].forward_flops,
            backward_flops=held[layer].backward_flops,
            parameters=held[layer].parameters,
            saved_bytes=held[layer].saved_bytes,
            cut_bytes=cut_bytes(model, index, shard),
            collectives_by_degree=collectives[layer],
        )
        for index, (name, layer) in enumerate(zip(model.layer_names, model.layers, strict=True))
    )
    return LayerGraph(model=model, shard=shard, nodes=nodes, distinct=tuple(distinct.items()))


def cut_bytes(model: Model, index: int, shard: Shard) -> int:
    """Bytes that a rank sends over the cut after layer `index` for one micro-batch, in one direction; 0 after the last.

    The layer's output, and where an encoder-decoder's decoder has begun and a later layer attends to it, the encoder's
    output too. Backward sends as much the other way. InputError as for `build_graph`.
    """
    if index == len(model.layers) - 1:
        return 0
    own = _held(model, model.layers[index], shard).output_bytes
    start = model.input.decoder_start if isinstance(model.input, TokenInput) else None
    if start is None or index < start:
        return own
    later = model.layers[index + 1 :]
    if not any(isinstance(layer, TransformerBlock) and layer.cross_attention for layer in later):
        return own
    return own + _held(model, model.layers[start - 1], shard).output_bytes


def tied_parameters(layer: Layer, tp: int) -> int:
    """Parameters of a rank's share of `layer` that are the first embedding's table (padded to a multiple of `tp`).

    Of a traced layer, those that an earlier layer holds too.
    """
    if isinstance(layer, TracedLayer):
        return sum(held.tied_parameters for held in layer.shards if held.tp == tp)
    if not isinstance(layer, Head | Embedding) or not layer.tied:
        return 0
    return -(-layer.vocab // tp) * (layer.factor or layer.hidden)


def table_holders(model: Model) -> tuple[int, ...]:
    """Indices of the layers that hold the first embedding's table: it and those tied to it; none where none is tied.

    In a traced model, those that share parameters with an earlier layer, and the earlier layers.
    """
    tied = [i for i, layer in enumerate(model.layers) if tied_parameters(layer, 1)]
    first = [i for i, layer in enumerate(model.layers) if isinstance(layer, Embedding)][:1]
    first += [layer.tied_to for layer in model.layers if isinstance(layer, TracedLayer) and layer.tied_to is not None]
    return tuple(sorted({*first, *tied})) if tied else ()


def table_parameters(model: Model, tp: int) -> int:
    """Parameters of a rank's share of the table that `table_holders` hold; 0 where there is none."""
    return max(tied_parameters(layer, tp) for layer in model.layers)


def _collectives(layer: Layer, shard: Shard, degrees: tuple[int, ...]) -> DegreeCollectives:
    local = [shard_layer(layer, replace(shard, tp=degree)) for degree in degrees]
    found = (one if isinstance(one, Infeasible) else one.collectives for one in local)
    return tuple(zip(degrees, found, strict=True))


def _held(model: Model, layer: Layer, shard: Shard) -> LocalLayer:
    local = shard_layer(layer, shard)
    if isinstance(local, Infeasible):
        raise InputError(where=f"model {model.name}", found=local.reason, expected="layers that can be held so")
    return local
