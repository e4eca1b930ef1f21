"""Runs one rank's program alone: collectives of a traced `shard_map` body give way to local operations of their shape.

What a rank computes between its collectives stays as it is, so that it can be timed on one device. Values are then
wrong wherever other ranks' would have come in, shapes and dtypes are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, subjaxprs

from estimator.frontends.jax_equations import CALLS, arguments_of, bind, called, evaluate, inner_jaxprs

Flat = Callable[..., list[Any]]

SUMS = frozenset({"psum", "psum_invariant", "unreduced_psum", "pmax", "pmin"})
GATHERS = frozenset({"all_gather", "all_gather_invariant", "all_gather_reduced"})
SCATTERS = frozenset({"reduce_scatter", "unreduced_reduce_scatter"})
COLLECTIVES = SUMS | GATHERS | SCATTERS | {"all_to_all", "ppermute", "pbroadcast"}
CASTS = frozenset({"pvary", "preduced", "vary_unreduced_cast"})
"""Change what is known of a value, not the value."""

_CALLS = CALLS | dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "custom_lin"), "call_jaxpr")


def neutralise(closed: ClosedJaxpr) -> Flat:
    """`closed`, traced inside a `shard_map`, as a function of its flat arguments that runs outside of any.

    Sums over ranks give this rank's part, gathers repeat it, scatters take the first part, an exchange reorders the
    rank's own, the rank's index is 0. Can be jitted and differentiated; rules of `custom_jvp` and `custom_vjp` are
    lost (differentiate first, as `estimator.frontends.jax_piece` does, to keep them). NotImplementedError for a
    collective where it cannot be reached.
    """

    def call(*args: Any) -> list[Any]:
        values = arguments_of(closed.jaxpr, closed.consts, args)
        return evaluate(closed.jaxpr.eqns, closed.jaxpr.outvars, values, _apply, lambda constant: constant)

    return call


def has_collective(jaxpr: Jaxpr) -> bool:
    """Whether `jaxpr` has a collective, at any depth."""
    return any(eqn.primitive.name in COLLECTIVES for eqn in jaxpr.eqns) or any(
        has_collective(inner) for inner in subjaxprs(jaxpr)
    )


def _apply(eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in COLLECTIVES or name in CASTS or name == "axis_index":
        return _alone(eqn, args)
    if name in _CALLS:
        inner = neutralise(called(eqn, _CALLS[name]))
        if name in ("remat2", "checkpoint"):
            wrapped = jax.checkpoint(inner, prevent_cse=params["prevent_cse"], policy=params["policy"])
            return wrapped(*args)  # type: ignore[no-any-return]
        return inner(*args)
    if name in _LOOPS:
        return _LOOPS[name](params, args)
    if any(has_collective(inner) for inner in inner_jaxprs(params)):
        raise NotImplementedError(f"a collective inside {name}")
    plain = {key: None if key in ("sharding", "out_sharding") else value for key, value in params.items()}
    return bind(eqn, args, plain)


def _alone(eqn: JaxprEqn, args: list[Any]) -> Sequence[Any]:
    """What one rank makes of a collective without the others."""
    name, params = eqn.primitive.name, eqn.params
    if name == "axis_index":
        return [jnp.zeros((), eqn.outvars[0].aval.dtype)]
    shape = eqn.outvars[0].aval.shape
    if name in GATHERS:
        axis = params["all_gather_dimension"]
        # Of copies without gradient: backward takes a part, as the scatter in its place does.
        copies = [args[0], *[lax.stop_gradient(args[0])] * (params["axis_size"] - 1)]
        return [(jnp.concatenate if params["tiled"] else jnp.stack)(copies, axis=axis)]
    if name in SCATTERS:
        axis = params["scatter_dimension"]
        if not params["tiled"]:
            return [lax.index_in_dim(args[0], 0, axis, keepdims=False)]
        return [lax.slice_in_dim(args[0], 0, shape[axis], axis=axis)]
    if name == "all_to_all":
        split, join = params["split_axis"], params["concat_axis"]
        parts = 1 if split == join else args[0].shape[split] // shape[split]
        return [jnp.concatenate(jnp.split(args[0], parts, axis=split), axis=join)]
    return args


def _scan(params: Any, args: list[Any]) -> Sequence[Any]:
    fixed, carried = params["num_consts"], params["num_carry"]
    body = neutralise(params["jaxpr"])
    consts, start, scanned = args[:fixed], args[fixed : fixed + carried], args[fixed + carried :]

    def step(carry: list[Any], element: list[Any]) -> tuple[list[Any], list[Any]]:
        made = body(*consts, *carry, *element)
        return list(made[:carried]), list(made[carried:])

    end, made = lax.scan(
        step, start, scanned, length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*end, *made]


def _while(params: Any, args: list[Any]) -> Sequence[Any]:
    tested, fixed = params["cond_nconsts"], params["body_nconsts"]
    test, body = neutralise(params["cond_jaxpr"]), neutralise(params["body_jaxpr"])
    of_test, of_body, start = args[:tested], args[tested : tested + fixed], args[tested + fixed :]
    return lax.while_loop(  # type: ignore[no-any-return]
        lambda carry: test(*of_test, *carry)[0], lambda carry: list(body(*of_body, *carry)), start
    )


def _cond(params: Any, args: list[Any]) -> Sequence[Any]:
    index, *operands = args
    return lax.switch(index, [neutralise(branch) for branch in params["branches"]], *operands)  # type: ignore[no-any-return]


_LOOPS: dict[str, Callable[[Any, list[Any]], Sequence[Any]]] = {"scan": _scan, "while": _while, "cond": _cond}
