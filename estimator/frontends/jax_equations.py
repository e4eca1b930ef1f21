"""Equations of a traced function: what they read, which functions they hold, and doing them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

V = TypeVar("V")

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Equations that do no more than call another traced function, and the parameter that has it."""


def variables(atoms: Iterable[Any]) -> list[Var]:
    """Return those of `atoms` that are no constants."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def called(eqn: JaxprEqn, parameter: str) -> ClosedJaxpr:
    """Return the traced function that `eqn` has as `parameter`."""
    inner = eqn.params[parameter]
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def inner_jaxprs(params: Mapping[str, Any]) -> list[Jaxpr]:
    """Return the traced functions among an equation's parameters."""
    leaves = [leaf for value in params.values() for leaf in (value if isinstance(value, tuple | list) else (value,))]
    return [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in leaves if isinstance(x, ClosedJaxpr | Jaxpr)]


def bind(eqn: JaxprEqn, args: Sequence[Any], params: Mapping[str, Any] | None = None) -> list[Any]:
    """Return what `eqn` makes of `args`, with `params` in place of its own."""
    made = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params if params is None else params))
    return list(made) if eqn.primitive.multiple_results else [made]


def bind_in_context(eqn: JaxprEqn, args: Sequence[Any]) -> list[Any]:
    """Return what `eqn` makes of `args` in the settings under which it was traced."""
    with eqn.ctx.manager:
        return bind(eqn, args)


def evaluate(
    eqns: Iterable[JaxprEqn],
    outputs: Iterable[Any],
    values: dict[Var, V],
    apply: Callable[[JaxprEqn, list[V]], Sequence[V]],
    constant: Callable[[Any], V],
) -> list[V]:
    """Return `outputs` once `apply` has done all `eqns` in order, from `values`, which takes in what they make;
    `constant` makes a value of what stands in an equation itself."""

    def read(atom: Any) -> V:
        return constant(atom.val) if isinstance(atom, Literal) else values[atom]

    for eqn in eqns:
        values.update(zip(eqn.outvars, apply(eqn, [read(atom) for atom in eqn.invars]), strict=True))
    return [read(atom) for atom in outputs]


def arguments_of(jaxpr: Jaxpr, consts: Sequence[V], args: Sequence[V]) -> dict[Var, V]:
    """Return the first values of a call of `jaxpr`."""
    return dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
