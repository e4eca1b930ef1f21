"""Makes a runnable function of a traced layer of a JAX function, or of several in a row, for timing it on one device.

The user's function is traced at the micro-batch, dtype and degree wanted; the equations of the layers are cut out of
it, and get weights and inputs of the right shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from estimator.frontends.jax_cut import Cut
from estimator.frontends.jax_equations import bind_in_context, evaluate, variables
from estimator.frontends.jax_example import JaxExample, call_jax_factory
from estimator.frontends.jax_function import cut_at, on_rank, trace_program, tracks_ranks
from estimator.frontends.jax_gradients import trace_vjp
from estimator.frontends.jax_layers import indices_of
from estimator.frontends.jax_neutral import neutralise
from estimator.frontends.jax_program import Held, Program, is_float, own_dtype
from models_zoo.jax_layers.parallel import dtype_of
from models_zoo.layers import TracedLayer
from models_zoo.user_code import UserFactory
from profiles.records import dataclass
from profiles.vocabulary import Shard

Piece = Callable[..., tuple[jax.Array, ...]]

_SPREAD = 0.02


def build_traced(
    layers: Sequence[TracedLayer], shard: Shard
) -> tuple[Piece, tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """(function, params, inputs) of contiguous `layers` of one model, in the shard's dtype, for one rank of its degree.

    `function(params, *inputs)` returns a tuple: what later layers read, and at the model's end the function's outputs.
    Weights and inputs are random, and equal for the same weights in whichever layers. Where the factory brings
    `param_specs` collectives give way to local operations of their shape, forward and backward (see `neutralise`).
    ValueError for a dtype that JAX does not compute in, a degree that the function cannot have, and where it does other
    work in this dtype or batch than when its layers were cut.
    """
    traced = _trace(layers[0].factory, shard.micro_batch_per_rank, jnp.dtype(dtype_of(shard)), shard.tp)
    cuts = cut_at(traced.program, [place for layer in layers for place in layer.places])
    cut = (cuts[0][0], cuts[-1][1])

    def work(_params: Any, _inputs: tuple[Any, ...]) -> _Piece:
        return _cut_out(traced.program, cut, neutral=traced.example.specs is not None)

    # The derivative is traced where the axes of the collectives are bound.
    piece = on_rank(traced.example, shard.tp, shard.micro_batch_per_rank, traced.check, work)
    return piece.function, tuple(map(_weight, piece.weights)), tuple(map(_input, piece.inputs))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Traced:
    example: JaxExample
    check: bool
    program: Program


@lru_cache(maxsize=4)
def _trace(factory: UserFactory, batch: int, dtype: Any, ranks: int) -> _Traced:
    example = _in_dtype(call_jax_factory(factory), dtype)
    if ranks > 1 and (reason := "no param_specs" if example.specs is None else example.indivisible(ranks)):
        raise ValueError(f"tp = {ranks}: {reason}")
    check = tracks_ranks(example, batch)
    return _Traced(example=example, check=check, program=trace_program(example, ranks=ranks, batch=batch, check=check))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Weight:
    held: Held
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Input:
    """`bound`: integers stay below it."""

    number: int
    shape: tuple[int, ...]
    dtype: Any
    bound: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Piece:
    function: Piece
    weights: tuple[_Weight, ...]
    inputs: tuple[_Input, ...]


def _in_dtype(example: JaxExample, dtype: Any) -> JaxExample:
    """The example with `dtype` in the place of its own."""
    example_dtype = own_dtype(jax.tree.leaves(example.params))

    def convert(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, dtype if leaf.dtype == example_dtype else leaf.dtype)

    return JaxExample(
        function=example.function,
        params=jax.tree.map(convert, example.params),
        inputs=tuple(map(convert, example.inputs)),
        specs=example.specs,
    )


def _cut_out(program: Program, cut: Cut, *, neutral: bool) -> _Piece:
    eqns = [program.eqns[index] for index in indices_of(program, cut)]
    made = {var for eqn in eqns for var in eqn.outvars}
    results = _results(program, cut, made)
    needed = [atom for eqn in eqns for atom in eqn.invars] + results
    sources = [var for var in dict.fromkeys(variables(needed)) if var not in made]
    weights = sorted(
        (var for var in sources if var in program.weights),
        key=lambda var: (program.weights[var].leaf, program.weights[var].part or 0),
    )
    order = {var: number for number, var in enumerate((*program.inputs, *program.makers))}
    inputs = sorted((var for var in sources if var in order), key=order.__getitem__)
    arguments = [*weights, *inputs]

    def flat(*args: Any) -> tuple[Any, ...]:
        values = dict(zip(arguments, args, strict=True)) | program.consts
        return tuple(evaluate(eqns, results, values, bind_in_context, lambda constant: constant))

    run = _without_ranks(flat, program, arguments, results) if neutral else flat
    bound = _bound(program, eqns)
    return _Piece(
        function=lambda params, *inputs: run(*params, *inputs),
        weights=tuple(
            _Weight(held=program.weights[var], shape=var.aval.shape, dtype=var.aval.dtype) for var in weights
        ),
        inputs=tuple(
            _Input(number=order[var], shape=var.aval.shape, dtype=var.aval.dtype, bound=bound) for var in inputs
        ),
    )


def _results(program: Program, cut: Cut, made: set[Var]) -> list[Any]:
    """What the piece passes on, in the order in which it is made; at the chain's end the function's own outputs."""
    first, end = cut
    later = {atom for index in program.chain[end:] for atom in variables(program.eqns[index].invars)}
    if end == len(program.chain):
        return list(program.outputs)
    made_here = [var for index in program.chain[first:end] for var in program.eqns[index].outvars]
    final = set(variables(program.outputs))
    return [var for var in made_here if var in made and (var in later or var in final)]


def _without_ranks(
    flat: Callable[..., tuple[Any, ...]], program: Program, arguments: Sequence[Var], results: Sequence[Any]
) -> Callable[..., tuple[Any, ...]]:
    """`flat` outside of its `shard_map`, with the derivative that JAX gives it inside."""
    read, made = (
        [place for place, atom in enumerate(atoms) if not isinstance(atom, Literal) and atom in program.active]
        for atoms in (arguments, results)
    )
    forward, backward, count = trace_vjp(flat, [var.aval for var in arguments], read, made)
    ahead, back = neutralise(forward), neutralise(backward)

    def plain(*args: Any) -> tuple[Any, ...]:
        return tuple(ahead(*args)[:count])

    def keep(*args: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        results = ahead(*args)
        return tuple(results[:count]), tuple(results[count:])

    def pull(kept: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        pulled = dict(zip(read, back(*kept, *(gradients[place] for place in made)), strict=True))
        return tuple(pulled.get(place) for place in range(len(arguments)))

    run = jax.custom_vjp(plain)
    run.defvjp(keep, pull)
    ranked: Callable[..., tuple[Any, ...]] = run
    return ranked


def _bound(program: Program, eqns: Sequence[JaxprEqn]) -> int:
    """What whole numbers of the inputs must stay below: the least of the sizes that a lookup chooses from."""
    sizes = [
        eqn.invars[0].aval.shape[dim]
        for eqn in eqns
        if eqn.primitive.name == "gather" and eqn.invars[1] in program.of_inputs
        for dim in eqn.params["dimension_numbers"].start_index_map
    ]
    return min(sizes, default=2)


def _weight(weight: _Weight) -> jax.Array:
    """Made by numpy, as each of JAX's own random shapes would have to be compiled first."""
    rng = np.random.default_rng((0, weight.held.leaf, 0 if weight.held.part is None else 1 + weight.held.part))
    if jax.dtypes.issubdtype(weight.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), weight.shape)
    if not is_float(weight.dtype):
        return jnp.zeros(weight.shape, weight.dtype)
    return jnp.asarray(_SPREAD * rng.standard_normal(weight.shape, np.float32), weight.dtype)


def _input(source: _Input) -> jax.Array:
    rng = np.random.default_rng((1, source.number))
    if is_float(source.dtype):
        return jnp.asarray(rng.standard_normal(source.shape, np.float32), source.dtype)
    if source.dtype == jnp.bool_:
        return jnp.ones(source.shape, source.dtype)
    return jnp.asarray(rng.integers(source.bound, size=source.shape), source.dtype)
