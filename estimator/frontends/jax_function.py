"""The frontend for any JAX function: `package.module:factory` becomes a chain of traced layers.

The factory returns `(function, params, inputs)`: `function(params, *inputs)` gives the loss (or any output), `params`
is a tree of arrays or of `jax.ShapeDtypeStruct`, `inputs` a tuple of either, batch first. With `(..., param_specs)`, a
tree of `PartitionSpec` over the axis `tp`, the function is one rank's body of a `jax.shard_map` and issues its own
collectives; it then has every degree of tensor parallelism that divides its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import jax

from estimator.frontends.factory import first_line, user_code
from estimator.frontends.jax_cut import Cut, cut_chain, name_layers
from estimator.frontends.jax_example import JaxExample, call_jax_factory, check_returned
from estimator.frontends.jax_flatten import flatten
from estimator.frontends.jax_gradients import GradientTracer
from estimator.frontends.jax_layers import layer_texts, trace_layers
from estimator.frontends.jax_products import UncountableError
from estimator.frontends.jax_program import Held, Program, is_float, own_dtype, read_program
from estimator.frontends.jax_ranks import among, split_dims
from estimator.frontends.traced import (
    IndivisibleError,
    Work,
    add_degrees,
    has_negative_work,
    other_work,
    shards_of,
    traced_model,
    two_batches,
)
from models_zoo.layers import TracedShard
from models_zoo.model import Model
from models_zoo.user_code import UserFactory
from profiles.errors import InputError, MachineError
from profiles.vocabulary import LocalLayer

T = TypeVar("T")


def load_function_model(factory: UserFactory) -> Model:
    """The model that `factory` makes, traced at two batch sizes, backward included, without any memory.

    InputError where the factory cannot be found or returns something else, and where the function cannot be traced and
    differentiated on its inputs, or only for certain values.
    """
    return _function_model(factory, call_jax_factory(factory))


def live_function_model(title: str, live: tuple[object, ...]) -> Model:
    """Return the model called `title` of what a caller has, `(function, params, inputs)` or `(function, params, inputs,
    param_specs)`: as `load_function_model`."""
    return _function_model(UserFactory(reference=title), check_returned(title, live))


def _function_model(factory: UserFactory, example: JaxExample) -> Model:
    reference = factory.reference
    batches = two_batches(example.batch)
    try:
        check = tracks_ranks(example, batches[0])
        programs = [trace_program(example, ranks=1, batch=batch, check=check) for batch in batches]
    except (Exception, SystemExit) as error:
        _refuse_to_run(reference, error)
    cuts = cut_chain(programs[0])
    if not cuts:
        expected = "a function that computes something of both"
        raise InputError(where=reference, found="nothing that depends on params and inputs", expected=expected)
    places = places_of(programs[0], cuts)
    shards = [[work] for work in _shards(reference, programs, places, ranks=1)]
    _check_growth(reference, [shard for ((shard, _),) in shards])

    def split(degree: int) -> list[Work]:
        reason = example.indivisible(degree)
        if reason is not None:
            raise IndivisibleError(reason)
        split_programs = [trace_program(example, ranks=degree, batch=batch, check=check) for batch in batches]
        return _shards(reference, split_programs, places, ranks=degree)

    return traced_model(
        factory,
        batch=batches[0],
        names=name_layers(programs[0], cuts),
        places=[(place,) for place in places],
        refused=() if example.specs is None else add_degrees(shards, split),
        layers=shards,
        framework="jax",
    )


def trace_program(example: JaxExample, *, ranks: int, batch: int, check: bool) -> Program:
    """The program that one of `ranks` ranks runs for `batch` samples; `check` as in `among`."""

    def work(params: Any, inputs: tuple[Any, ...]) -> Program:
        return _read(example, params, inputs)

    return on_rank(example, ranks, batch, check, work)


def _read(example: JaxExample, params: Any, inputs: tuple[Any, ...]) -> Program:
    """The program for parameters and inputs of the given types, where its axes are bound."""
    with user_code():
        closed = jax.make_jaxpr(example.function)(params, *inputs)
    types = jax.tree.leaves(params)
    flat = flatten(closed, len(types))
    specs = [()] * len(types) if example.specs is None else [split_dims(leaf) for leaf in _leaves_of(example.specs)]
    held = [
        Held(number, None, leaf.size, len(leaf.shape), not dims, is_float(leaf.dtype))
        for number, (leaf, dims) in enumerate(zip(types, specs, strict=True))
    ]
    return read_program(flat, held, own_dtype(types), GradientTracer())


def _leaves_of(specs: Any) -> Any:
    return jax.tree.leaves(specs, is_leaf=lambda spec: isinstance(spec, jax.sharding.PartitionSpec))


def on_rank(example: JaxExample, ranks: int, batch: int, check: bool, work: Callable[[Any, tuple[Any, ...]], T]) -> T:
    """What `work` makes of the types of one rank's parameters and inputs, where the function's axes are bound."""
    inputs = example.inputs_for(batch)
    if example.specs is None:
        return work(example.params, inputs)
    return among(ranks, example.params, example.specs, inputs, work, check)


def tracks_ranks(example: JaxExample, batch: int) -> bool:
    """Whether JAX is to track what differs between ranks, and so itself to sum the gradients that have to be.

    Not where the function has rules for that of its own (Megatron's f and g as `custom_vjp`), and not where it was
    written for a `shard_map` without `check_vma`. What JAX raises in either case passes.
    """
    if example.specs is None:
        return False
    try:
        program = trace_program(example, ranks=1, batch=batch, check=True)
    except Exception:
        return False
    own_rules = [
        gradient
        for eqn, gradient in zip(program.eqns, program.gradients, strict=True)
        if eqn.primitive.name == "custom_vjp_call"
    ]
    return not any(gradient_rule.messages_forward or gradient_rule.messages_backward for gradient_rule in own_rules)


def places_of(program: Program, cuts: Sequence[Cut]) -> tuple[str, ...]:
    """Where each layer stands: which of the chain's solid equations (see `Program.is_solid`), and of how many."""
    ordinals = _ordinals(program)
    return tuple(f"{ordinals[first]}-{ordinals[end]}/{ordinals[-1]}" for first, end in cuts)


def cut_at(program: Program, places: Sequence[str]) -> tuple[Cut, ...]:
    """The layers at `places` in a program of another dtype, batch or degree. ValueError if it does other work."""
    ordinals = _ordinals(program)
    cuts = []
    for place in places:
        span, _, total = place.partition("/")
        first, end = map(int, span.split("-"))
        if ordinals[-1] != int(total):
            raise ValueError(f"the function does other work here: {ordinals[-1]} equations, {total} in its first trace")
        cuts.append((ordinals.index(first), len(program.chain) if end == ordinals[-1] else ordinals.index(end)))
    return tuple(cuts)


def _ordinals(program: Program) -> list[int]:
    """For each place in the chain, and its end, how many solid equations stand before it."""
    counts = [0]
    for index in program.chain:
        counts.append(counts[-1] + program.is_solid(index))
    return counts


def _shards(reference: str, programs: list[Program], places: Sequence[str], *, ranks: int) -> list[Work]:
    """Each layer's shard. InputError where the function does other work in another batch, ValueError where it does
    other work than where `places` are from."""
    cuts = cut_at(programs[0], places)
    unequal = other_work(reference, (layer.inputs[0].aval.shape[0] for layer in programs), "function")
    try:
        others = cut_at(programs[1], places)
    except ValueError as error:
        raise unequal from error
    small, large = (
        trace_layers(program, cut, ranks=ranks) for program, cut in zip(programs, (cuts, others), strict=True)
    )
    for layer, larger in zip(small, large, strict=True):
        if [(kernel.name, kernel.kind) for kernel in layer.kernels] != [(k.name, k.kind) for k in larger.kernels]:
            raise unequal
    # What scopes are called is no part of the work.
    shards = zip(shards_of(small, large, tp=ranks), layer_texts(programs[0], cuts), strict=True)
    return [(shard, (shard.tp, tuple(map(_without_names, shard.corners)), text)) for shard, text in shards]


def _check_growth(reference: str, shards: Sequence[TracedShard]) -> None:
    if has_negative_work(shards):
        raise InputError(where=reference, found="negative work", expected="a function that works on arrays")
    for shard in shards:
        small, _, large, _ = shard.corners
        if large.forward_flops < small.forward_flops or large.output_bytes < small.output_bytes:
            expected = "the batch as first dimension wherever arrays meet"
            raise InputError(where=reference, found="work that does not grow with the batch", expected=expected)


def _without_names(local: LocalLayer) -> LocalLayer:
    return replace(local, operators=tuple(replace(op, name="") for op in local.operators))


def _refuse_to_run(reference: str, error: BaseException) -> NoReturn:
    if isinstance(error, InputError | MachineError):
        raise error
    expected = "a function that can be traced and differentiated on its inputs, at any batch size"
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.NonConcreteBooleanIndexError):
        expected = "a function whose control flow and shapes do not depend on the values of arrays"
    elif isinstance(error, UncountableError):
        expected = "JAX's own operators (plain attention in place of a kernel, say), in loops of known length"
    elif isinstance(error, NameError) and "axis name" in str(error):
        expected = "param_specs as the fourth item, with which the function runs as a shard_map's body"
    raise InputError(where=reference, found=first_line(error), expected=expected) from error
