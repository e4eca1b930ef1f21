"""One rank's view of a function that runs on several: work done inside a `shard_map` over a mesh without devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, PartitionSpec

T = TypeVar("T")

AXIS = "tp"


def among(
    ranks: int, params: Any, specs: Any, inputs: tuple[Any, ...], work: Callable[[Any, tuple[Any, ...]], T], check: bool
) -> T:
    """What `work(params, inputs)` returns, called with the types of one rank's parts, where the axis `tp` is bound.

    `params` is split as `specs` says, `inputs` every rank has whole. Inside, functions can be traced (`make_jaxpr`)
    but nothing computed. `check` is shard_map's `check_vma`: whether JAX itself tracks what differs between ranks, and
    so which gradients to sum. What JAX raises passes.
    """
    results: list[T] = []

    def body(params: Any, inputs: tuple[Any, ...]) -> tuple[()]:
        types = jax.tree.map(jax.typeof, (params, inputs))
        results.append(work(*types))
        return ()

    mapped = jax.shard_map(
        body,
        mesh=AbstractMesh((ranks,), (AXIS,)),
        in_specs=(specs, PartitionSpec()),
        out_specs=(),
        check_vma=check,
    )
    jax.eval_shape(mapped, params, inputs)
    return results[-1]


def split_dims(spec: PartitionSpec) -> tuple[int, ...]:
    """The dimensions that `spec` splits over the ranks."""
    return tuple(dim for dim, names in enumerate(spec) if AXIS in (names if isinstance(names, tuple) else (names,)))
