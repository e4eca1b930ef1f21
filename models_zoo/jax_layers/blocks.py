"""Embedding, transformer block and head as one rank computes them. Activations are (batch, tokens, hidden)."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

from models_zoo.jax_layers.attention import attention
from models_zoo.jax_layers.basic import dropout, key_for, key_of_rank, linear, normalize, take_rows
from models_zoo.jax_layers.feed_forward import feed_forward
from models_zoo.jax_layers.parallel import Array, Region, Weights, inside, outside
from models_zoo.layers import Attention, Embedding, Experts, FeedForward, Head, LinearAttention, TransformerBlock

Params = Mapping[str, Array]


def embedding(layer: Embedding, region: Region, params: Params, ids: Array, *, key: Array | None = None) -> Array:
    """Token ids (b, s) to activations. Each rank looks up the tokens whose rows it owns; the others are zero there."""
    table, around = params["tokens.weight"], outside(params, region)
    if region.tp == 1:
        x = take_rows(table, ids)
    else:
        index, elsewhere = _own_index(ids, table.shape[0], region)
        x = jnp.where(elsewhere[..., None], jnp.zeros((), table.dtype), take_rows(table, index))
    x = region.leave(x)
    if layer.factor:
        x = linear(around.under("project"), x)
    if layer.positions:
        length = x.shape[1]
        first = region.rank() * length if region.sequence_parallel else 0
        x = x + lax.dynamic_slice_in_dim(around["positions.weight"], first, length)
    if layer.token_types:
        # All tokens of type 0, as for a single segment.
        x = x + around["types.weight"][0]
    if layer.norm:
        x = normalize(around.under("norm"), layer.norm, x)
    return _drop_outside(layer, region, x, key)


def _own_index(ids: Array, rows: int, region: Region) -> tuple[Array, Array]:
    """Where this rank's `rows` hold `ids`, and which ids they do not hold (index 0 there)."""
    index = ids - region.rank() * rows
    elsewhere = (index < 0) | (index >= rows)
    return jnp.where(elsewhere, 0, index), elsewhere


def _drop_outside(layer: Embedding | TransformerBlock, region: Region, x: Array, key: Array | None) -> Array:
    """Ranks that hold the same tokens draw the same mask."""
    if not layer.dropout:
        return x
    return dropout(x, key_of_rank(key, region) if region.sequence_parallel else key)


def block(
    layer: TransformerBlock, region: Region, params: Params, x: Array, *memory: Array, key: Array | None = None
) -> Array:
    """One transformer layer; `memory` is the encoder's output where the layer has cross-attention."""
    parts = (("attention", layer.attention), ("cross", layer.cross_attention), ("mlp", layer.feed_forward))
    for number, (name, part) in enumerate(parts):
        if part is not None and not isinstance(part, LinearAttention):
            others = memory if name == "cross" else ()
            x = _sublayer(layer, part, region, params, name, x, *others, key=key_for(key, number))
    return x


def _sublayer(
    layer: TransformerBlock,
    part: Attention | FeedForward | Experts,
    region: Region,
    params: Params,
    name: str,
    x: Array,
    *memory: Array,
    key: Array | None,
) -> Array:
    """Attention, cross-attention or feed-forward with its norm(s), dropout and residual."""
    around, body = outside(params, region).under(name), inside(params, region).under(f"{name}.body")
    normed = x if layer.placement == "post" else normalize(around.under("norm"), layer.norm, x)
    entered = [region.enter(tensor) for tensor in (normed, *memory)]
    if isinstance(part, Attention):
        partial = attention(layer, part, region, body, *entered, key=key_for(key, 0))
    else:
        partial = feed_forward(part, region, body, *entered)
    added = _add_late(region.leave(partial), part, region, around.under("body"))
    if layer.placement == "sandwich":
        added = normalize(around.under("post_norm"), layer.norm, added)
    made = x + _drop_outside(layer, region, added, key_for(key, 1))
    return normalize(around.under("norm"), layer.norm, made) if layer.placement == "post" else made


