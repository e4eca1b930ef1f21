"""Attention inside the parallel region: (b, s, hidden) to a partial (b, s, hidden). Letters: b batch, s tokens, h this
rank's heads, d head dimension."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from models_zoo.jax_layers.basic import dropout, key_of_rank, linear, normalize
from models_zoo.jax_layers.parallel import Array, Region, Weights
from models_zoo.layers import Attention, LatentAttention, TransformerBlock

_ROTARY_BASE = 10_000.0
_FUSED_DIM = 128


def attention(
    block: TransformerBlock,
    spec: Attention,
    region: Region,
    weights: Weights,
    x: Array,
    memory: Array | None = None,
    *,
    key: Array | None = None,
) -> Array:
    """This rank's heads; in cross-attention keys and values come from `memory`. A window is not applied.

    The output's bias is the caller's to add once the partial results are summed, unless this rank is alone.
    """
    source = x if memory is None else memory
    projections = weights.under("projections")
    if spec.latent is None:
        query, key_heads, value = _project(block, spec, region, projections, x, source)
    else:
        query, key_heads, value = _project_latent(block, spec, spec.latent, region, projections, x, source)
    dropped = key_of_rank(key, region) if block.dropout else None
    mixed = _mix(spec, region, query, key_heads, value, dropped)
    return linear(weights.under("output"), mixed.reshape(*mixed.shape[:2], -1), bias=region.tp == 1)


def check_heads(spec: Attention, region: Region) -> None:
    """Raise ValueError where the degree splits neither heads nor, a whole number of times, key-value heads."""
    region.share(spec.heads, "heads")
    if spec.latent is None and region.tp % spec.kv_heads and spec.kv_heads % region.tp:
        raise ValueError(f"found {spec.kv_heads} key-value heads, expected a multiple or a divisor of tp={region.tp}")


def _project(
    block: TransformerBlock, spec: Attention, region: Region, weights: Weights, x: Array, source: Array
) -> tuple[Array, Array, Array]:
    """Queries of `x`, keys and values of `source`, (b, s, h, d) each, with the norms and turns of the former two."""

    def by_head(flat: Array) -> Array:
        return flat.reshape(*flat.shape[:2], -1, spec.head_dim)

    def finish(flat: Array, norm: str) -> Array:
        if spec.query_key_norm == "full":
            flat = normalize(weights.under(norm), block.norm, flat)
        heads = by_head(flat)
        if spec.query_key_norm == "head":
            heads = normalize(weights.under(norm), block.norm, heads)
        return rotate(heads, spec.rotary_dim, region)

    return (
        finish(linear(weights.under("query"), x), "query_norm"),
        finish(linear(weights.under("key"), source), "key_norm"),
        by_head(linear(weights.under("value"), source)),
    )


def _project_latent(
    block: TransformerBlock,
    spec: Attention,
    latent: LatentAttention,
    region: Region,
    weights: Weights,
    x: Array,
    source: Array,
) -> tuple[Array, Array, Array]:
    """The same through low ranks (DeepSeek-V2, section 2.1). One rotated key serves all heads."""
    heads = spec.heads // region.tp

    def by_head(flat: Array) -> Array:
        return flat.reshape(*flat.shape[:2], heads, -1)

    if latent.query_rank is None:
        query = by_head(linear(weights.under("query"), x))
    else:
        narrow = normalize(weights.under("query.1"), block.norm, linear(weights.under("query.0"), x))
        query = by_head(linear(weights.under("query.2"), narrow))
    down = linear(weights.under("down"), source)
    compressed, key_turned = down[..., : latent.key_value_rank], down[..., latent.key_value_rank :]
    key_value = by_head(linear(weights.under("up"), normalize(weights.under("norm"), block.norm, compressed)))
    key_plain, value = key_value[..., : latent.nope_dim], key_value[..., latent.nope_dim :]
    key_turned = rotate(key_turned[:, :, None], latent.rope_dim, region)
    key_turned = jnp.broadcast_to(key_turned, (*key_plain.shape[:3], latent.rope_dim))
    query_turned = rotate(query[..., latent.nope_dim :], latent.rope_dim, region)
    query = jnp.concatenate((query[..., : latent.nope_dim], query_turned), -1)
    return query, jnp.concatenate((key_plain, key_turned), -1), value


def rotate(x: Array, dim: int, region: Region) -> Array:
    """Rotary position embedding of the first `dim` elements of (b, s, h, d) (Su et al. 2021, equation 34); 0: none."""
    if dim == 0:
        return x
    frequency = _ROTARY_BASE ** (-np.arange(0, dim, 2, dtype=np.float32) / dim)
    angle = np.tile(np.outer(np.arange(region.seq_len, dtype=np.float32), frequency), (1, 2))[:, None, :]
    cosine, sine = (jnp.asarray(table, x.dtype) for table in (np.cos(angle), np.sin(angle)))
    left, right = x[..., : dim // 2], x[..., dim // 2 : dim]
    turned = x[..., :dim] * cosine + jnp.concatenate((-right, left), -1) * sine
    return turned if x.shape[-1] == dim else jnp.concatenate((turned, x[..., dim:]), -1)


def _mix(spec: Attention, region: Region, query: Array, key: Array, value: Array, dropped: Array | None) -> Array:
    """(b, s, h, d) each, fewer heads of keys and values, to (b, s, h, value_dim); fused where the device can.

    Scores, and queries laid out for them, alone have five dimensions in a layer: by that a runner can tell what
    selective recomputation computes again.
    """
    if region.attention == "flash" and _is_fused(query, value, dropped):
        return jax.nn.dot_product_attention(query, key, value, is_causal=spec.causal, implementation="cudnn")
    b, q_len, heads, dim = query.shape
    kv_len, kv_heads = key.shape[1:3]
    grouped = query.reshape(b, q_len, kv_heads, heads // kv_heads, dim)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", grouped, key, preferred_element_type=jnp.float32) * dim**-0.5
    if spec.causal:
        scores = jnp.where(np.tri(q_len, kv_len, dtype=bool), scores, -jnp.inf)
    weights = dropout(jax.nn.softmax(scores, -1).astype(query.dtype), dropped)
    return jnp.einsum("bhgqk,bkhd->bqhgd", weights, value).reshape(b, q_len, heads, -1)


def _is_fused(query: Array, value: Array, dropped: Array | None) -> bool:
    """XLA has one fused kernel for training: cuDNN's, in 16 bits, for one head dimension up to 128, here without
    dropout."""
    return (
        jax.default_backend() == "gpu"
        and query.dtype in (jnp.bfloat16, jnp.float16)
        and query.shape[-1] == value.shape[-1] <= _FUSED_DIM
        and query.shape[-1] % 8 == 0
        and dropped is None
    )
