"""Tensor parallelism in JAX: the mesh axis, the way in and out of a parallel region, how a body reads its weights.

A layer is a function of one rank's arrays, to be run inside `jax.shard_map` over `AXIS` with `check_vma=True` (or, for
one rank, anywhere). JAX knows of each value whether it is alike on all ranks or varies; where one that is alike enters
varying work it is cast, and the transpose of that cast is the sum of gradients that Megatron calls f. So a body says
`vary`, `psum`, `all_gather` and `psum_scatter` forward, and backward follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from profiles.records import dataclass
from profiles.vocabulary import AttentionKernel, DType, Shard

Array = Any
"""A jax.Array, or what stands for one while a function is traced."""

AXIS = "tp"
SEQUENCE_DIM = 1
DTYPES: dict[DType, Any] = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """How a layer is split, and the way in and out of its parallel region: the one place that talks to other ranks.

    Inside the region every rank sees all tokens and owns a slice of the weights; outside, tokens are whole too, or
    under sequence parallelism a slice of seq_len / tp. `neutral`: one rank of `tp` without the others, for timing on
    one device. Shapes are right and numbers made up: a gather repeats the rank's own array, a scatter takes a slice.
    """

    tp: int
    sequence_parallel: bool
    dtype: Any
    attention: AttentionKernel
    seq_len: int
    neutral: bool = False

    def enter(self, x: Array) -> Array:
        """Take `x` into the region; backward, gradients are summed (and under sequence parallelism sliced)."""
        return self.gather(x, SEQUENCE_DIM) if self.sequence_parallel else self.vary(x)

    def leave(self, partial: Array) -> Array:
        """Take `partial` out of the region: the ranks' partial results summed (and under sequence parallelism
        sliced)."""
        return self.scatter(partial, SEQUENCE_DIM) if self.sequence_parallel else self.sum(partial)

    def vary(self, x: Array) -> Array:
        """`x`, alike on all ranks, into work that differs: its gradients are summed. What varies already stays."""
        if self.tp == 1 or self.neutral:
            return x
        kind = jax.typeof(x)
        # Older versions of JAX call it vma.
        varying = kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma
        return x if AXIS in varying else lax.pcast(x, AXIS, to="varying")

    def sum(self, x: Array) -> Array:
        return x if self.tp == 1 or self.neutral else lax.psum(x, AXIS)

    def maximum(self, x: Array) -> Array:
        """Return the elementwise maximum over the ranks; without a gradient."""
        x = lax.stop_gradient(x)
        return x if self.tp == 1 or self.neutral else lax.pmax(x, AXIS)

    def gather(self, x: Array, dim: int) -> Array:
        """Gather all ranks' slices along `dim`, into work that each does a part of: gradients are summed and sliced."""
        if self.tp == 1:
            return x
        return _repeat(x, dim, self.tp) if self.neutral else lax.all_gather(x, AXIS, axis=dim, tiled=True)

    def gather_whole(self, x: Array, dim: int) -> Array:
        """All ranks' slices along `dim`, into work that every rank does alike: gradients are sliced, not summed."""
        if self.tp == 1:
            return x
        if self.neutral:
            return _repeat(x, dim, self.tp)
        return lax.all_gather(x, AXIS, axis=dim, tiled=True, to="invarying")

    def scatter(self, partial: Array, dim: int) -> Array:
        """Return this rank's slice along `dim` of the sum of the ranks' partial arrays; gradients are gathered."""
        if self.tp == 1:
            return partial
        if self.neutral:
            return _first_slice(partial, dim, self.tp)
        return lax.psum_scatter(partial, AXIS, scatter_dimension=dim, tiled=True)

    def rank(self) -> Array | int:
        return 0 if self.tp == 1 or self.neutral else lax.axis_index(AXIS)

    def share(self, count: int, what: str) -> int:
        """Return one rank's part of `count`. Raise ValueError where the degree does not divide it."""
        if count % self.tp:
            raise ValueError(f"found {count} {what}, expected a multiple of tp={self.tp}")
        return count // self.tp


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _repeat(x: Array, dim: int, times: int) -> Array:
    """A gather without the others. Its gradient is a slice, as a real one's is, and no sum over the repeats."""
    return jnp.concatenate([x] * times, dim)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _first_slice(x: Array, dim: int, parts: int) -> Array:
    """A scatter without the others. Its gradient is repeated, as a real one's is gathered, not filled with zeros."""
    return lax.slice_in_dim(x, 0, x.shape[dim] // parts, axis=dim)


_repeat.defvjp(
    lambda x, dim, times: (_repeat(x, dim, times), None),
    lambda dim, times, _, gradient: (_first_slice(gradient, dim, times),),
)
_first_slice.defvjp(
    lambda x, dim, parts: (_first_slice(x, dim, parts), None),
    lambda dim, parts, _, gradient: (_repeat(gradient, dim, parts),),
)


@dataclass(frozen=True, slots=True)
class Weights:
    """A layer's weights under a dotted prefix, read inside or outside the parallel region.

    `varies`: the work that reads them varies over the ranks, so a weight that all of them hold gets a part of its
    gradient on each, and the cast's transpose adds the parts up.
    """

    params: Mapping[str, Array]
    region: Region
    varies: bool
    prefix: str = ""

    def under(self, name: str) -> Weights:
        return replace(self, prefix=f"{self.prefix}{name}.")

    def __getitem__(self, name: str) -> Array:
        array = self.params[self.prefix + name]
        return self.region.vary(array) if self.varies else array

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.params


def inside(params: Mapping[str, Array], region: Region) -> Weights:
    return Weights(params, region, True)


def outside(params: Mapping[str, Array], region: Region) -> Weights:
    return Weights(params, region, region.sequence_parallel)


def dtype_of(shard: Shard) -> Any:
    """Return the shard's dtype. Raise ValueError where the layers do no plain arithmetic in it (tf32, fp8)."""
    if shard.dtype not in DTYPES:
        raise ValueError(f"found dtype {shard.dtype!r}, expected one of {', '.join(DTYPES)} to build a function")
    return DTYPES[shard.dtype]


def region_of(shard: Shard, *, neutral: bool = False) -> Region:
    """Raise ValueError where the degree does not divide a split sequence, and as `dtype_of`."""
    region = Region(
        tp=shard.tp,
        sequence_parallel=shard.sequence_parallel and shard.tp > 1,
        dtype=dtype_of(shard),
        attention=shard.attention,
        seq_len=shard.seq_len,
        neutral=neutral,
    )
    if region.sequence_parallel:
        region.share(shard.seq_len, "tokens per sample under sequence parallelism")
    return region
