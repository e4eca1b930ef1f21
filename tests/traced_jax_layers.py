"""What a zoo layer does in JAX, read from its traces: collectives, and FLOPs by the program and by the compiler.

Tracing inside `jax.shard_map` over an `AbstractMesh` gives one rank's program in local shapes with the collectives in
it; no device is needed, and nothing is computed or compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import AbstractMesh, PartitionSpec

from models_zoo.jax_layers.build import LayerFunction, example_inputs, example_params, layer_function
from models_zoo.jax_layers.parallel import AXIS
from models_zoo.layers import ConvUnit, Layer
from profiles.vocabulary import Collective, CollectiveOp, Phase, Shard

PARTIAL_GRADIENTS = "partial gradients"

_OPS: dict[str, CollectiveOp] = {
    "psum": "all_reduce",
    "psum_invariant": "all_reduce",
    "pmax": "all_reduce",
    "pmin": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "ppermute": "send_recv",
}
_Seen = Counter[tuple[CollectiveOp, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFlops:
    """FLOPs of one rank's forward, and of its forward with backward.

    `matrix_*` are those of matrix products and convolutions in the traced program, 2 per multiply-add; `compiler_*` is
    XLA's own count of the unoptimised program, which also holds one for each element of element-wise work.
    """

    matrix_forward: int
    matrix_training: int
    compiler_forward: float
    compiler_training: float


def list_collectives(layer: Layer, shard: Shard) -> tuple[Collective, ...]:
    """The collectives of one rank's forward and backward, sizes by nccl-tests' convention; none with tp = 1.

    JAX itself sums the gradient of a weight that all ranks hold and each has a part of, once a backward and weight
    (named `PARTIAL_GRADIENTS`), where `estimator.layers.shards` counts one sum of all of them once a step. It leaves
    that of key-value heads fewer than ranks to `sum_shared`. Raises as `layer_function` does.
    """
    if shard.tp == 1:
        return ()
    function = layer_function(layer, shard)
    forward = _seen(function, layer, shard, "nothing")
    to_inputs = _seen(function, layer, shard, "inputs") - forward
    to_all = _seen(function, layer, shard, "all") - forward
    found = [*_named(forward, "forward", shard), *_named(to_inputs, "backward", shard)]
    for (op, size), count in sorted((to_all - to_inputs).items()):
        name = PARTIAL_GRADIENTS if op == "all_reduce" else ""
        found += [Collective(op=op, bytes=size, phase="backward", ranks=shard.tp, name=name)] * count
    return tuple(found)


def compiled_flops(layer: Layer, shard: Shard) -> CompiledFlops:
    """Of one rank's part of `layer`, without dropout, on JAX's default back-end. Raises as `layer_function` does."""
    function = layer_function(layer, shard, neutral=True)
    params = jax.eval_shape(partial(example_params, function, shard))
    inputs = jax.eval_shape(partial(example_inputs, layer, shard))
    training = partial(_train, function.apply, "all", _gradient_places(layer, inputs))

    def count(body: Callable[..., Any]) -> tuple[int, float]:
        matrix = matrix_flops(jax.make_jaxpr(body)(params, *inputs).jaxpr)
        return matrix, float(jax.jit(body).lower(params, *inputs).cost_analysis()["flops"])

    (forward, by_compiler), (both, both_by_compiler) = count(function.apply), count(training)
    return CompiledFlops(
        matrix_forward=forward,
        matrix_training=both,
        compiler_forward=by_compiler,
        compiler_training=both_by_compiler,
    )


def matrix_flops(jaxpr: Jaxpr) -> int:
    """FLOPs of all matrix products and convolutions in a program, 2 per multiply-add. A loop of unknown length counts
    once; zeros count that pad a convolution's input or, in its gradient, stand between the elements."""
    return sum(times * _flops_of(eqn) for eqn, times in _equations(jaxpr))


