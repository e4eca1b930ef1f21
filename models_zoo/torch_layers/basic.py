"""Leaves of the shards: linear, norm, bias, table. Each says over how many ranks its gradient is partial."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models_zoo.layers import Activation, Norm

DROPOUT = 0.1
NORM_EPS = 1e-5
_INITIAL_SPREAD = 0.035  # uniform, so a standard deviation of 0.02


def weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype).uniform_(-_INITIAL_SPREAD, _INITIAL_SPREAD))


def dropout(x: Tensor, *, training: bool) -> Tensor:
    """Dropout that keeps a one-byte mask on every device (torch's own keeps a whole tensor on CPUs).

    Ranks that hold the same tokens must draw the same mask: seeding them is up to who starts them.
    """
    return torch.native_dropout(x, DROPOUT, True)[0] if training else x


class Linear(nn.Module):  # type: ignore[misc]
    """(..., k) to (..., n)."""

    def __init__(self, k: int, n: int, *, dtype: torch.dtype, bias: bool = False, partial_over: int = 1) -> None:
        super().__init__()
        self.partial_over = partial_over
        self.weight = weight(n, k, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(n, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Normalize(nn.Module):  # type: ignore[misc]
    """LayerNorm or RMSNorm over the last dimension."""

    def __init__(self, kind: Norm, size: int, *, dtype: torch.dtype, bias: bool = True, partial_over: int = 1) -> None:
        super().__init__()
        self.kind = kind
        self.partial_over = partial_over
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(size, dtype=dtype)) if bias and kind == "layernorm" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "rmsnorm":
            return F.rms_norm(x, self.weight.shape, self.weight, NORM_EPS)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, NORM_EPS)


class LateBias(nn.Module):  # type: ignore[misc]
    """The bias of a row-split product, added to the sum of the ranks' results."""

    def __init__(self, size: int, *, dtype: torch.dtype, partial_over: int) -> None:
        super().__init__()
        self.partial_over = partial_over
        self.bias = nn.Parameter(torch.zeros(size, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Table(nn.Module):  # type: ignore[misc]
    """Rows to look up by int64 index."""

    def __init__(self, rows: int, columns: int, *, dtype: torch.dtype, partial_over: int = 1) -> None:
        super().__init__()
        self.partial_over = partial_over
        self.weight = weight(rows, columns, dtype=dtype)

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight)


def activate(name: Activation, x: Tensor) -> Tensor:
    match name:
        case "gelu":
            return F.gelu(x)
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square()
        case "silu":
            return F.silu(x)
