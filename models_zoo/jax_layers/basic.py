"""What the bodies are made of: linear, norm, activation, dropout; the same arithmetic as in `torch_layers`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from models_zoo.jax_layers.parallel import Array, Region, Weights
from models_zoo.layers import Activation, Norm

DROPOUT = 0.1
NORM_EPS = 1e-5


def linear(weights: Weights, x: Array, *, bias: bool = True) -> Array:
    """(..., k) by a weight (n, k) to (..., n), and its bias where it has one and `bias` does not withhold it."""
    made = lax.dot_general(x, weights["weight"], (((x.ndim - 1,), (1,)), ((), ())))
    return made + weights["bias"] if bias and "bias" in weights else made


def normalize(weights: Weights, kind: Norm, x: Array) -> Array:
    """LayerNorm or RMSNorm over the last dimension, in fp32."""
    wide = x.astype(jnp.float32)
    if kind == "layernorm":
        wide = wide - wide.mean(-1, keepdims=True)
    scaled = wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + NORM_EPS)
    made = scaled * weights["weight"].astype(jnp.float32)
    if "bias" in weights:
        made = made + weights["bias"].astype(jnp.float32)
    return made.astype(x.dtype)


def activate(name: Activation, x: Array) -> Array:
    match name:
        case "gelu":
            return jax.nn.gelu(x, approximate=False)
        case "relu":
            return jax.nn.relu(x)
        case "relu2":
            return jnp.square(jax.nn.relu(x))
        case "silu":
            return jax.nn.silu(x)


def take_rows(table: Array, index: Array) -> Array:
    """The rows of `table` at `index`, which must be in it."""
    return table.at[index].get(mode="promise_in_bounds")


def dropout(x: Array, key: Array | None, rate: float = DROPOUT) -> Array:
    """Without a key nothing is dropped."""
    if key is None:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))


def key_for(key: Array | None, number: int) -> Array | None:
    """A key of its own for the `number`th place that drops; None from None."""
    return None if key is None else jax.random.fold_in(key, number)


def key_of_rank(key: Array | None, region: Region) -> Array | None:
    """A key of this rank's own, for what the ranks hold different parts of."""
    return key if key is None or region.tp == 1 else jax.random.fold_in(key, region.rank())
