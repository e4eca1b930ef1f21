"""From a layer's specification to the function that one rank runs, how its arrays are split, and arrays for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from models_zoo.jax_layers.attention import check_heads
from models_zoo.jax_layers.blocks import block, embedding, head, parallel_block
from models_zoo.jax_layers.convolution import bottleneck, check_channels, classifier, conv_unit
from models_zoo.jax_layers.feed_forward import check_feed_forward
from models_zoo.jax_layers.parallel import AXIS, SEQUENCE_DIM, Array, Region, dtype_of, region_of
from models_zoo.layers import (
    Attention,
    Bottleneck,
    Classifier,
    ConvUnit,
    Embedding,
    Head,
    Layer,
    TransformerBlock,
    without_jax,
)
from models_zoo.parameters import INITIAL_SPREAD, Parameter, layer_parameters, local_array, split_into
from profiles.records import dataclass
from profiles.vocabulary import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFunction:
    """One rank's part of a layer as a function, and how global arrays are split for it over the mesh axis `tp`.

    `apply(params, *inputs, key=None)` takes the rank's own arrays by the names of `parameters` and drops nothing
    without a key. With tp > 1 it runs inside `jax.shard_map(..., check_vma=True)`. `param_specs` split the arrays that
    `global_array` makes. The gradient of a weight that all ranks hold comes out whole; that of one in `shared_by` only
    in part, to be summed by the caller: so many consecutive ranks hold a copy of it (key-value heads fewer than
    ranks).
    """

    apply: Callable[..., Array]
    parameters: tuple[Parameter, ...]
    param_specs: dict[str, PartitionSpec]
    input_specs: tuple[PartitionSpec, ...]
    output_spec: PartitionSpec
    shared_by: dict[str, int]


def layer_function(layer: Layer, shard: Shard, *, neutral: bool = False) -> LayerFunction:
    """Return the function of `layer` for one of `shard.tp` ranks, in the shard's dtype.

    Embedding: ids (b, s) to activations. Block: activations (b, s, hidden), and encoder memory alike where it has
    cross-attention, to activations. Head: activations and targets (b, s) to a scalar loss. Image layers: images (b, c,
    h, w) to images; a classifier takes targets (b,) too and gives a scalar loss. `shard.recompute` is the caller's:
    wrap `apply` in `jax.checkpoint`. A `neutral` function is one rank without the others, for timing on one device: it
    runs anywhere and communicates with nobody (`Region`). Raise ValueError where the degree does not divide the layer,
    the dtype has no plain arithmetic, the layer has no JAX function, or it was traced from a user's function.
    """
    parameters = layer_parameters(layer)
    region = region_of(shard, neutral=neutral)
    _check(layer, region)
    copies = {p.name: shard.tp // split_into(p, shard.tp) for p in parameters if p.split is not None}
    inputs, output = _activation_specs(layer, region)
    return LayerFunction(
        apply=partial(_body(layer), layer, region),
        parameters=parameters,
        param_specs={p.name: param_spec(p, shard.tp) for p in parameters},
        input_specs=inputs,
        output_spec=output,
        shared_by={name: ranks for name, ranks in copies.items() if ranks > 1},
    )


def _body(layer: Layer) -> Callable[..., Array]:
    match layer:
        case Embedding():
            return embedding
        case TransformerBlock():
            return parallel_block if layer.parallel else block
        case Head():
            return head
        case ConvUnit():
            return conv_unit
        case Bottleneck():
            return bottleneck
        case Classifier():
            return classifier
    raise ValueError(f"found a {type(layer).__name__}, expected a layer of the zoo")


def _check(layer: Layer, region: Region) -> None:
    if lacking := without_jax((layer,)):
        raise ValueError(f"found {lacking}, which has no JAX function, expected layers that torch and JAX both run")
    match layer:
        case TransformerBlock():
            if layer.parallel and (layer.placement != "pre" or layer.cross_attention):
                raise ValueError(
                    f"found a parallel residual with placement={layer.placement!r} and"
                    f" cross_attention={layer.cross_attention is not None}, expected pre-norm self-attention"
                )
            for spec in (layer.attention, layer.cross_attention):
                if isinstance(spec, Attention):
                    check_heads(spec, region)
            if layer.feed_forward:
                check_feed_forward(layer.feed_forward, region)
        case ConvUnit() | Bottleneck() | Classifier():
            check_channels(layer, region)


def param_spec(parameter: Parameter, tp: int) -> PartitionSpec:
    """Return how the array of `global_array` is split."""
    if parameter.split is None or tp == 1:
        return PartitionSpec()
    return PartitionSpec(*[None] * parameter.split, AXIS)


def _activation_specs(layer: Layer, region: Region) -> tuple[tuple[PartitionSpec, ...], PartitionSpec]:
    whole = PartitionSpec()
    tokens = PartitionSpec(*[None] * SEQUENCE_DIM, AXIS) if region.sequence_parallel else whole
    match layer:
        case Embedding():
            return (whole,), tokens
        case TransformerBlock():
            return (tokens,) * (2 if layer.cross_attention else 1), tokens
        case Head():
            return (tokens, whole), whole
        case Classifier():
            return (whole, whole), whole
    return (whole,), whole


def global_array(parameter: Parameter, whole: Any, *, tp: int) -> Any:
    """Return all ranks' parts of `whole` one after the other: what `param_specs` split. numpy in, numpy out.

    Longer than `whole` where a vocabulary is padded, or where ranks outnumber key-value heads and each head stands
    there once for every rank that holds it.
    """
    if parameter.split is None or tp == 1:
        return whole
    parts = [local_array(parameter, whole, tp=tp, rank=rank) for rank in range(tp)]
    return np.concatenate(parts, parameter.split)


def example_params(function: LayerFunction, shard: Shard, *, seed: int = 0) -> dict[str, Array]:
    """Return random weights of one rank, in the shard's dtype, spread as `Parameter.start` says."""
    dtype = dtype_of(shard)
    keys = jax.random.split(jax.random.key(seed), len(function.parameters))
    params = {}
    for parameter, key in zip(function.parameters, keys, strict=True):
        kind = jnp.float32 if parameter.keeps_fp32 else dtype
        shape = local_shape(parameter, shard.tp)
        match parameter.start:
            case "zeros" | "ones":
                params[parameter.name] = jnp.full(shape, float(parameter.start == "ones"), kind)
            case start:
                fan_in = int(np.prod(shape[1:]))
                spread = INITIAL_SPREAD if start == "uniform" else fan_in**-0.5
                params[parameter.name] = jax.random.uniform(key, shape, kind, -spread, spread)
    return params


