"""Factories of small JAX functions, as a user would write them, for the frontend to trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

HIDDEN, HEADS, INNER, VOCAB, BLOCKS, TOKENS = 32, 4, 96, 48, 4, 16

Factory = tuple[Callable[..., Any], Any, Any]


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def tokens(batch: int = 2) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return shape(batch, TOKENS, dtype=jnp.int32), shape(batch, TOKENS, dtype=jnp.int32)


def mlp_function(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    for number, layer in enumerate(params):
        x = x @ layer["w"] + layer["b"]
        if number < len(params) - 1:
            x = jax.nn.relu(x)
    return x


def mlp() -> Factory:
    sizes = [16, 32, 32, 4]
    params = [{"w": shape(a, b), "b": shape(b)} for a, b in pairwise(sizes)]
    return mlp_function, params, (shape(1, 16),)


def norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * scale + bias


def attention(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    batch, length, _ = x.shape
    q, k, v = ((x @ params[name]).reshape(batch, length, -1, HIDDEN // HEADS).swapaxes(1, 2) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / (HIDDEN // HEADS) ** 0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    mixed = (weights @ v).swapaxes(1, 2).reshape(batch, length, -1)
    return mixed @ params["o"]


def block(params: Any, x: jax.Array) -> jax.Array:
    x = x + attention(params["attention"], norm(x, *params["norm1"]))
    inner = jax.nn.gelu(norm(x, *params["norm2"]) @ params["up"] + params["up_bias"])
    return x + inner @ params["down"] + params["down_bias"]


def block_params(*stack: int) -> dict[str, Any]:
    of = partial(shape, *stack)
    return {
        "attention": {name: of(HIDDEN, HIDDEN) for name in "qkvo"},
        "norm1": (of(HIDDEN), of(HIDDEN)),
        "norm2": (of(HIDDEN), of(HIDDEN)),
        "up": of(HIDDEN, INNER),
        "up_bias": of(INNER),
        "down": of(INNER, HIDDEN),
        "down_bias": of(HIDDEN),
    }


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    logged = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(logged, targets[..., None], axis=-1))


def gpt_function(params: Any, ids: jax.Array, targets: jax.Array, named: bool = False) -> jax.Array:
    x = params["tokens"][ids]
    for number, weights in enumerate(params["blocks"]):
        if named:
            with jax.named_scope(f"block_{number}"):
                x = block(weights, x)
        else:
            x = block(weights, x)
    with jax.named_scope("head" if named else ""):
        return cross_entropy(norm(x, *params["norm"]) @ params["tokens"].T, targets)


def gpt_params() -> dict[str, Any]:
    return {
        "tokens": shape(VOCAB, HIDDEN),
        "blocks": [block_params() for _ in range(BLOCKS)],
        "norm": (shape(HIDDEN), shape(HIDDEN)),
    }


def gpt() -> Factory:
    """Its head shares the embedding's table."""
    return gpt_function, gpt_params(), tokens()


def named_gpt() -> Factory:
    return partial(gpt_function, named=True), gpt_params(), tokens()


def scanned_function(params: Any, ids: jax.Array, targets: jax.Array) -> jax.Array:
    x = params["tokens"][ids]
    x, _ = lax.scan(jax.checkpoint(lambda x, weights: (block(weights, x), None)), x, params["blocks"])
    return cross_entropy(norm(x, *params["norm"]) @ params["tokens"].T, targets)


def scanned_gpt() -> Factory:
    return scanned_function, gpt_params() | {"blocks": block_params(BLOCKS)}, tokens()


