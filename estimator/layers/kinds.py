"""What there is to know of each kind of layer: which degrees it can have, and what a rank then computes and holds.

To add a kind of layer: its specification goes into `models_zoo.layers`, how it runs into a module of
`models_zoo.torch_layers` (and `jax_layers`), and what it costs into one module here, with two functions:

- `refuse(layer, split)`: the first degree of `split` that it cannot have, as `Infeasible`, or None;
- `piece(layer, split)`: its `Piece` (operators, collectives, parameters, bytes kept for backward, boundary
  activations) for one micro-batch on one rank, put together from `estimator.layers.parts`.

and one line in `KINDS`. A part of a transformer block (a mixer in attention's place, a feed-forward) is a
`BranchKind` in `BRANCHES` instead: norms, residuals and tensor-parallel edges around it are the block's.

Everything else follows from the piece: an explicit plan's work under recomputation, frozen weights and adapters
(`estimator.layers.work`), the local shard that a profile measures (`estimator.layers.shards`), the graph's FLOPs and
cuts (`estimator.layers.graph`). `split.kernels` is the one switch that a description may ask: `fused` and `eager` are
a training framework's, `zoo` the modules of `models_zoo` as they run in eager torch, where each product and each step
is one by itself.
"""

from __future__ import annotations

from functools import partial

from estimator.layers.attention import ATTENTION
from estimator.layers.block import block_piece, refuse_block
from estimator.layers.convolution import (
    bottleneck_piece,
    classifier_piece,
    conv_unit_piece,
    refuse_bottleneck,
    refuse_classifier,
    refuse_conv_unit,
)
from estimator.layers.ends import embedding_piece, refuse_embedding
from estimator.layers.experts import EXPERTS
from estimator.layers.feed_forward import FEED_FORWARD
from estimator.layers.kind import BranchKind, LayerKind
from estimator.layers.linear_attention import LINEAR_ATTENTION
from estimator.layers.prediction import predicting_piece, refuse_predicting
from estimator.layers.traced import refuse_traced, traced_piece
from models_zoo.layers import (
    Attention,
    Bottleneck,
    Classifier,
    ConvUnit,
    Embedding,
    Experts,
    FeedForward,
    Head,
    LinearAttention,
    TracedLayer,
    TransformerBlock,
)

BRANCHES: dict[type, BranchKind] = {
    Attention: ATTENTION,
    LinearAttention: LINEAR_ATTENTION,
    FeedForward: FEED_FORWARD,
    Experts: EXPERTS,
}

KINDS: dict[type, LayerKind] = {
    TransformerBlock: LayerKind(
        refuse=partial(refuse_block, branches=BRANCHES), piece=partial(block_piece, branches=BRANCHES)
    ),
    Embedding: LayerKind(refuse=refuse_embedding, piece=embedding_piece, is_end=True),
    Head: LayerKind(
        refuse=partial(refuse_predicting, branches=BRANCHES),
        piece=partial(predicting_piece, branches=BRANCHES),
        is_end=True,
    ),
    ConvUnit: LayerKind(refuse=refuse_conv_unit, piece=conv_unit_piece),
    Bottleneck: LayerKind(refuse=refuse_bottleneck, piece=bottleneck_piece),
    Classifier: LayerKind(refuse=refuse_classifier, piece=classifier_piece),
    TracedLayer: LayerKind(refuse=refuse_traced, piece=traced_piece),
}
