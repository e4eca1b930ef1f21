"""Calls a factory of a JAX function, and checks what it returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from estimator.frontends.factory import (
    call_for_values,
    check_tuple,
    checked_inputs,
    describe,
    find_factory,
    first_line,
    user_code,
)
from estimator.frontends.jax_program import is_float
from estimator.frontends.jax_ranks import AXIS, split_dims
from models_zoo.user_code import UserFactory
from profiles.errors import InputError
from profiles.records import dataclass

WANTED = "a tuple (function, params, inputs) or (function, params, inputs, param_specs)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JaxExample:
    """What a factory returned, its arrays replaced by their types. `specs`: a tree like `params`, None for none."""

    function: Callable[..., Any]
    params: Any
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    specs: Any

    @property
    def batch(self) -> int:
        """Samples in the example inputs."""
        return int(self.inputs[0].shape[0])

    def inputs_for(self, batch: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Types of inputs of `batch` samples."""
        return tuple(jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in self.inputs)

    def indivisible(self, ranks: int) -> str | None:
        """Why its parameters cannot be split over `ranks`, if they cannot."""
        specs = jax.tree.leaves(self.specs, is_leaf=_is_spec)
        for (path, leaf), spec in zip(jax.tree_util.tree_leaves_with_path(self.params), specs, strict=True):
            for dim in split_dims(spec):
                if leaf.shape[dim] % ranks:
                    name, size = jax.tree_util.keystr(path), leaf.shape[dim]
                    return f"params{name} has {size} elements in dimension {dim}, which do not divide by tp = {ranks}"
        return None


def call_jax_factory(named: UserFactory) -> JaxExample:
    """Imports and calls the factory. InputError where it cannot be found, fails or returns something else.

    It is called where arrays have types and no values, so that weights take no memory, and once more for real if that
    fails (it reads weights from a file, say) or if the function holds on to an array that the factory made.
    """
    reference = named.reference
    with user_code():
        factory = find_factory(named, WANTED)
        # What goes wrong or is warned of here concerns the stand-ins; the last call, outside, speaks for itself.
        with suppress(Exception, SystemExit), warnings.catch_warnings(action="ignore"):
            returned = _without_values(factory)
            if not _holds_tracers(returned):
                return check_returned(reference, returned)
        returned = call_for_values(factory, reference, WANTED)
    return check_returned(reference, returned)


def _without_values(factory: Callable[[], Any]) -> Any:
    returned: list[Any] = []

    def call() -> tuple[()]:
        returned.append(factory())
        return ()

    jax.eval_shape(call)
    return returned[0]


def _holds_tracers(returned: Any) -> bool:
    """Whether the function has arrays of the trace in which it was made."""
    example = check_returned("", returned)
    try:
        if example.specs is None:
            jax.eval_shape(example.function, example.params, *example.inputs)
        else:
            trace = jax.shard_map(
                example.function,
                mesh=jax.sharding.AbstractMesh((1,), (AXIS,)),
                in_specs=(example.specs, *(PartitionSpec() for _ in example.inputs)),
                out_specs=PartitionSpec(),
                check_vma=False,
            )
            jax.eval_shape(trace, example.params, *example.inputs)
    except jax.errors.UnexpectedTracerError:
        return True
    except Exception:
        return False  # it will fail again, where the error is reported
    return False


def check_returned(reference: str, returned: Any) -> JaxExample:
    """What a factory returned, as an example. InputError where it is none."""
    check_tuple(reference, returned, (3, 4), WANTED)
    function, params, inputs, specs = (*returned, None)[:4]
    if not callable(function):
        raise InputError(where=reference, key="function", found=describe(function), expected="a function")
    types = _types_of_params(reference, params)
    return JaxExample(
        function=function,
        params=types,
        inputs=tuple(map(_type, checked_inputs(reference, inputs, key="inputs", plural="arrays", is_array=_is_array))),
        specs=None if specs is None else _checked_specs(reference, types, specs),
    )


def _type(value: Any) -> jax.ShapeDtypeStruct:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):  # random keys
        return jax.ShapeDtypeStruct(value.shape, value.dtype)
    return jax.ShapeDtypeStruct(value.shape, jax.dtypes.canonicalize_dtype(value.dtype))


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def _types_of_params(reference: str, params: Any) -> Any:
    expected = "a tree (dicts, lists, tuples) of arrays or jax.ShapeDtypeStruct, some of them floating"
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for path, leaf in leaves:
        if not _is_array(leaf):
            stated = f"{describe(leaf)} at params{jax.tree_util.keystr(path)}"
            raise InputError(where=reference, key="params", found=stated, expected=expected)
    if not any(is_float(leaf.dtype) for _, leaf in leaves):
        stated = f"{len(leaves)} arrays, none of them floating" if leaves else "no arrays"
        raise InputError(where=reference, key="params", found=stated, expected=expected)
    return jax.tree.map(_type, params)


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, PartitionSpec)


def _checked_specs(reference: str, params: Any, specs: Any) -> Any:
    """A spec for each leaf: one given for a part of the tree is that of all its leaves, None that of a whole copy."""
    expected = f"a tree like params of jax.sharding.PartitionSpec over the axis {AXIS!r}"
    try:
        full = jax.tree.broadcast(specs, params, is_leaf=_is_spec)
    except ValueError as error:
        raise InputError(where=reference, key="param_specs", found=first_line(error), expected=expected) from error
    full = jax.tree.map(lambda spec: PartitionSpec() if spec is None else spec, full, is_leaf=_is_spec)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for (path, leaf), spec in zip(leaves, jax.tree.leaves(full, is_leaf=_is_spec), strict=True):
        where = f"params{jax.tree_util.keystr(path)}"
        if not isinstance(spec, PartitionSpec):
            stated = f"{describe(spec)} for {where}"
            raise InputError(where=reference, key="param_specs", found=stated, expected=expected)
        names = {name for part in spec for name in (part if isinstance(part, tuple) else (part,))} - {None, AXIS}
        if names or len(spec) > len(leaf.shape):
            stated = f"{spec} for {where} of shape {tuple(leaf.shape)}"
            raise InputError(where=reference, key="param_specs", found=stated, expected=expected)
    return full