def _flops_of(eqn: JaxprEqn) -> int:
    made: int = prod(eqn.outvars[0].aval.shape)
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        summed: int = prod(eqn.invars[0].aval.shape[dim] for dim in contracted)
        return 2 * made * summed
    if eqn.primitive.name == "conv_general_dilated":
        _, *others = eqn.params["dimension_numbers"].rhs_spec
        taps: int = prod(eqn.invars[1].aval.shape[dim] for dim in others)
        return 2 * made * taps
    return 0


def _named(seen: _Seen, phase: Phase, shard: Shard) -> Iterator[Collective]:
    for (op, size), count in sorted(seen.items()):
        for _ in range(count):
            yield Collective(op=op, bytes=size, phase=phase, ranks=shard.tp)


def _seen(function: LayerFunction, layer: Layer, shard: Shard, towards: str) -> _Seen:
    """Collectives of forward and, where gradients go `towards` inputs or all, of backward behind it."""
    params, inputs = _global_arguments(function, layer, shard)
    places = _gradient_places(layer, inputs)
    specs: tuple[Any, ...] = (function.param_specs, tuple(function.input_specs[place] for place in places))
    out_specs: Any = {"nothing": function.output_spec, "inputs": ({}, specs[1]), "all": specs}[towards]
    body = function.apply if towards == "nothing" else partial(_train, function.apply, towards, places)
    mapped = jax.shard_map(
        body,
        mesh=AbstractMesh((shard.tp,), (AXIS,)),
        in_specs=(function.param_specs, *function.input_specs),
        out_specs=out_specs,
        check_vma=True,
    )
    found: _Seen = Counter()
    for eqn, times in _equations(jax.make_jaxpr(mapped)(params, *inputs).jaxpr):
        op = _OPS.get(eqn.primitive.name)
        if op is None:
            continue
        # A gather's size is that of what it makes, any other's of what it takes.
        for var in eqn.outvars if op == "all_gather" else eqn.invars:
            found[op, var.aval.size * var.aval.dtype.itemsize] += times
    return found


def _train(apply: Callable[..., Any], towards: str, places: tuple[int, ...], params: Any, *inputs: Any) -> Any:
    """Gradients of weights (where they go towards all) and of the inputs at `places`."""

    def run(weights: Any, given: tuple[Any, ...]) -> Any:
        values = list(inputs)
        for place, x in zip(places, given, strict=True):
            values[place] = x
        return apply({**params, **weights}, *values)

    weights = params if towards == "all" else {}
    made, pull = jax.vjp(run, weights, tuple(inputs[place] for place in places))
    # Any gradient of the output's own type serves a trace.
    return pull(made)


def _gradient_places(layer: Layer, inputs: tuple[Any, ...]) -> tuple[int, ...]:
    """The inputs that hand a gradient back."""
    if isinstance(layer, ConvUnit) and layer.first:
        return ()
    return tuple(place for place, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating))


def _global_arguments(function: LayerFunction, layer: Layer, shard: Shard) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Shapes and dtypes of what all ranks hold together."""
    params = jax.eval_shape(partial(example_params, function, shard))
    inputs = jax.eval_shape(partial(example_inputs, layer, shard))
    joined = {name: _joined(x, function.param_specs[name], shard.tp) for name, x in params.items()}
    return joined, tuple(_joined(x, spec, shard.tp) for x, spec in zip(inputs, function.input_specs, strict=True))


def _joined(local: Any, spec: PartitionSpec, tp: int) -> jax.ShapeDtypeStruct:
    parts = (*spec, *[None] * (len(local.shape) - len(spec)))
    shape = [size * tp if part == AXIS else size for size, part in zip(local.shape, parts, strict=True)]
    return jax.ShapeDtypeStruct(tuple(shape), local.dtype)


def _equations(jaxpr: Jaxpr, times: int = 1) -> Iterator[tuple[JaxprEqn, int]]:
    """All equations at any depth, and how often each runs."""
    for eqn in jaxpr.eqns:
        yield eqn, times
        repeats = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    yield from _equations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, repeats)