def split_attention(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Heads over ranks; each rank's part of the output projection is summed. Its input counts as different on each rank
    from here on, so that one sum makes its gradient, not one for each of queries, keys and values."""
    return lax.psum(attention(params, lax.pcast(x, "tp", to="varying")), "tp")


def split_block(params: Any, x: jax.Array) -> jax.Array:
    x = x + split_attention(params["attention"], norm(x, *params["norm1"]))
    inner = jax.nn.gelu(norm(x, *params["norm2"]) @ params["up"] + params["up_bias"])
    return x + lax.psum(inner @ params["down"], "tp") + params["down_bias"]


def split_gpt_function(params: Any, ids: jax.Array, targets: jax.Array) -> jax.Array:
    x = params["tokens"][ids]
    x, _ = lax.scan(lambda x, weights: (split_block(weights, x), None), x, params["blocks"])
    return cross_entropy(norm(x, *params["norm"]) @ params["tokens"].T, targets)


def split_gpt() -> Any:
    """Megatron's split of scanned blocks; the table and the head are whole on every rank."""
    params = gpt_params() | {"blocks": block_params(BLOCKS)}
    column, row = P(None, None, "tp"), P(None, "tp", None)
    blocks = {
        "attention": {"q": column, "k": column, "v": column, "o": row},
        "norm1": None,
        "norm2": None,
        "up": column,
        "up_bias": P(None, "tp"),
        "down": row,
        "down_bias": None,
    }
    return split_gpt_function, params, tokens(), {"tokens": P(), "blocks": blocks, "norm": P()}


def _sum(x: jax.Array) -> jax.Array:
    return lax.psum(x, "tp")


def _same(x: jax.Array) -> jax.Array:
    return x


enter: Callable[[jax.Array], jax.Array] = jax.custom_vjp(_same)
"""Megatron's f."""
enter.defvjp(lambda x: (x, None), lambda _, gradient: (_sum(gradient),))  # type: ignore[attr-defined]

leave: Callable[[jax.Array], jax.Array] = jax.custom_vjp(_sum)
"""Megatron's g."""
leave.defvjp(lambda x: (_sum(x), None), lambda _, gradient: (gradient,))  # type: ignore[attr-defined]


def own_rules_function(params: Any, x: jax.Array) -> jax.Array:
    for layer in params:
        x = x + leave(jax.nn.relu(enter(x) @ layer["up"]) @ layer["down"])
    return jnp.mean(x**2)


def own_rules() -> Any:
    params = [{"up": shape(HIDDEN, INNER), "down": shape(INNER, HIDDEN)} for _ in range(3)]
    return own_rules_function, params, (shape(2, HIDDEN),), [{"up": P(None, "tp"), "down": P("tp")} for _ in range(3)]


def sequence_function(params: Any, x: jax.Array) -> jax.Array:
    """Between its products each rank has its own tokens."""
    rank, ranks = lax.axis_index("tp"), lax.axis_size("tp")
    x = lax.dynamic_slice_in_dim(x, rank * (TOKENS // ranks), TOKENS // ranks, axis=1)
    for layer in params:
        gathered = lax.all_gather(norm(x, *layer["norm"]), "tp", axis=1, tiled=True)
        inner = jax.nn.gelu(gathered @ layer["up"])
        x = x + lax.psum_scatter(inner @ layer["down"], "tp", scatter_dimension=1, tiled=True)
    return lax.pmean(jnp.mean(x**2), "tp")


def sequence() -> Any:
    layer = {"norm": (shape(HIDDEN), shape(HIDDEN)), "up": shape(HIDDEN, INNER), "down": shape(INNER, HIDDEN)}
    specs = [{"norm": P(), "up": P(None, "tp"), "down": P("tp")} for _ in range(3)]
    return sequence_function, [layer] * 3, (shape(2, TOKENS, HIDDEN),), specs


def conv(weight: jax.Array, x: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, weight, (stride, stride), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))


def conv_net_function(params: Any, images: jax.Array, classes: jax.Array) -> jax.Array:
    x = jax.nn.relu(conv(params["stem"], images, 2))
    for first, second in params["blocks"]:
        x = jax.nn.relu(x + conv(second, jax.nn.relu(conv(first, x))))
    return cross_entropy(jnp.mean(x, axis=(2, 3)) @ params["head"], classes)


def conv_net() -> Factory:
    params = {
        "stem": shape(8, 3, 3, 3),
        "blocks": [(shape(8, 8, 3, 3), shape(8, 8, 3, 3)) for _ in range(3)],
        "head": shape(8, 5),
    }
    return conv_net_function, params, (shape(2, 3, 12, 20), shape(2, dtype=jnp.int32))


def mixed_function(params: Any, ids: jax.Array, targets: jax.Array) -> jax.Array:
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    return scanned_function(params, ids, targets)


def mixed_gpt() -> Factory:
    """Weights of 32 bits, all of them converted before the loop over layers."""
    return mixed_function, gpt_params() | {"blocks": block_params(BLOCKS)}, tokens()


def recurrent_function(params: Any, x: jax.Array) -> jax.Array:
    def step(state: jax.Array, now: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(state @ params["recur"] + now @ params["read"]), None

    state, _ = lax.scan(step, jnp.zeros((x.shape[0], HIDDEN)), x.swapaxes(0, 1))
    return jnp.mean(state @ params["out"])


def recurrent() -> Factory:
    """A loop over time, with one set of weights."""
    params = {"recur": shape(HIDDEN, HIDDEN), "read": shape(8, HIDDEN), "out": shape(HIDDEN, 4)}
    return recurrent_function, params, (shape(2, TOKENS, 8),)


def remembering_function(params: Any, x: jax.Array) -> jax.Array:
    memory, x = jnp.tanh(x @ params["memory"]), x @ params["in"]
    for first, second in params["blocks"]:
        x = x + jax.nn.relu(x @ first + memory @ second) @ first.T
    return jnp.mean(x)


def remembering() -> Factory:
    """What a first layer makes goes over all cuts."""
    square = shape(HIDDEN, HIDDEN)
    return remembering_function, {"memory": square, "in": square, "blocks": [(square, square)] * 8}, (shape(2, HIDDEN),)


def counted() -> Factory:
    """A loop with a counter, which picks each layer's weights."""

    def function(params: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(lax.fori_loop(0, 3, lambda number, x: jnp.tanh(x @ params[number] + x @ params[number].T), x))

    return function, shape(3, HIDDEN, HIDDEN), (shape(2, HIDDEN),)


def dropped() -> Factory:
    def function(params: Any, x: jax.Array) -> jax.Array:
        x = x @ params["first"]
        kept = jax.random.bernoulli(params["key"], 0.7, x.shape)
        return jnp.where(kept, x / 0.7, 0) @ params["second"]

    square = shape(HIDDEN, HIDDEN)
    return function, {"key": jax.random.key(0), "first": square, "second": square}, (shape(2, HIDDEN),)


def closes_over() -> Factory:
    """The function holds on to an array that the factory made."""
    scale = jnp.arange(HIDDEN, dtype=jnp.float32)
    return lambda params, x: jnp.mean(x * scale @ params), shape(HIDDEN, HIDDEN), (shape(2, HIDDEN),)


def needs_values() -> Factory:
    """Reads an array's value while it builds, as if from a file."""
    width = int(jnp.arange(17).sum()) // 8
    return lambda params, x: x @ params, jnp.ones((width, 4)), jnp.ones((2, width))


def plain_arrays() -> Factory:
    return lambda params, x: x @ params[0], [np.ones((4, 3))], np.ones((2, 4))


def matrix(function: Callable[..., Any], *inputs: Any) -> Any:
    return function, {"w": shape(8, 8)}, inputs or (shape(4, 8),)


def talkative() -> Any:
    print("building")
    return matrix(lambda params, x: x @ params["w"])


def branching() -> Any:
    return matrix(lambda params, x: x @ params["w"] if x.sum() > 0 else x)


def odd_batch() -> Any:
    return matrix(lambda params, x: (x @ params["w"] if x.shape[0] > 4 else x) @ params["w"])


def fixed_batch() -> Any:
    return matrix(lambda params, x: (x @ params["w"]).reshape(4, 8))


def wrong_size() -> Any:
    return matrix(lambda params, x: x @ params["w"], shape(4, 9))


def whole_numbers() -> Any:
    return matrix(lambda params, x: jnp.argmax(x @ params["w"], axis=-1))


def unrelated() -> Any:
    return matrix(lambda _, x: x.sum())


def weights_alone() -> Any:
    return matrix(lambda params, _: jnp.mean(params["w"] ** 2))


def endless() -> Any:
    def function(params: Any, x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: x @ params["w"], x).sum()

    return matrix(function)


def called_back() -> Any:
    def function(params: Any, x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4, 8), np.float32), lax.stop_gradient(x)) @ params["w"]

    return matrix(function)


def unnamed_axis() -> Any:
    return matrix(lambda params, x: lax.psum(x @ params["w"], "tp"))


def no_batch() -> Any:
    return matrix(lambda params, x, y: x @ params["w"] * y, shape(4, 8), shape())


def two_batches() -> Any:
    return matrix(lambda params, x, y: x @ params["w"] + y, shape(4, 8), shape(3, 8))


def no_arrays() -> Any:
    return lambda _, x: x, {}, (shape(4, 8),)


def no_tuple() -> Any:
    return {"w": shape(8, 8)}


def no_function() -> Any:
    return "x @ w", {"w": shape(8, 8)}, (shape(4, 8),)


def text_in_params() -> Any:
    return lambda _, x: x, {"w": shape(8, 8), "name": "layer"}, (shape(4, 8),)


def text_in_inputs() -> Any:
    return lambda _, x: x, {"w": shape(8, 8)}, ("x",)


def wrong_axis() -> Any:
    return *matrix(lambda params, x: x @ params["w"]), {"w": P("model")}


def wrong_specs() -> Any:
    return *matrix(lambda params, x: x @ params["w"]), {"w": "tp"}


def other_specs() -> Any:
    return *matrix(lambda params, x: x @ params["w"]), {"v": P("tp")}


def undivided() -> Any:
    def function(params: Any, x: jax.Array) -> jax.Array:
        return lax.psum(x @ params["w"], "tp")

    return function, {"w": shape(8, 6)}, (shape(4, 8),), {"w": P(None, "tp")}


def breaks() -> Any:
    raise KeyError("checkpoint")


not_callable = 3
