"""Whole training steps with JAX: one program for loss, gradients and AdamW."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.gpu.memory_jax import adamw
from bench.gpu.timing_jax import DTYPES, indices, random
from bench.gpu.workloads import TrainingStep
from models_zoo.jax_layers.build import example_inputs, layer_function
from models_zoo.layers import Classifier, Embedding, Head, Layer
from models_zoo.model import Model, TokenInput
from profiles.vocabulary import Shard

Array = Any
Params = list[dict[str, Array]]
"""Of each segment, by name; of several layers stacked along a first dimension."""

TIMED = 5
LOOP_S = 1.5
SPREAD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """`count` equal layers, from the layer number `first` on, run as one loop where more than one."""

    layer: Layer
    first: int
    count: int


def segments_of(step: TrainingStep) -> tuple[Segment, ...]:
    """Runs of equal layers as one where the step is `scanned`, else each layer by itself."""
    segments, first = [], 0
    for layer, alike in groupby(step.model.layers):
        count = len(list(alike))
        if step.mode == "scanned":
            segments.append(Segment(layer=layer, first=first, count=count))
        else:
            segments += [Segment(layer=layer, first=first + i, count=1) for i in range(count)]
        first += count
    return tuple(segments)


def make_params(segments: tuple[Segment, ...], shard: Shard, device: jax.Device) -> Params:
    """Weights to begin with; a tied table stands with the first segment alone."""
    found = []
    for segment in segments:
        own: dict[str, Array] = {}
        for parameter in layer_function(segment.layer, shard).parameters:
            if parameter.name == tied_name(segment.layer):
                continue
            stacked = () if segment.count == 1 else (segment.count,)
            dtype = jnp.float32 if parameter.keeps_fp32 else DTYPES[shard.dtype]
            shape = (*stacked, *parameter.shape)
            if parameter.start in ("zeros", "ones"):
                own[parameter.name] = jax.device_put(np.full(shape, parameter.start == "ones", dtype), device)
                continue
            spread = SPREAD if parameter.start == "uniform" else math.prod(parameter.shape[1:]) ** -0.5
            own[parameter.name] = random(shape, dtype, device, spread=spread)
        found.append(own)
    return found


def make_input(layer: Layer, shard: Shard, number: int, device: jax.Device) -> Array:
    """One of a layer's inputs, from the host."""
    wanted = jax.eval_shape(partial(example_inputs, layer, shard))[number]
    if not jnp.issubdtype(wanted.dtype, jnp.integer):
        return random(wanted.shape, wanted.dtype, device)
    bound = layer.features[-1] if isinstance(layer, Classifier) else getattr(layer, "vocab", 0) or 1
    return indices(bound, math.prod(wanted.shape), device).reshape(wanted.shape)


def tied_name(layer: Layer) -> str | None:
    """Which of the layer's weights is the first layer's table."""
    if isinstance(layer, Embedding) and layer.tied:
        return "tokens.weight"
    return "vocabulary.weight" if isinstance(layer, Head) and layer.tied else None


def loss_of(step: TrainingStep) -> Callable[..., Array]:
    """(params, inputs, targets, key) to a scalar loss. ValueError for an encoder-decoder."""
    model, segments = step.model, segments_of(step)
    check_chain(model)
    applies = [layer_function(segment.layer, step.shard).apply for segment in segments]

    def loss(params: Params, inputs: Array, targets: Array, key: Array) -> Array:
        x = inputs
        for segment, apply, own in zip(segments, applies, params, strict=True):
            shared = tied_name(segment.layer)
            weights = own if shared is None else {**own, shared: params[0]["tokens.weight"]}
            keys = jax.random.split(jax.random.fold_in(key, segment.first), segment.count)
            if segment.count > 1:
                x, _ = jax.lax.scan(partial(_one_of_many, apply), x, (weights, keys))
            elif segment is segments[-1]:
                x = apply(weights, x, targets, key=keys[0])
            else:
                x = apply(weights, x, key=keys[0])
        return x

    return loss


def _one_of_many(apply: Callable[..., Array], x: Array, of_layer: tuple[dict[str, Array], Array]) -> Any:
    weights, key = of_layer
    return apply(weights, x, key=key), None


def check_chain(model: Model) -> None:
    if isinstance(model.input, TokenInput) and model.input.decoder_start is not None:
        raise ValueError(f"found the encoder-decoder {model.name}, expected a chain of layers")