def local_shape(parameter: Parameter, tp: int) -> tuple[int, ...]:
    """Return the shape of one rank's part."""
    if parameter.split is None:
        return parameter.shape
    size = -(-parameter.shape[parameter.split] // split_into(parameter, tp))
    return (*parameter.shape[: parameter.split], size, *parameter.shape[parameter.split + 1 :])


def example_inputs(layer: Layer, shard: Shard, *, seed: int = 0) -> tuple[Array, ...]:
    """Return random local inputs of one layer, as `layer_function` describes them; under sequence parallelism
    activations are s / tp long. Ids and targets are int32."""
    b, s, dtype = shard.micro_batch_per_rank, shard.seq_len, dtype_of(shard)
    first, second = jax.random.split(jax.random.key(seed))
    match layer:
        case Embedding():
            return (jax.random.randint(first, (b, s), 0, layer.vocab),)
        case TransformerBlock() | Head():
            local = s // shard.tp if shard.sequence_parallel else s
            x = jax.random.normal(first, (b, local, layer.hidden), dtype)
            if isinstance(layer, Head):
                return x, jax.random.randint(second, (b, s), 0, layer.vocab or 1)
            return (x, jax.random.normal(second, x.shape, dtype)) if layer.cross_attention else (x,)
        case ConvUnit() | Bottleneck():
            return (jax.random.normal(first, (b, layer.c_in, layer.height, layer.width), dtype),)
        case Classifier():
            area = 1 if layer.average_pool else layer.height * layer.width
            images = jax.random.normal(first, (b, layer.features[0] // area, layer.height, layer.width), dtype)
            return images, jax.random.randint(second, (b,), 0, layer.features[-1])
    raise ValueError(f"found a {type(layer).__name__}, expected a layer of the zoo")
