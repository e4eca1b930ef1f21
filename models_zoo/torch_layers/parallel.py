"""Tensor parallelism behind one small seam: four collectives, and what autograd does around them.

A shard is a plain module of local sizes. It reaches other ranks only through a `TensorParallel`; whether that talks to
a process group or to nobody, the shard does not know.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from profiles.records import dataclass
from profiles.vocabulary import AttentionKernel, DType, Phase, Shard

DTYPES: dict[DType, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TensorParallel(Protocol):
    """The ranks that share a layer. Every method returns a new tensor or its argument, never a changed argument."""

    @property
    def rank(self) -> int: ...

    @property
    def degree(self) -> int: ...

    def all_reduce(self, x: Tensor, phase: Phase, ranks: int | None = None) -> Tensor:
        """Sum over all ranks, or over the `ranks` consecutive ones (rank // ranks alike) that this one belongs to."""

    def maximum(self, x: Tensor, phase: Phase) -> Tensor:
        """Return the elementwise maximum over all ranks."""

    def all_gather(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        """Return all ranks' tensors in rank order along `dim`."""

    def reduce_scatter(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        """Return this rank's slice along `dim` of the sum over all ranks."""


@dataclass(frozen=True, slots=True)
class Neutral:
    """One rank of `degree` without the others: right shapes, made-up numbers, no communication; of a degree of 1 the
    numbers are right too.

    For timing a shard on one device. A gather repeats the rank's own tensor, a reduce-scatter takes a slice.
    """

    degree: int = 1
    rank: int = 0

    def all_reduce(self, x: Tensor, phase: Phase, ranks: int | None = None) -> Tensor:
        del phase, ranks
        return x

    def maximum(self, x: Tensor, phase: Phase) -> Tensor:
        del phase
        return x

    def all_gather(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        del phase
        return torch.cat([x] * self.degree, dim)

    def reduce_scatter(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        del phase
        size = x.shape[dim] // self.degree
        return x.narrow(dim, self.rank * size, size).clone(memory_format=torch.contiguous_format)


class _CopyTo(torch.autograd.Function):  # type: ignore[misc]
    """Forward nothing, backward a sum (Megatron's f)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel) -> Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.tp.all_reduce(grad, "backward"), None


class _ReduceFrom(torch.autograd.Function):  # type: ignore[misc]
    """Forward a sum, backward nothing (Megatron's g)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel) -> Tensor:
        del ctx
        total = tp.all_reduce(x, "forward")
        return total.view_as(total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        del ctx
        return grad, None


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """Forward an all-gather, backward a reduce-scatter (g of sequence parallelism)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel, dim: int) -> Tensor:
        ctx.tp, ctx.dim = tp, dim
        return tp.all_gather(x, dim, "forward")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.tp.reduce_scatter(grad, ctx.dim, "backward"), None, None


class _GatherWhole(torch.autograd.Function):  # type: ignore[misc]
    """Forward an all-gather, backward a slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel, dim: int) -> Tensor:
        ctx.start, ctx.size, ctx.dim = tp.rank * x.shape[dim], x.shape[dim], dim
        return tp.all_gather(x, dim, "forward")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.narrow(ctx.dim, ctx.start, ctx.size), None, None


class _ReduceScatter(torch.autograd.Function):  # type: ignore[misc]
    """Forward a reduce-scatter, backward an all-gather (g-bar of sequence parallelism)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel, dim: int) -> Tensor:
        ctx.tp, ctx.dim = tp, dim
        return tp.reduce_scatter(x, dim, "forward")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.tp.all_gather(grad, ctx.dim, "backward"), None, None


def copy_to(x: Tensor, tp: TensorParallel) -> Tensor:
    """`x`, alike on all ranks, into work that each does a part of: their gradients are summed."""
    return x if tp.degree == 1 else _CopyTo.apply(x, tp)


def reduce_from(x: Tensor, tp: TensorParallel) -> Tensor:
    """Sum of the ranks' partial `x`."""
    return x if tp.degree == 1 else _ReduceFrom.apply(x, tp)


def gather(x: Tensor, tp: TensorParallel, dim: int) -> Tensor:
    """All ranks' slices `x` along `dim`, into work that each does a part of: gradients are summed and sliced."""
    return x if tp.degree == 1 else _Gather.apply(x, tp, dim)


def gather_whole(x: Tensor, tp: TensorParallel, dim: int) -> Tensor:
    """All ranks' slices `x` along `dim`, into work that every rank does alike: its gradient is sliced, not summed."""
    return x if tp.degree == 1 else _GatherWhole.apply(x, tp, dim)


def reduce_scatter(x: Tensor, tp: TensorParallel, dim: int) -> Tensor:
    """This rank's slice along `dim` of the sum of the ranks' partial `x`."""
    return x if tp.degree == 1 else _ReduceScatter.apply(x, tp, dim)


SEQUENCE_DIM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """How a layer's modules are to be built, and the way in and out of its parallel region.

    Inside, every rank sees all tokens (batch, seq_len, ...) and owns a slice of the weights. Outside, tokens are whole
    too, or under sequence parallelism a slice of seq_len / degree.
    """

    tp: TensorParallel
    sequence_parallel: bool
    dtype: torch.dtype
    attention: AttentionKernel
    seq_len: int

    def enter(self, x: Tensor) -> Tensor:
        return gather(x, self.tp, SEQUENCE_DIM) if self.sequence_parallel else copy_to(x, self.tp)

    def leave(self, partial: Tensor) -> Tensor:
        return (
            reduce_scatter(partial, self.tp, SEQUENCE_DIM) if self.sequence_parallel else reduce_from(partial, self.tp)
        )

    @property
    def outside_ranks(self) -> int:
        """Ranks over which gradients of weights outside the region are partial."""
        return self.tp.degree if self.sequence_parallel else 1

    def share(self, count: int, what: str) -> int:
        """Return one rank's part of `count`. Raise ValueError where the degree does not divide it."""
        if count % self.tp.degree:
            raise ValueError(f"found {count} {what}, expected a multiple of tp={self.tp.degree}")
        return count // self.tp.degree

    def padded_share(self, count: int) -> int:
        """One rank's part of `count` padded to a multiple of the degree."""
        return -(-count // self.tp.degree)


def dtype_of(shard: Shard) -> torch.dtype:
    """Return the shard's dtype in torch. Raise ValueError where torch has no plain arithmetic in it (fp8)."""
    if shard.dtype not in DTYPES:
        raise ValueError(f"found dtype {shard.dtype!r}, expected one of {', '.join(DTYPES)} to build a module")
    return DTYPES[shard.dtype]


def region_of(shard: Shard, tp: TensorParallel) -> Region:
    """Raise ValueError where `tp` has another degree than `shard` or does not divide a split sequence, and as
    `dtype_of`."""
    if tp.degree != shard.tp:
        raise ValueError(f"found a group of {tp.degree} ranks for a shard with tp={shard.tp}, expected equal degrees")
    region = Region(
        tp=tp,
        sequence_parallel=shard.sequence_parallel and shard.tp > 1,
        dtype=dtype_of(shard),
        attention=shard.attention,
        seq_len=shard.seq_len,
    )
    if region.sequence_parallel:
        region.share(shard.seq_len, "tokens per sample under sequence parallelism")
    return region