@dataclass(slots=True, kw_only=True)
class State:
    """What training changes. Weights narrower than fp32 have fp32 masters; the others (None among `narrow`) are their
    own. All in the order of `jax.tree.leaves` of the parameters."""

    narrow: list[Array | None]
    wide: list[Array]
    means: list[Array]
    squares: list[Array]
    step: Array

    @staticmethod
    def start(params: Params) -> State:
        leaves = jax.tree.leaves(params)
        wide = [leaf.astype(jnp.float32) for leaf in leaves]
        return State(
            narrow=[leaf if leaf.dtype.itemsize < 4 else None for leaf in leaves],
            wide=wide,
            means=[jnp.zeros_like(leaf) for leaf in wide],
            squares=[jnp.zeros_like(leaf) for leaf in wide],
            step=jnp.int32(0),
        )

    def weights(self) -> list[Array]:
        return [wide if narrow is None else narrow for narrow, wide in zip(self.narrow, self.wide, strict=True)]

    def after(self, gradients: list[Array]) -> State:
        """One AdamW step on."""
        step = self.step + 1
        gradients = [gradient.astype(jnp.float32) for gradient in gradients]
        each = zip(self.wide, self.means, self.squares, gradients, strict=True)
        updated = [adamw(*tensors, step) for tensors in each]
        wide, means, squares = (list(part) for part in zip(*updated, strict=True))
        cast = [None if old is None else new.astype(old.dtype) for old, new in zip(self.narrow, wide, strict=True)]
        return State(narrow=cast, wide=wide, means=means, squares=squares, step=step)


jax.tree_util.register_dataclass(State, data_fields=["narrow", "wide", "means", "squares", "step"], meta_fields=[])


def measure_step(step: TrainingStep, device: jax.Device) -> dict[str, Any]:
    """`iteration_s` is of iterations one behind the other. `forward_s` and `optimizer_s` are of programs that do that
    alone, `backward_s` is the rest; there are no gradients to zero. `peak_memory_bytes` is what the compiled program
    takes, by XLA's own account, `warm_up_s` with compiling it."""
    with jax.default_device(device):
        loss, shard = loss_of(step), step.shard
        params = make_params(segments_of(step), shard, device)
        structure = jax.tree.structure(params)
        layers = step.model.layers
        batch = (make_input(layers[0], shard, 0, device), make_input(layers[-1], shard, 1, device), jax.random.key(0))

        def loss_of_leaves(leaves: list[Array], *batch: Array) -> Array:
            return loss(jax.tree.unflatten(structure, leaves), *batch)

        def train(state: State, *batch: Array) -> tuple[State, Array]:
            found, gradients = jax.value_and_grad(loss_of_leaves)(state.weights(), *batch)
            return state.after(gradients), found

        state = jax.jit(State.start)(params)
        counts = {"parameters": sum(leaf.size for leaf in state.wide)}
        counts["resident_bytes"] = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        del params
        begin = perf_counter()
        compiled = jax.jit(train, donate_argnums=0).lower(state, *batch).compile()
        state, _ = _iterations_s(compiled, state, batch, 2)
        warm_up_s = perf_counter() - begin
        state, one_s = _iterations_s(compiled, state, batch, TIMED)
        count = TIMED if device.platform == "cpu" else max(TIMED, int(LOOP_S / one_s))
        state, iteration_s = _iterations_s(compiled, state, batch, count)
        forward_s = _forward_s(jax.jit(loss_of_leaves), state.weights(), batch)
        optimizer_s = _optimizer_s(state)
        del state
        gc.collect()
    return counts | {
        "iteration_s": iteration_s,
        "iterations": count,
        "zero_s": 0.0,
        "forward_s": forward_s,
        "backward_s": max(0.0, iteration_s - forward_s - optimizer_s),
        "optimizer_s": optimizer_s,
        "warm_up_s": warm_up_s,
        "peak_memory_bytes": program_bytes(compiled),
        "reserved_bytes": None,
    }


def _iterations_s(
    compiled: Callable[..., tuple[State, Array]], state: State, batch: tuple[Array, ...], count: int
) -> tuple[State, float]:
    """The state after `count` iterations, and seconds of one."""
    begin = perf_counter()
    for _ in range(count):
        state, loss = compiled(state, *batch)
    jax.block_until_ready((state, loss))
    return state, (perf_counter() - begin) / count


def _forward_s(forward: Callable[..., Array], weights: list[Array], batch: tuple[Array, ...]) -> float:
    jax.block_until_ready(forward(weights, *batch))
    begin = perf_counter()
    for _ in range(TIMED):
        found = forward(weights, *batch)
    jax.block_until_ready(found)
    return (perf_counter() - begin) / TIMED


def _optimizer_s(state: State) -> float:
    """Uses `state` up."""
    gradients = [jnp.ones_like(leaf) for leaf in state.weights()]
    step = jax.jit(State.after, donate_argnums=0)
    state = jax.block_until_ready(step(state, gradients))
    begin = perf_counter()
    for _ in range(TIMED):
        state = step(state, gradients)
    jax.block_until_ready(state)
    return (perf_counter() - begin) / TIMED


def program_bytes(compiled: Any) -> int | None:
    """Arguments, results and scratch memory of a compiled program; None where XLA does not say."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return int(found.argument_size_in_bytes + results + found.temp_size_in_bytes)
