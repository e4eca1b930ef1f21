"""A traced function as one flat program: what its values depend on, what backward needs, which weights it reads.

Equations are of three sorts. Those of the *chain* depend on weights and on inputs, and layers are cut out of it. The
others (conversions of weights, masks, shifted targets) depend on one of them or on neither: each layer that needs their
results does them itself. Products that depend on inputs are of the chain in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from estimator.frontends.jax_equations import variables
from estimator.frontends.jax_gradients import Gradient, GradientTracer
from estimator.frontends.jax_products import EquationKind, kind_of, products_in
from estimator.frontends.sizes import Size
from profiles.records import dataclass

_RANDOM = {"random_bits", "random_gamma", "threefry2x32", "rng_bit_generator", "rng_uniform"}


@dataclass(frozen=True, slots=True)
class Held:
    """Weights of one leaf of the parameter tree: all of it, or element `part` of a stack of layers' weights.

    `replicated`: every rank holds the same. `trained`: a number that is no integer.
    """

    leaf: int
    part: int | None
    count: int
    dimensions: int
    replicated: bool
    trained: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Program:
    """`kinds`, `gradients` and `in_chain` go by equation; `chain` has the indices of those that are in it; `leaves` is
    each whole leaf, read or not.

    `roots` has the value that each lies in: of another layout the original, None for a constant. `active` are the
    values that have a gradient; `of_inputs` and `of_weights` those that depend on either.
    """

    eqns: tuple[JaxprEqn, ...]
    kinds: tuple[EquationKind, ...]
    gradients: tuple[Gradient, ...]
    in_chain: tuple[bool, ...]
    chain: tuple[int, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Any, ...]
    weights: dict[Var, Held]
    leaves: tuple[Held, ...]
    consts: dict[Var, Any]
    makers: dict[Var, int]
    roots: dict[Var, Var | None]
    active: frozenset[Var]
    of_inputs: frozenset[Var]
    of_weights: frozenset[Var]
    dtype: Any

    def is_solid(self, index: int) -> bool:
        """Whether the equation is there whatever the dtype and the number of ranks: no conversion, no change of layout
        (which come and go with sizes of one)."""
        return self.kinds[index] != "layout" and self.eqns[index].primitive.name != "convert_element_type"

    def size(self, aval: Any) -> Size:
        """What a value of that type takes."""
        return self.size_of(aval.size, aval.dtype)

    def size_of(self, elements: int, dtype: Any) -> Size:
        """What `elements` of `dtype` take."""
        return Size(elements) if dtype == self.dtype else Size(fixed_bytes=elements * dtype.itemsize)

    def root(self, atom: Any) -> Var | None:
        """The value that `atom` lies in; None for a constant."""
        return None if isinstance(atom, Literal) else self.roots[atom]


def read_program(closed: ClosedJaxpr, leaves: Sequence[Held], dtype: Any, tracer: GradientTracer) -> Program:
    """The program of a flat function whose first arguments are `leaves`, where the axes that it names are bound.

    `dtype` is the function's own. ValueError where no output has a gradient; what JAX raises where a derivative does
    not exist passes.
    """
    jaxpr = closed.jaxpr
    arguments, inputs = jaxpr.invars[: len(leaves)], tuple(jaxpr.invars[len(leaves) :])
    weights, eqns = _weights(jaxpr.eqns, arguments, leaves)
    kinds = tuple(map(kind_of, eqns))
    # A random mask is another one for each micro-batch, as if it were an input.
    random = [var for eqn in eqns if eqn.primitive.name in _RANDOM for var in eqn.outvars]
    of_weights, of_inputs = _dependent(eqns, weights), _dependent(eqns, (*inputs, *random))
    active = _active(eqns, [var for var, held in weights.items() if held.trained], jaxpr.outvars)
    consts = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    in_chain = _chain(eqns, kinds, of_weights, of_inputs)
    return Program(
        eqns=eqns,
        kinds=kinds,
        gradients=tuple(_gradient(eqn, active, tracer) for eqn in eqns),
        in_chain=in_chain,
        chain=tuple(index for index, inside in enumerate(in_chain) if inside),
        inputs=inputs,
        outputs=tuple(jaxpr.outvars),
        weights=weights,
        leaves=tuple(leaves),
        consts=consts,
        makers={var: index for index, eqn in enumerate(eqns) for var in eqn.outvars},
        roots=_roots(eqns, kinds, (*weights, *inputs), of_weights | of_inputs),
        active=active,
        of_inputs=of_inputs,
        of_weights=of_weights,
        dtype=dtype,
    )


def _weights(
    eqns: Sequence[JaxprEqn], arguments: Sequence[Var], leaves: Sequence[Held]
) -> tuple[dict[Var, Held], tuple[JaxprEqn, ...]]:
    """The values that hold weights, and the equations that are left once these are given.

    A leaf of which nothing is read but single elements of its first dimension, all of them, is a stack, and its
    elements are the weights, without that dimension.
    """
    readers: dict[Var, list[JaxprEqn]] = {}
    for eqn in eqns:
        for var in dict.fromkeys(variables(eqn.invars)):
            readers.setdefault(var, []).append(eqn)
    weights: dict[Var, Held] = {}
    first: dict[tuple[Held, tuple[int, ...]], Var] = {}
    same: dict[Any, Var] = {}
    given: set[Var] = set()
    for var, leaf in zip(arguments, leaves, strict=True):
        slices = readers.get(var, [])
        numbers = [_element(eqn) for eqn in slices]
        if not numbers or None in numbers or len(set(numbers)) != var.aval.shape[0]:
            weights[var] = leaf
            continue
        for eqn, number in zip(slices, numbers, strict=True):
            held = replace(leaf, part=number, count=leaf.count // var.aval.shape[0], dimensions=leaf.dimensions - 1)
            (element,) = eqn.outvars
            squeezed = [var_read.outvars[0] for var_read in readers.get(element, ()) if _drops_first(var_read)]
            elements = squeezed if len(squeezed) == len(readers.get(element, ())) else [element]
            given.update((element, *elements))
            for var_read in elements:
                same[var_read] = first.setdefault((held, var_read.aval.shape), var_read)
                weights[same[var_read]] = held
    left = (eqn for eqn in eqns if eqn.outvars[0] not in given)
    return weights, tuple(
        eqn.replace(invars=[atom if isinstance(atom, Literal) else same.get(atom, atom) for atom in eqn.invars])
        for eqn in left
    )


def _drops_first(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name == "squeeze" and tuple(eqn.params["dimensions"]) == (0,)


def _element(eqn: JaxprEqn) -> int | None:
    """Which single element of the first dimension `eqn` takes; None if it does something else."""
    if eqn.primitive.name != "slice" or set(eqn.params["strides"] or (1,)) != {1}:
        return None
    (start, *starts), (end, *ends), (_, *sizes) = (
        eqn.params["start_indices"],
        eqn.params["limit_indices"],
        eqn.invars[0].aval.shape,
    )
    return start if end == start + 1 and not any(starts) and list(ends) == sizes else None


def _dependent(eqns: Sequence[JaxprEqn], sources: Iterable[Var]) -> frozenset[Var]:
    dependent = set(sources)
    for eqn in eqns:
        if dependent.intersection(variables(eqn.invars)):
            dependent.update(eqn.outvars)
    return frozenset(dependent)


def _active(eqns: Sequence[JaxprEqn], trained: Iterable[Var], outputs: Sequence[Any]) -> frozenset[Var]:
    """Values between trained weights and the loss: the first scalar that depends on them, or else all outputs."""
    varied = set(trained)
    for eqn in eqns:
        if eqn.primitive.name != "stop_gradient" and varied.intersection(variables(eqn.invars)):
            varied.update(var for var in eqn.outvars if is_float(var.aval.dtype))
    wanted = [var for var in variables(outputs) if var in varied]
    if not wanted:
        raise ValueError("no output of the function has a gradient with regard to its parameters")
    reached = set([var for var in wanted if not var.aval.shape][:1] or wanted)
    for eqn in reversed(eqns):
        if eqn.primitive.name != "stop_gradient" and reached.intersection(eqn.outvars):
            reached.update(var for var in variables(eqn.invars) if var in varied)
    return frozenset(reached)


def is_float(dtype: Any) -> bool:
    """Whether values of `dtype` can have gradients. bfloat16 and its kin are none of numpy's own floats."""
    return "float" in str(dtype) or "complex" in str(dtype)


