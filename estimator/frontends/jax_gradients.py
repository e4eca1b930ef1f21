"""What backward does for one equation of a traced function, and what it keeps for that: JAX's own answer.

`jax.vjp` of a function is that of its equations, one after the other; so each is traced by itself, and equal equations
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from estimator.frontends.jax_equations import bind_in_context
from estimator.frontends.jax_products import Message, Product, equation_text, kind_of, messages_in, products_in
from profiles.records import dataclass


@dataclass(frozen=True, slots=True)
class Gradient:
    """`kept_read` and `kept_made` are the places of operands and results that backward needs, `kept_new` the element
    counts and dtypes of what is made for it besides. `forward` are the products of the forward pass as it runs in
    training, `backward` those of backward; `messages` the collectives of either."""

    kept_read: tuple[int, ...]
    kept_made: tuple[int, ...]
    kept_new: tuple[tuple[int, Any], ...]
    forward: tuple[Product, ...]
    backward: tuple[Product, ...]
    messages_forward: tuple[Message, ...]
    messages_backward: tuple[Message, ...]


class GradientTracer:
    """Gradients of equations, each distinct one traced once. Use it where the equations' axes are bound."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Gradient] = {}

    def of(self, eqn: JaxprEqn, read: tuple[int, ...], made: tuple[int, ...]) -> Gradient:
        """Of the operands `read` from the gradients of the results `made`. What JAX raises passes."""
        key = (equation_text(eqn), read, made)
        if key not in self._known:
            self._known[key] = _trace(eqn, read, made) if read and made else _forward_only(eqn)
        return self._known[key]


def _forward_only(eqn: JaxprEqn) -> Gradient:
    return Gradient((), (), (), tuple(products_in([eqn])), (), tuple(messages_in([eqn])), ())


def _trace(eqn: JaxprEqn, read: tuple[int, ...], made: tuple[int, ...]) -> Gradient:
    forward, backward, results = trace_vjp(_caller(eqn), [atom.aval for atom in eqn.invars], read, made)
    operands = {var: place for place, var in enumerate(forward.jaxpr.invars)}
    outcomes: dict[Any, int] = {}
    for place, atom in enumerate(forward.jaxpr.outvars[:results]):
        if not isinstance(atom, Literal):
            outcomes.setdefault(atom, place)
    makers = {var: equation for equation in forward.jaxpr.eqns for var in equation.outvars}
    kept = dict.fromkeys(_origin(atom, makers, outcomes) for atom in forward.jaxpr.outvars[results:])
    new = [var for var in kept if var is not None and var not in operands and var not in outcomes and var in makers]
    return Gradient(
        kept_read=tuple(operands[var] for var in kept if var in operands),
        kept_made=tuple(outcomes[var] for var in kept if var in outcomes and var not in operands),
        kept_new=tuple((var.aval.size, var.aval.dtype) for var in new),
        forward=tuple(products_in(forward.jaxpr.eqns)),
        backward=tuple(products_in(backward.jaxpr.eqns)),
        messages_forward=tuple(messages_in(forward.jaxpr.eqns)),
        messages_backward=tuple(messages_in(backward.jaxpr.eqns)),
    )


def _caller(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    def call(*args: Any) -> list[Any]:
        given = [atom.val if isinstance(atom, Literal) else arg for atom, arg in zip(eqn.invars, args, strict=True)]
        return bind_in_context(eqn, given)

    return call


def _origin(atom: Any, makers: dict[Any, JaxprEqn], stop: dict[Any, int]) -> Any:
    """The value of which `atom` is another layout; None where that is a constant."""
    while not isinstance(atom, Literal):
        maker = makers.get(atom)
        if atom in stop or maker is None or kind_of(maker) != "layout":
            return atom
        atom = maker.invars[0] if maker.invars else Literal(0, atom.aval)
    return None


def trace_vjp(
    function: Callable[..., Sequence[Any]], types: Sequence[Any], read: Sequence[int], made: Sequence[int]
) -> tuple[ClosedJaxpr, ClosedJaxpr, int]:
    """The forward and the backward pass of flat `function`, and how many results it has.

    Forward takes all arguments and returns the results, then what is kept; backward takes what is kept, then the
    gradients of the results `made`, and returns those of the arguments `read`.
    """
    structure: list[Any] = []

    def forward(*args: Any) -> tuple[list[Any], list[Any]]:
        def part(*varied: Any) -> tuple[list[Any], list[Any]]:
            given = list(args)
            for place, value in zip(read, varied, strict=True):
                given[place] = value
            results = list(function(*given))
            return [results[place] for place in made], results

        _, pull, results = jax.vjp(part, *(args[place] for place in read), has_aux=True)
        leaves, tree = jax.tree.flatten(pull)
        structure[:] = [tree, len(results)]
        return results, leaves

    ahead = jax.make_jaxpr(forward)(*types)
    tree, results = structure
    kept = [atom.aval for atom in ahead.jaxpr.outvars[results:]]

    def backward(kept: list[Any], gradients: list[Any]) -> Any:
        return jax.tree.unflatten(tree, kept)(gradients)

    back = jax.make_jaxpr(backward)(kept, [ahead.jaxpr.outvars[place].aval for place in made])
    return ahead, back, results
