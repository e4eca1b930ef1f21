"""The frontend for any JAX function: `package.module:factory` becomes a chain of traced layers.

The factory returns `(function, params, inputs)`: `function(params, *inputs)` gives the loss (or any output), `params`
is a tree of arrays or of `jax.ShapeDtypeStruct`, `inputs` a tuple of either, batch first. With `(..., param_specs)`, a
tree of `PartitionSpec` over the axis `tp`, the function is one rank's body of a `jax.shard_map` and issues its own
collectives; it then has every degree of tensor parallelism that divides its parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

import jax

from estimator.frontends.factory import first_line, user_code
from estimator.frontends.jax_cut import Cut, cut_chain, name_layers
from estimator.frontends.jax_example import JaxExample, call_jax_factory
from estimator.frontends.jax_flatten import flatten
from estimator.frontends.jax_gradients import GradientTracer
from estimator.frontends.jax_layers import layer_texts, local_layers, shared_weights
from estimator.frontends.jax_products import UncountableError
from estimator.frontends.jax_program import Held, Program, is_float, own_dtype, read_program
from estimator.frontends.jax_ranks import among, split_dims
from models_zoo.layers import TracedLayer, TracedShard
from models_zoo.model import Model, TracedInput
from profiles.errors import InputError, MachineError
from profiles.measurements import canonical
from profiles.vocabulary import LocalLayer

T = TypeVar("T")

DEGREES = (2, 4, 8)
WIDTHS = (2, 4)


@dataclass(frozen=True, slots=True)
class _Traced:
    """A layer's shards of one degree, and the text of what it does."""

    shard: TracedShard
    text: str


def load_function_model(reference: str) -> Model:
    """The model that the factory `reference` makes, traced at two batch sizes, backward included, without any memory.

    InputError where the factory cannot be found or returns something else, and where the function cannot be traced and
    differentiated on its inputs, or only for certain values.
    """
    example = call_jax_factory(reference)
    # Some functions treat a batch of one differently, so the smaller of the two is at least two.
    batches = (max(2, example.batch), 2 * max(2, example.batch))
    try:
        check = tracks_ranks(example, batches[0])
        programs = [trace_program(example, ranks=1, batch=batch, check=check) for batch in batches]
    except Exception as error:
        _refuse_to_run(reference, error)
    cuts = cut_chain(programs[0])
    if not cuts:
        expected = "a function that computes something of both"
        raise InputError(where=reference, found="nothing that depends on params and inputs", expected=expected)
    places = places_of(programs[0], cuts)
    shards = [[traced] for traced in _shards(reference, programs, places, ranks=1)]
    _check_growth(reference, [traced.shard for (traced,) in shards])
    refused = _split(reference, example, batches, check, places, shards)
    return Model(
        name=reference,
        family="module",
        layers=tuple(
            TracedLayer(
                fingerprint=_fingerprint(batches[0], traced_shards[:1]),
                split_fingerprint=_fingerprint(batches[0], traced_shards[1:]),
                factory=reference,
                batch=batches[0],
                places=(place,),
                shards=tuple(traced.shard for traced in traced_shards),
                refused=refused,
                framework="jax",
            )
            for place, traced_shards in zip(places, shards, strict=True)
        ),
        layer_names=name_layers(programs[0], cuts),
        input=TracedInput(factory=reference),
        source=f"traced from {reference}",
        kind="module",
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


def _split(
    reference: str,
    example: JaxExample,
    batches: tuple[int, int],
    check: bool,
    places: Sequence[str],
    shards: list[list[_Traced]],
) -> tuple[tuple[int, str], ...]:
    """Adds to each layer's `shards` those of every degree that can be had; returns why others cannot."""
    refused: list[tuple[int, str]] = []
    for degree in DEGREES if example.specs is not None else ():
        reason = example.indivisible(degree)
        more: list[_Traced] = []
        if reason is None:
            try:
                programs = [trace_program(example, ranks=degree, batch=batch, check=check) for batch in batches]
                more = _shards(reference, programs, places, ranks=degree)
            except MachineError:
                raise
            except Exception as error:
                reason = f"tp = {degree}: {first_line(error)}"
        if reason is not None:
            refused.append((degree, reason))
        for layer_shards, shard in zip(shards, more, strict=False):
            layer_shards.append(shard)
    return tuple(refused)


def _shards(reference: str, programs: list[Program], places: Sequence[str], *, ranks: int) -> list[_Traced]:
    """Each layer's shard. InputError where the function does other work in another batch, ValueError where it does
    other work than where `places` are from."""
    cuts = cut_at(programs[0], places)
    unequal = InputError(
        where=reference,
        found=f"other operators in batches of {' and '.join(str(layer.inputs[0].aval.shape[0]) for layer in programs)}",
        expected="a function that does the same work for every batch size",
    )
    try:
        others = cut_at(programs[1], places)
    except ValueError as error:
        raise unequal from error
    small, large = (
        local_layers(program, cut, ranks=ranks, widths=WIDTHS)
        for program, cut in zip(programs, (cuts, others), strict=True)
    )
    for layer, larger in zip(small, large, strict=True):
        if [(op.name, op.kind) for op in layer[0].operators] != [(op.name, op.kind) for op in larger[0].operators]:
            raise unequal
    shared, texts = shared_weights(programs[0], cuts), layer_texts(programs[0], cuts)
    return [
        _Traced(TracedShard(tp=ranks, corners=(layer[0], layer[1], larger[0], larger[1]), shared=first_held), text)
        for layer, larger, first_held, text in zip(small, large, shared, texts, strict=True)
    ]


def _check_growth(reference: str, shards: Sequence[TracedShard]) -> None:
    operators = [op for shard in shards for corner in shard.corners for op in corner.operators]
    if any(min(op.forward_flops, op.backward_flops, op.forward_bytes, op.backward_bytes) < 0 for op in operators):
        raise InputError(where=reference, found="negative work", expected="a function that works on arrays")
    for shard in shards:
        small, _, large, _ = shard.corners
        if large.forward_flops < small.forward_flops or large.output_bytes < small.output_bytes:
            expected = "the batch as first dimension wherever arrays meet"
            raise InputError(where=reference, found="work that does not grow with the batch", expected=expected)


def _fingerprint(batch: int, shards: Sequence[_Traced]) -> str:
    """Of what the shards do. With whom they share their weights and what their scopes are called is no part of it."""
    work = (
        "jax",
        batch,
        tuple((traced.shard.tp, tuple(map(_without_names, traced.shard.corners)), traced.text) for traced in shards),
    )
    return hashlib.sha256(canonical(work).encode()).hexdigest()[:16]


def _without_names(local: LocalLayer) -> LocalLayer:
    return replace(local, operators=tuple(replace(op, name="") for op in local.operators))


def _refuse_to_run(reference: str, error: Exception) -> NoReturn:
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
