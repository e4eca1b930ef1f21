"""The weights of a zoo layer by name, shape and split, and their first values: alike in torch, in JAX, on any machine.

Names, shapes and order are those of `named_parameters()` of the unsplit module that `models_zoo.torch_layers` builds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models_zoo.layers import (
    Attention,
    Bottleneck,
    Classifier,
    ConvUnit,
    Embedding,
    Experts,
    FeedForward,
    Head,
    LatentAttention,
    Layer,
    LinearAttention,
    Norm,
    Prediction,
    TracedLayer,
    TransformerBlock,
)
from profiles.records import dataclass

Array = NDArray[Any]
Start = Literal["uniform", "zeros", "ones", "fan_in"]

INITIAL_SPREAD = 0.035
"""Weights start uniform between this and its negative: a standard deviation of 0.02."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One weight of a layer.

    `name` and `shape` are the unsplit module's. `start`: uniform over +-INITIAL_SPREAD, zeros, ones, or (`fan_in`)
    uniform over +-1/sqrt(elements of one output). `split` is the dimension that tensor-parallel ranks share; None:
    every rank holds all of it. With `parts` (key-value heads) fewer than the ranks, ranks / parts consecutive ones hold
    the same. `padded`: the split dimension is filled up with zeros to a multiple of the ranks (a vocabulary's rows).
    `keeps_fp32`: held in fp32 whatever the layer's dtype (batch norm).
    """

    name: str
    shape: tuple[int, ...]
    start: Start = "uniform"
    split: int | None = None
    parts: int | None = None
    padded: bool = False
    keeps_fp32: bool = False


def layer_parameters(layer: Layer) -> tuple[Parameter, ...]:
    """Return the weights of `layer`, in the unsplit torch module's order. Raise ValueError for a traced layer: it has
    its own."""
    match layer:
        case Embedding():
            return tuple(_embedding(layer))
        case TransformerBlock():
            return tuple(_any_block(layer))
        case Head():
            return tuple(_head(layer))
        case ConvUnit() | Bottleneck() | Classifier():
            return tuple(_image_layer(layer))
        case TracedLayer():
            raise ValueError("found a TracedLayer, expected a layer of the zoo: a user's model makes its own weights")


def whole_name(name: str) -> str:
    """Return the unsplit module's name of a parameter: there, products add their output biases themselves.

    >>> whole_name("cross.bias.bias"), whole_name("norm.bias")
    ('cross.body.output.bias', 'norm.bias')
    """
    for late, early in (
        ("attention.bias.bias", "attention.body.output.bias"),
        ("cross.bias.bias", "cross.body.output.bias"),
        ("mlp.bias.bias", "mlp.body.down.bias"),
        ("biases.0.bias", "attention.output.bias"),
        ("biases.1.bias", "mlp.down.bias"),
    ):
        if name.endswith(late):
            return name.removesuffix(late) + early
    return name


def whole_array(parameter: Parameter, *, seed: int, layer: int) -> Array:
    """Return first values of the unsplit weight, fp32; random ones follow from `seed`, the layer's index and the name.

    Philox (Salmon et al. 2011) numbers its outputs, and the raw ones are the same in every version of numpy.
    """
    match parameter.start:
        case "zeros":
            return np.zeros(parameter.shape, np.float32)
        case "ones":
            return np.ones(parameter.shape, np.float32)
    key = sha256(f"{seed}/{layer}/{parameter.name}".encode()).digest()[:16]
    count = prod(parameter.shape)
    raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(-(-count // 2))
    halves = raw.astype("<u8").view("<u4")[:count]
    # 24 bits are what a float32 holds exactly: values in [0, 1).
    unit = (halves >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
    spread = INITIAL_SPREAD if parameter.start == "uniform" else prod(parameter.shape[1:]) ** -0.5
    return ((2 * unit - 1) * np.float32(spread)).reshape(parameter.shape)


def local_array(parameter: Parameter, whole: Array, *, tp: int, rank: int) -> Array:
    """Return the part of `whole` that `rank` of `tp` ranks holds: `whole` itself where all hold all of it, else a copy.

    Raise ValueError where `whole` has another shape than `parameter`, or `tp` does not divide the split dimension of a
    weight that is not padded.
    """
    if tuple(whole.shape) != parameter.shape:
        raise ValueError(f"{parameter.name}: found an array of shape {tuple(whole.shape)}, expected {parameter.shape}")
    if parameter.split is None or tp == 1:
        return whole
    dim, parts = parameter.split, split_into(parameter, tp)
    size = -(-parameter.shape[dim] // parts)
    index = [slice(None)] * whole.ndim
    part = rank * parts // tp
    index[dim] = slice(part * size, (part + 1) * size)
    part_array = whole[tuple(index)]
    missing = [(0, size - part_array.shape[dim] if d == dim else 0) for d in range(whole.ndim)]
    return np.pad(part_array, missing)


def split_into(parameter: Parameter, tp: int) -> int:
    """Return how many different parts `tp` ranks hold of a split weight: `tp`, or fewer of key-value heads.

    Raise ValueError where the ranks cannot share it evenly.
    """
    if parameter.split is None:
        return 1
    count = parameter.shape[parameter.split] if parameter.parts is None else parameter.parts
    if parameter.parts is not None and tp > count and tp % count == 0:
        return count
    if count % tp and not parameter.padded:
        kind = "a multiple" if parameter.parts is None else "a multiple or a divisor"
        raise ValueError(f"{parameter.name}: found {count} parts to split, expected {kind} of tp={tp}")
    return tp


def _linear(name: str, k: int, n: int, *, bias: bool = False, split: int | None = None) -> Iterator[Parameter]:
    """A (n, k) matrix. Split in dimension 0 its bias is too; in dimension 1 the bias is added to the ranks' sum."""
    yield Parameter(name=f"{name}.weight", shape=(n, k), split=split)
    if bias:
        yield Parameter(name=f"{name}.bias", shape=(n,), start="zeros", split=0 if split == 0 else None)


def _norm(name: str, kind: Norm, size: int, *, bias: bool = True, split: int | None = None) -> Iterator[Parameter]:
    yield Parameter(name=f"{name}.weight", shape=(size,), start="ones", split=split)
    if bias and kind == "layernorm":
        yield Parameter(name=f"{name}.bias", shape=(size,), start="zeros", split=split)


def _embedding(layer: Embedding) -> Iterator[Parameter]:
    columns = layer.factor or layer.hidden
    yield Parameter(name="tokens.weight", shape=(layer.vocab, columns), split=0, padded=True)
    if layer.factor:
        yield from _linear("project", columns, layer.hidden)
    if layer.positions:
        yield Parameter(name="positions.weight", shape=(layer.positions, layer.hidden))
    if layer.token_types:
        yield Parameter(name="types.weight", shape=(layer.token_types, layer.hidden))
    if layer.norm:
        yield from _norm("norm", layer.norm, layer.hidden)


def _head(layer: Head) -> Iterator[Parameter]:
    hidden = layer.hidden
    if layer.norm:
        yield from _norm("norm", layer.norm, hidden, bias=layer.norm_bias)
    if layer.pooler:
        yield from _linear("pooler", hidden, hidden, bias=True)
    if not layer.vocab:
        return
    if layer.transform:
        yield from _linear("transform.0", hidden, hidden, bias=True)
        yield from _norm("transform.2", "layernorm", hidden)
    if layer.factor:
        yield from _linear(f"transform.{3 if layer.transform else 0}", hidden, layer.factor)
    for parameter in _linear("vocabulary", layer.factor or hidden, layer.vocab, bias=layer.bias, split=0):
        yield replace(parameter, padded=True)
    if layer.prediction:
        for number in range(layer.prediction.count):
            yield from _prediction(f"predictions.{number}", layer.prediction, hidden)
        if not layer.tied:
            yield Parameter(name="tokens.weight", shape=(layer.vocab, hidden), split=0, padded=True)


def _prediction(name: str, spec: Prediction, hidden: int) -> Iterator[Parameter]:
    first = spec.blocks[0]
    for norm in ("state_norm", "token_norm"):
        yield from _norm(f"{name}.{norm}", first.norm, hidden, bias=first.norm_bias)
    yield from _linear(f"{name}.join", 2 * hidden, hidden)
    for number, block in enumerate(spec.blocks):
        for parameter in _any_block(block):
            yield replace(parameter, name=f"{name}.blocks.{number}.{parameter.name}")
    yield from _norm(f"{name}.norm", first.norm, hidden, bias=first.norm_bias)


def _any_block(layer: TransformerBlock) -> Iterator[Parameter]:
    return _parallel_block(layer) if layer.parallel else _block(layer)


def _block(layer: TransformerBlock) -> Iterator[Parameter]:
    parts = (("attention", layer.attention), ("cross", layer.cross_attention), ("mlp", layer.feed_forward))
    for name, part in parts:
        if part is None:
            continue
        yield from _norm(f"{name}.norm", layer.norm, layer.hidden, bias=layer.norm_bias)
        yield from _part(f"{name}.body", layer, part)
        if layer.placement == "sandwich":
            yield from _norm(f"{name}.post_norm", layer.norm, layer.hidden, bias=layer.norm_bias)


def _parallel_block(layer: TransformerBlock) -> Iterator[Parameter]:
    yield from _norm("norm", layer.norm, layer.hidden, bias=layer.norm_bias)
    if not layer.shared_norm:
        yield from _norm("mlp_norm", layer.norm, layer.hidden, bias=layer.norm_bias)
    for name, part in (("attention", layer.attention), ("mlp", layer.feed_forward)):
        if part is not None:
            yield from _part(name, layer, part)


def _part(
    name: str, layer: TransformerBlock, part: Attention | LinearAttention | FeedForward | Experts
) -> Iterator[Parameter]:
    match part:
        case Attention():
            return _attention(name, layer, part)
        case LinearAttention():
            return _linear_attention(name, layer.hidden, part)
        case FeedForward():
            return _dense(name, part, layer.hidden)
        case Experts():
            return _experts(name, part, layer.hidden)


def _linear_attention(name: str, hidden: int, spec: LinearAttention) -> Iterator[Parameter]:
    inner = spec.heads * spec.value_dim
    for rate in ("log_rate", "step_bias"):
        yield Parameter(name=f"{name}.{rate}", shape=(spec.heads,), start="zeros", split=0)
    if spec.rule == "state_space":
        yield Parameter(name=f"{name}.skip", shape=(spec.heads,), start="ones", split=0)
    for part, columns in spec.columns:
        parts = None if part == "value" else spec.groups
        yield Parameter(
            name=f"{name}.{part}.weight", shape=(columns, spec.kernel), start="fan_in", split=0, parts=parts
        )
        if spec.convolution_bias:
            yield Parameter(name=f"{name}.{part}.bias", shape=(columns,), start="zeros", split=0, parts=parts)
        for parameter in _linear(f"{name}.{part}.project", hidden, columns, split=0):
            yield replace(parameter, parts=parts)
    yield from _linear(f"{name}.gate", hidden, inner, split=0)
    for rate in spec.rates:
        yield from _linear(f"{name}.rates.{rate}", hidden, spec.heads, split=0)
    shared = spec.rule == "delta"
    yield from _norm(f"{name}.norm", "rmsnorm", spec.value_dim if shared else inner, split=None if shared else 0)
    yield from _linear(f"{name}.output", inner, hidden, split=1)


def _attention(name: str, block: TransformerBlock, spec: Attention) -> Iterator[Parameter]:
    value_dim = spec.head_dim if spec.latent is None else spec.latent.value_dim
    if spec.latent is None:
        yield from _projections(f"{name}.projections", block, spec)
    else:
        yield from _latent_projections(f"{name}.projections", block, spec, spec.latent)
    if spec.output_gate:
        yield from _linear(f"{name}.gate", block.hidden, spec.heads * value_dim, bias=spec.qkv_bias, split=0)
    yield from _linear(f"{name}.output", spec.heads * value_dim, block.hidden, bias=spec.output_bias, split=1)


def _projections(name: str, block: TransformerBlock, spec: Attention) -> Iterator[Parameter]:
    dim = spec.head_dim
    for part, heads, parts in (
        ("query", spec.heads, None),
        ("key", spec.kv_heads, spec.kv_heads),
        ("value", spec.kv_heads, spec.kv_heads),
    ):
        for parameter in _linear(f"{name}.{part}", block.hidden, heads * dim, bias=spec.qkv_bias, split=0):
            yield replace(parameter, parts=parts)
    if spec.query_key_norm == "none":
        return
    by_head = spec.query_key_norm == "head"
    for part, heads, parts in (("query_norm", spec.heads, None), ("key_norm", spec.kv_heads, spec.kv_heads)):
        size, split = (dim, None) if by_head else (heads * dim, 0)
        for parameter in _norm(f"{name}.{part}", block.norm, size, bias=block.norm_bias, split=split):
            yield replace(parameter, parts=None if by_head else parts)


def _latent_projections(
    name: str, block: TransformerBlock, spec: Attention, latent: LatentAttention
) -> Iterator[Parameter]:
    query_size, rank = spec.heads * (latent.nope_dim + latent.rope_dim), latent.query_rank
    if rank is None:
        yield from _linear(f"{name}.query", block.hidden, query_size, split=0)
    else:
        yield from _linear(f"{name}.query.0", block.hidden, rank, bias=spec.qkv_bias)
        yield from _norm(f"{name}.query.1", block.norm, rank, bias=block.norm_bias)
        yield from _linear(f"{name}.query.2", rank, query_size, split=0)
    kv_rank = latent.key_value_rank
    yield from _linear(f"{name}.down", block.hidden, kv_rank + latent.rope_dim, bias=spec.qkv_bias)
    yield from _norm(f"{name}.norm", block.norm, kv_rank, bias=block.norm_bias)
    yield from _linear(f"{name}.up", kv_rank, spec.heads * (latent.nope_dim + latent.value_dim), split=0)


def _dense(name: str, spec: FeedForward, hidden: int) -> Iterator[Parameter]:
    for part in ("gate", "up") if spec.gated else ("up",):
        yield from _linear(f"{name}.{part}", hidden, spec.hidden, bias=spec.bias, split=0)
    yield from _linear(f"{name}.down", spec.hidden, hidden, bias=spec.bias, split=1)


def _experts(name: str, spec: Experts, hidden: int) -> Iterator[Parameter]:
    yield from _linear(f"{name}.router", hidden, spec.count)
    if spec.latent:
        yield from _linear(f"{name}.latent_down", hidden, spec.latent)
        yield from _linear(f"{name}.latent_up", spec.latent, hidden)
    inner, width = spec.expert.hidden, spec.latent or hidden
    gate = (("gate", width, inner),) if spec.expert.gated else ()
    for part, k, n in (*gate, ("up", width, inner), ("down", inner, width)):
        yield Parameter(name=f"{name}.experts.{part}", shape=(spec.count, k, n), split=0)
        if spec.expert.bias:
            yield Parameter(name=f"{name}.experts.{part}_bias", shape=(spec.count, 1, n), start="zeros", split=0)
    if spec.shared_hidden:
        yield from _dense(f"{name}.shared", replace(spec.expert, hidden=spec.shared_hidden, bias=False), hidden)
        if spec.shared_gate:
            yield from _linear(f"{name}.shared_gate", hidden, 1)


def _image_layer(layer: ConvUnit | Bottleneck | Classifier) -> Iterator[Parameter]:
    match layer:
        case ConvUnit():
            yield from _convolution(
                "conv", layer.c_in, layer.c_out, layer.kernel, bias=layer.bias, norm=layer.batch_norm
            )
        case Bottleneck():
            wide, reduced = layer.width_channels, layer.reduced_channels or layer.width_channels
            yield from _convolution("conv1", layer.c_in, reduced, 1)
            yield from _convolution("conv2", reduced, wide, 3)
            yield from _convolution("conv3", wide, layer.c_out, 1)
            if layer.stride != 1 or layer.c_in != layer.c_out:
                yield from _convolution("shortcut", layer.c_in, layer.c_out, 1)
        case Classifier():
            for number, (k, n) in enumerate(zip(layer.features[:-1], layer.features[1:], strict=True)):
                yield from _linear(f"linears.{number}", k, n, bias=True, split=0)


def _convolution(
    name: str, c_in: int, c_out: int, kernel: int, *, bias: bool = False, norm: bool = True
) -> Iterator[Parameter]:
    yield Parameter(name=f"{name}.conv.weight", shape=(c_out, c_in, kernel, kernel), start="fan_in", split=0)
    if bias:
        yield Parameter(name=f"{name}.conv.bias", shape=(c_out,), start="zeros", split=0)
    if norm:
        yield Parameter(name=f"{name}.norm.weight", shape=(c_out,), start="ones", split=0, keeps_fp32=True)
        yield Parameter(name=f"{name}.norm.bias", shape=(c_out,), start="zeros", split=0, keeps_fp32=True)
