"""The feed-forward inside the parallel region, dense or of experts: (b, s, hidden) to a partial (b, s, hidden)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from models_zoo.jax_layers.basic import activate, linear, take_rows
from models_zoo.jax_layers.parallel import Array, Region, Weights
from models_zoo.layers import Experts, FeedForward


def feed_forward(spec: FeedForward | Experts, region: Region, weights: Weights, x: Array) -> Array:
    """A dense one's last bias is the caller's to add once the partial results are summed, unless this rank is alone."""
    if isinstance(spec, Experts):
        tokens = x.reshape(-1, x.shape[-1])
        return _experts(spec, region, weights, tokens).reshape(x.shape)
    return _dense(spec, region, weights, x)


def check_feed_forward(spec: FeedForward | Experts, region: Region) -> None:
    """Raise ValueError where the degree does not divide columns or experts."""
    if isinstance(spec, Experts):
        region.share(spec.count, "experts")
        region.share(spec.shared_hidden, "columns of the shared expert")
    else:
        region.share(spec.hidden, "feed-forward columns")


def _dense(spec: FeedForward, region: Region, weights: Weights, x: Array) -> Array:
    up = linear(weights.under("up"), x)
    if spec.gated:
        inner = activate(spec.activation, linear(weights.under("gate"), x)) * up
    else:
        inner = activate(spec.activation, up)
    return linear(weights.under("down"), inner, bias=region.tp == 1)


def _experts(spec: Experts, region: Region, weights: Weights, tokens: Array) -> Array:
    """(tokens, hidden) to what this rank's experts, and its part of the shared expert, add to each token.

    A token's k experts are those of the highest probability, which weighs their results. An expert takes its first
    `capacity` tokens and drops the others (GShard, section 2.2, without its random second choice and balancing loss).
    """
    count = spec.count // region.tp
    token, share = _route(spec, region, linear(weights.under("router"), tokens))
    slots = take_rows(tokens, token).reshape(count, -1, tokens.shape[-1])
    mixed = _expert_products(spec.expert, weights.under("experts"), slots).reshape(-1, tokens.shape[-1])
    weighed = mixed * share.astype(tokens.dtype)[:, None]
    if not spec.shared_hidden:
        return jnp.zeros_like(tokens).at[token].add(weighed, mode="promise_in_bounds")
    dense = FeedForward(hidden=spec.shared_hidden, gated=spec.expert.gated, activation=spec.expert.activation)
    base = _dense(dense, region, weights.under("shared"), tokens)
    if spec.shared_gate:
        base = base * jax.nn.sigmoid(linear(weights.under("shared_gate"), tokens))
    return base.at[token].add(weighed, mode="promise_in_bounds")


def _expert_products(spec: FeedForward, weights: Weights, x: Array) -> Array:
    """Experts side by side: (count, slots, hidden) to the same."""

    def product(name: str, rows: Array) -> Array:
        made = jnp.matmul(rows, weights[name])
        return made + weights[f"{name}_bias"] if spec.bias else made

    up = product("up", x)
    inner = activate(spec.activation, product("gate", x)) * up if spec.gated else activate(spec.activation, up)
    return product("down", inner)


def _route(spec: Experts, region: Region, logits: Array) -> tuple[Array, Array]:
    """From (tokens, experts): the token in each of this rank's slots and its weight there (0 for an empty slot)."""
    k, capacity = spec.top_k, spec.capacity(logits.shape[0])
    probabilities = jax.nn.softmax(logits.astype(jnp.float32), -1)
    _, chosen = lax.top_k(lax.stop_gradient(probabilities), k)
    choice = jnp.argsort(chosen.reshape(-1), stable=True)
    expert = take_rows(chosen.reshape(-1), choice)
    start = jnp.searchsorted(expert, jnp.arange(spec.count))
    place = jnp.arange(expert.shape[0]) - take_rows(start, expert)
    # One slot more than there are takes what is dropped.
    slots = spec.count * capacity
    slot = jnp.where(place < capacity, expert * capacity + place, slots)
    source = jnp.full((slots + 1,), -1, choice.dtype).at[slot].set(choice)
    own_slots = slots // region.tp
    choice_in_slot = lax.dynamic_slice_in_dim(source, region.rank() * own_slots, own_slots)
    filled, choice_in_slot = choice_in_slot >= 0, jnp.maximum(choice_in_slot, 0)
    share = take_rows(jnp.take_along_axis(probabilities, chosen, 1).reshape(-1), choice_in_slot)
    return choice_in_slot // k, jnp.where(filled, share, 0.0)
