"""Operators that move memory, as JAX runs them: each one a program of its own, fused as XLA sees fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bench.gpu.case import Case
from bench.gpu.timing_jax import (
    Function,
    Maker,
    Program,
    backward_program,
    calls_in_program,
    forward_program,
    indices,
    random,
)

DTYPE = jnp.bfloat16
EPS = 1e-5
KEPT = 0.9
LEARNING_RATE, BETA_1, BETA_2, DECAY = 1e-3, 0.9, 0.999, 0.01


def _layernorm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + EPS) * weight + bias).astype(x.dtype)


def _rmsnorm(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + EPS) * weight).astype(x.dtype)


def _dropout(x: jax.Array) -> jax.Array:
    # A seed that XLA does not know, or it would draw the mask when it compiles.
    seed = lax.optimization_barrier(jnp.uint32(0))
    keep = jax.random.bernoulli(jax.random.key(seed), KEPT, x.shape)
    return jnp.where(keep, x / KEPT, 0).astype(x.dtype)


def _cast(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)


FORWARDS: dict[str, tuple[Function, int, int]] = {
    # name: (forward, its activations, its weights)
    "layernorm": (_layernorm, 1, 2),
    "rmsnorm": (_rmsnorm, 1, 1),
    "gelu": (partial(jax.nn.gelu, approximate=False), 1, 0),
    "swiglu": (lambda gate, up: jax.nn.silu(gate) * up, 2, 0),
    "softmax": (partial(jax.nn.softmax, axis=-1), 1, 0),
    "dropout": (_dropout, 1, 0),
    "add": (jnp.add, 2, 0),
    "cast": (_cast, 1, 0),
    "copy": (jnp.copy, 1, 0),
}


def _program(case: Case) -> Callable[[Function, Callable[[], Sequence[jax.Array]], Case, jax.Device], Program]:
    return backward_program if case.direction == "backward" else forward_program


def _make_elementwise(case: Case, device: jax.Device) -> Program:
    tokens, width = case.shape.values()
    forward, activations, weights = FORWARDS[case.kind]
    shapes: list[tuple[int, ...]] = [(tokens, width)] * activations + [(width,)] * weights
    return _program(case)(forward, lambda: [random(shape, DTYPE, device) for shape in shapes], case, device)


def _make_embedding(case: Case, device: jax.Device) -> Program:
    tokens, vocab, hidden = case.shape.values()
    rows = indices(vocab, tokens, device)

    def look_up(table: jax.Array) -> jax.Array:
        return jnp.take(table, rows, axis=0, mode="clip")

    return _program(case)(look_up, lambda: [random((vocab, hidden), DTYPE, device)], case, device)


def _make_cross_entropy(case: Case, device: jax.Device) -> Program:
    tokens, vocab = case.shape.values()
    targets = indices(vocab, tokens, device)

    def loss(logits: jax.Array) -> jax.Array:
        scores = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(scores, targets[:, None], axis=-1).mean()

    return _program(case)(loss, lambda: [random((tokens, vocab), DTYPE, device)], case, device)


def _make_adamw(case: Case, device: jax.Device) -> Program:
    """In place: weights and both states are donated to each step, and several steps make a program."""
    parameters, tensors = case.shape.values()
    count = calls_in_program(case, device)
    shape = (parameters // tensors,)
    gradients = [random(shape, jnp.float32, device) for _ in range(tensors)]
    state = [
        (random(shape, jnp.float32, device), *(jax.device_put(jnp.zeros(shape), device) for _ in range(2)))
        for _ in range(tensors)
    ]

    def steps(state: Any, gradients: Any, first: jax.Array) -> Any:
        def step(number: jax.Array, state: Any) -> Any:
            each = zip(state, gradients, strict=True)
            return [adamw(weight, mean, square, g, first + number) for (weight, mean, square), g in each]

        return lax.fori_loop(0, count, step, state)

    compiled = jax.jit(steps, donate_argnums=0)
    held = [state]
    first = jax.device_put(jnp.int32(1), device)

    def call() -> Any:
        held[0] = compiled(held[0], gradients, first)
        return held[0]

    return Program(call=call, count=count)


def adamw(weight: jax.Array, mean: jax.Array, square: jax.Array, gradient: jax.Array, step: jax.Array) -> Any:
    """One tensor's weight, first and second moment after a step (Loshchilov and Hutter 2019, algorithm 2)."""
    mean = BETA_1 * mean + (1 - BETA_1) * gradient
    square = BETA_2 * square + (1 - BETA_2) * gradient * gradient
    first = mean / (1 - BETA_1 ** step.astype(jnp.float32))
    second = square / (1 - BETA_2 ** step.astype(jnp.float32))
    weight = weight - LEARNING_RATE * (first / (jnp.sqrt(second) + 1e-8) + DECAY * weight)
    return weight, mean, square


def _make_chain(case: Case, device: jax.Device) -> Program:
    kernels, elements = case.shape.values()
    zeros = jax.device_put(jnp.zeros(elements, jnp.float32), device)
    add = jax.jit(lambda x: x + 1)

    def one_by_one() -> jax.Array:
        x = zeros
        for _ in range(kernels):
            x = add(x)
        return x

    if case.variant == "eager":
        return Program(call=one_by_one, count=1)
    loop = jax.jit(lambda x: lax.fori_loop(0, kernels, lambda _, x: x + 1, x))
    return Program(call=lambda: loop(zeros), count=1)


MEMORY_MAKERS: dict[str, Maker] = {
    **dict.fromkeys(FORWARDS, _make_elementwise),
    "embedding": _make_embedding,
    "cross_entropy": _make_cross_entropy,
    "adamw": _make_adamw,
    "launch": _make_chain,
}