def _gradient(eqn: JaxprEqn, active: frozenset[Var], tracer: GradientTracer) -> Gradient:
    made = tuple(place for place, var in enumerate(eqn.outvars) if var in active)
    read = tuple(
        place for place, atom in enumerate(eqn.invars) if made and not isinstance(atom, Literal) and atom in active
    )
    return tracer.of(eqn, read, made)


def _chain(
    eqns: Sequence[JaxprEqn], kinds: Sequence[EquationKind], of_weights: frozenset[Var], of_inputs: frozenset[Var]
) -> tuple[bool, ...]:
    made: set[Var] = set()
    inside = []
    for eqn, kind in zip(eqns, kinds, strict=True):
        read = set(variables(eqn.invars))
        works = kind == "product" or (kind == "composite" and any(products_in([eqn])))
        both = not of_inputs.isdisjoint(read) and (works or not of_weights.isdisjoint(read))
        inside.append(both or not made.isdisjoint(read))
        if inside[-1]:
            made.update(eqn.outvars)
    return tuple(inside)


def _roots(
    eqns: Sequence[JaxprEqn], kinds: Sequence[EquationKind], sources: Iterable[Var], dependent: frozenset[Var]
) -> dict[Var, Var | None]:
    roots: dict[Var, Var | None] = {var: var for var in sources}
    for eqn, kind in zip(eqns, kinds, strict=True):
        for atom in variables(eqn.invars):
            roots.setdefault(atom, None)  # what the function closes over
        for place, var in enumerate(eqn.outvars):
            if var not in dependent:
                roots[var] = None
            elif kind == "layout":
                source = eqn.invars[place if len(eqn.invars) == len(eqn.outvars) else 0]
                roots[var] = None if isinstance(source, Literal) else roots[source]
            else:
                roots[var] = var
    return roots


def own_dtype(types: Sequence[Any]) -> Any:
    """The floating dtype that most elements of `types` have; float32 if none has any."""
    counts: Counter[Any] = Counter()
    for leaf in types:
        if is_float(leaf.dtype):
            counts[np.dtype(leaf.dtype)] += leaf.size
    return max(counts, key=lambda dtype: counts[dtype]) if counts else np.dtype("float32")
