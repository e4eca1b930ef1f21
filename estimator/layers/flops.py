"""FLOPs of a model by its layers' matrix products, as published rates count them."""

from __future__ import annotations

from collections import Counter

from estimator.layers.graph import build_graph
from estimator.layers.shards import shard_layer
from models_zoo.layers import Layer
from models_zoo.model import Model
from profiles.records import dataclass
from profiles.vocabulary import Infeasible, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """Parameters of a model, and FLOPs of one sample's forward and backward: `model` counts attention in full, `causal`
    causal attention half; `forward_by_layer` is one forward pass, in full. Nothing is counted twice, nor what need not
    be computed because it does not learn."""

    parameters: int
    model: int
    causal: int
    forward_by_layer: tuple[int, ...]


def count_model_flops(
    model: Model, seq_len: int, *, frozen_layers: tuple[int, int] | None = None, adapters: bool = False
) -> ModelFlops:
    """Return the FLOPs per sample of `model` with so many tokens, independent of any plan: three times forward's matrix
    products (PaLM, appendix B) where all learns.

    A layer whose weights are frozen (layers [first, end) of `frozen_layers`; all with `adapters`) saves their gradients
    (one of the three for all but attention's own products), and where nothing before it learns either, all of backward.
    Counted with the fused kernel, whose operator knows whether it is causal; forward FLOPs are the same without it.
    Raise InputError for more tokens than learned positions.
    """
    shard = Shard(seq_len=seq_len, attention="flash")
    graph = build_graph(model, shard=shard, degrees=())
    total = causal = 0
    first, end = frozen_layers or (0, 0)
    kinds: Counter[tuple[Layer, bool, bool]] = Counter()
    for index, layer in enumerate(model.layers):
        frozen = first <= index < end
        kinds[layer, frozen or adapters, frozen and first == 0 and not adapters] += 1
    for (layer, frozen, cut_off), count in kinds.items():
        local = shard_layer(layer, shard)
        assert not isinstance(local, Infeasible), "the graph was built"
        squares = [op for op in local.operators if op.kind == "attention"]
        passes = 1 if cut_off else 3
        layer_flops = passes * local.forward_flops
        if frozen and not cut_off:
            layer_flops -= local.forward_flops - sum(op.forward_flops for op in squares)
        total += count * layer_flops
        causal += count * (layer_flops - passes * sum(op.forward_flops // 2 for op in squares if op.shape[-1]))
    return ModelFlops(
        parameters=graph.parameters,
        model=total,
        causal=causal,
        forward_by_layer=tuple(node.forward_flops for node in graph.nodes),
    )