def _add_late(x: Array, part: Attention | FeedForward | Experts, region: Region, weights: Weights) -> Array:
    """The output bias of `part`, where the product itself could not add it."""
    name = "output.bias" if isinstance(part, Attention) else "down.bias"
    dense = not isinstance(part, Experts)
    return x + weights[name] if region.tp > 1 and dense and name in weights else x


def parallel_block(
    layer: TransformerBlock, region: Region, params: Params, x: Array, *, key: Array | None = None
) -> Array:
    """Attention and feed-forward of the same input, added up before they leave the parallel region together (PaLM,
    section 2). One dropout serves the sum."""
    around, body = outside(params, region), inside(params, region)
    normed = region.enter(normalize(around.under("norm"), layer.norm, x))
    other = normed
    if not layer.shared_norm:
        other = region.enter(normalize(around.under("mlp_norm"), layer.norm, x))
    mixer, mlp = layer.self_attention, layer.feed_forward
    if mlp is None:
        raise ValueError("found a parallel residual without a feed-forward, expected one")
    partial = attention(layer, mixer, region, body.under("attention"), normed, key=key_for(key, 0))
    partial = partial + feed_forward(mlp, region, body.under("mlp"), other)
    added = _add_late(region.leave(partial), mixer, region, around.under("attention"))
    added = _add_late(added, mlp, region, around.under("mlp"))
    return x + _drop_outside(layer, region, added, key_for(key, 1))


def head(layer: Head, region: Region, params: Params, x: Array, targets: Array, *, key: Array | None = None) -> Array:
    """Activations and targets (b, s) to a scalar loss; `key` is not used.

    Without a vocabulary the loss is the mean square of the output (pooled, where there is a pooler); with one, a pooler
    adds such a term, in place of the next-sentence classifier that BERT puts there.
    """
    del key
    around = outside(params, region)
    if layer.norm:
        x = normalize(around.under("norm"), layer.norm, x)
    losses = []
    if layer.pooler:
        # The first tokens are alike on all ranks, whatever the others are.
        pooled = jnp.tanh(linear(Weights(params, region, False, "pooler."), _first_token(region, x)))
        losses.append(jnp.square(pooled.astype(jnp.float32)).mean())
    elif not layer.vocab:
        mean = jnp.square(x.astype(jnp.float32)).mean()
        losses.append(region.sum(mean / region.tp) if region.sequence_parallel else mean)
    if layer.vocab:
        entered = region.enter(_transform(layer, around.under("transform"), x))
        logits = linear(inside(params, region).under("vocabulary"), entered)
        losses.append(_cross_entropy(layer, region, logits, targets))
    return sum(losses[1:], losses[0])


def _transform(layer: Head, weights: Weights, x: Array) -> Array:
    if layer.transform:
        x = jax.nn.gelu(linear(weights.under("0"), x), approximate=False)
        x = normalize(weights.under("2"), "layernorm", x)
    return linear(weights.under("3" if layer.transform else "0"), x) if layer.factor else x


def _first_token(region: Region, x: Array) -> Array:
    """(b, hidden). Under sequence parallelism rank 0 has them."""
    first = x[:, 0]
    return region.sum(jnp.where(region.rank() == 0, first, 0)) if region.sequence_parallel else first


def _cross_entropy(layer: Head, region: Region, logits: Array, targets: Array) -> Array:
    """Mean over tokens of log sum exp(logits) - logits[target], in fp32, each rank holding some columns of the logits.

    Columns that only pad the vocabulary to a multiple of the ranks do not count.
    """
    rows = logits.shape[-1]
    logits = logits.astype(jnp.float32)
    if layer.vocab % region.tp:
        column = region.rank() * rows + jnp.arange(rows)
        logits = jnp.where(column < layer.vocab, logits, -jnp.inf)
    shifted = logits - region.maximum(logits.max(-1))[..., None]
    index, elsewhere = _own_index(targets, rows, region)
    picked = jnp.take_along_axis(shifted, index[..., None], -1, mode="promise_in_bounds")[..., 0]
    target = region.sum(jnp.where(elsewhere, 0.0, picked))
    total = region.sum(jnp.exp(shifted).sum(-1))
    return (jnp.log(total) - target).mean()
