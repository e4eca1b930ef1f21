"""Makes one flat list of equations of a traced function: calls inlined, loops over layers unrolled.

A loop is one over layers if it scans over nothing that depends on the inputs: over stacked weights, or over nothing.
Loops over data (time steps, chunks of a sequence) stay whole. Recomputation (`jax.checkpoint`) is taken out: it is a
choice of the plan. Functions with derivatives of their own (`custom_jvp`, `custom_vjp`) stay one equation each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.extend.source_info_util import current_name_stack, user_context

from estimator.frontends.jax_equations import CALLS, arguments_of, bind, called, evaluate, variables
from profiles.records import dataclass

_ELEMENTWISE = {"convert_element_type", "copy", "copy_p", "pvary", "reduce_precision"}
"""One slice of their result is the result of one slice."""

MOST_ITERATIONS = 512


@dataclass(frozen=True, slots=True)
class _Value:
    """A value while it is traced. `of_inputs`: it depends on the inputs. `made_by`: an element-wise equation."""

    value: Any
    of_inputs: bool
    made_by: tuple[JaxprEqn, _Value] | None = None

    @property
    def is_known(self) -> bool:
        return not isinstance(self.value, jax.core.Tracer) and np.ndim(self.value) == 0


def flatten(closed: ClosedJaxpr, parameters: int) -> ClosedJaxpr:
    """`closed`, whose first `parameters` arguments are the weights, flat, and without equations that nothing uses.

    Equations keep the scopes that they were written in (`eqn.source_info.name_stack`).
    """

    def run(*args: Any) -> list[Any]:
        values = [_Value(arg, number >= parameters) for number, arg in enumerate(args)]
        return [made.value for made in _run(closed, values)]

    return _without_dead(jax.make_jaxpr(run)(*closed.in_avals))


def _without_dead(closed: ClosedJaxpr) -> ClosedJaxpr:
    jaxpr = closed.jaxpr
    used = set(variables(jaxpr.outvars))
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if used.intersection(eqn.outvars):
            kept.append(eqn)
            used.update(variables(eqn.invars))
    return ClosedJaxpr(jaxpr.replace(eqns=kept[::-1], effects=set()), closed.consts)


def _run(closed: ClosedJaxpr, args: Sequence[_Value]) -> list[_Value]:
    values = arguments_of(closed.jaxpr, [_constant(const) for const in closed.consts], args)
    return evaluate(closed.jaxpr.eqns, closed.jaxpr.outvars, values, _apply_in_scope, _constant)


def _constant(value: Any) -> _Value:
    return _Value(value, False)


def _apply_in_scope(eqn: JaxprEqn, args: list[_Value]) -> list[_Value]:
    scope = current_name_stack() + eqn.source_info.name_stack
    with user_context(eqn.source_info.traceback, name_stack=scope), eqn.ctx.manager:
        return _apply(eqn, args)


def _apply(eqn: JaxprEqn, args: list[_Value]) -> list[_Value]:
    name = eqn.primitive.name
    if name in CALLS:
        return _run(called(eqn, CALLS[name]), args)
    if name == "scan" and _is_over_layers(eqn, args):
        return _unroll(eqn, args)
    if name == "dynamic_slice" and all(arg.is_known for arg in args[1:]):
        return [_static_slice(eqn, args)]
    if name == "slice" and args[0].made_by is not None:
        made_by, source = args[0].made_by
        return _apply(made_by, _apply(eqn, [source]))
    of_inputs = any(arg.of_inputs for arg in args)
    if _is_index_arithmetic(eqn, args):
        with jax.ensure_compile_time_eval():
            made = _bind(eqn, args)
        return [_constant(np.asarray(value)[()]) for value in made]
    made_by = (eqn, args[0]) if name in _ELEMENTWISE and len(args) == 1 else None
    return [_Value(value, of_inputs, made_by) for value in _bind(eqn, args)]


def _bind(eqn: JaxprEqn, args: Sequence[_Value]) -> list[Any]:
    return bind(eqn, [arg.value for arg in args])


def _is_index_arithmetic(eqn: JaxprEqn, args: Sequence[_Value]) -> bool:
    """On known whole numbers, such as an unrolled loop's counter."""
    return (
        bool(args)
        and all(arg.is_known for arg in args)
        and all(not out.aval.shape and _is_whole(out.aval.dtype) for out in eqn.outvars)
        and eqn.primitive.name not in _ELEMENTWISE - {"convert_element_type"}
        and not any(jax.extend.core.jaxprs_in_params(eqn.params))
    )


def _is_whole(dtype: Any) -> bool:
    return str(dtype).startswith(("int", "uint", "bool"))


def _static_slice(eqn: JaxprEqn, args: Sequence[_Value]) -> _Value:
    operand, sizes = args[0].value, eqn.params["slice_sizes"]
    starts = [
        min(max(0, int(start.value)), whole - size)
        for start, whole, size in zip(args[1:], operand.shape, sizes, strict=True)
    ]
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    return _Value(lax.slice(operand, starts, ends), args[0].of_inputs)


def _is_over_layers(eqn: JaxprEqn, args: Sequence[_Value]) -> bool:
    scanned = args[eqn.params["num_consts"] + eqn.params["num_carry"] :]
    return 0 < eqn.params["length"] <= MOST_ITERATIONS and not any(arg.of_inputs for arg in scanned)


def _unroll(eqn: JaxprEqn, args: list[_Value]) -> list[_Value]:
    params = eqn.params
    fixed, carried, length = params["num_consts"], params["num_carry"], params["length"]
    consts, carry, scanned = args[:fixed], args[fixed : fixed + carried], args[fixed + carried :]
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    made: dict[int, list[_Value]] = {}
    for number in order:
        slices = [_slice(arg, number) for arg in scanned]
        out = _run(params["jaxpr"], [*consts, *carry, *slices])
        carry, made[number] = out[:carried], out[carried:]
    stacked = [
        _Value(jnp.stack([made[number][place].value for number in range(length)]), made[0][place].of_inputs)
        for place in range(len(made[0]))
    ]
    return [*carry, *stacked]


def _slice(stack: _Value, number: int) -> _Value:
    """Element `number` of a stack; of a converted stack the converted element, so that the stack stays untouched."""
    if stack.made_by is not None:
        eqn, source = stack.made_by
        element = _slice(source, number)
        return _Value(_bind(eqn, [element])[0], element.of_inputs, (eqn, element))
    return _Value(lax.index_in_dim(jnp.asarray(stack.value), number, 0, keepdims=False), stack.of_inputs)
