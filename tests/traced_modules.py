"""Factories of small torch modules, as a user would write them, for the frontend to trace."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

HIDDEN, HEAD, INNER, VOCAB, BLOCKS = 32, 8, 96, 48, 4


def mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
    return nn.Sequential(*layers), (torch.randn(1, 16),)


class ConvBlock(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.norm(self.conv(x)))


class SkipNet(nn.Module):  # type: ignore[misc]
    """The first block's output is read by the second and, over a skip, by the fourth."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(ConvBlock() for _ in range(4))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        first = self.blocks[0](self.stem(images))
        third = self.blocks[2](self.blocks[1](first))
        last = self.blocks[3](third + first)
        return F.cross_entropy(self.head(last.mean((2, 3))), classes)


def skip_net() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return SkipNet(), (torch.randn(4, 3, 6, 10), torch.randint(5, (4,)))


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention = Attention()
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TinyGpt(nn.Module):  # type: ignore[misc]
    """Its head shares the embedding's table."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def tiny_gpt() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return TinyGpt(), (torch.randint(VOCAB, (2, 16)), torch.randint(VOCAB, (2, 16)))


def tiny_gpt_with_plan() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, ParallelStyle]]:
    """Megatron's split: one all-reduce for the two branches' inputs and outputs each, forward or backward."""
    column, row = ColwiseParallel(), RowwiseParallel()
    plan: dict[str, Any] = {f"blocks.*.attention.{name}": column for name in "qkv"}
    plan |= {
        "blocks.*.attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        "blocks.*.attention.o": row,
        "blocks.*.up": column,
        "blocks.*.down": row,
    }
    return *tiny_gpt(), plan


def tiny_gpt_with_sequence_parallel_plan() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, ParallelStyle]]:
    """Between its products each rank holds its own tokens, and rows of the table."""
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan: dict[str, Any] = {f"blocks.*.attention.{name}": column for name in "qkv"}
    plan |= {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "blocks.*.norm1": SequenceParallel(),
        "blocks.*.attention": gather,
        "blocks.*.attention.o": row,
        "blocks.*.norm2": SequenceParallel(),
        "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.down": row,
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return *tiny_gpt(), plan


class Recurrent(nn.Module):  # type: ignore[misc]
    """All blocks have the same weights but for their norms, and the head has the embedding's table."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        for block in self.blocks[1:]:
            block.attention, block.up, block.down = (getattr(self.blocks[0], n) for n in ("attention", "up", "down"))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def recurrent() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Recurrent(), (torch.randint(VOCAB, (2, 16)), torch.randint(VOCAB, (2, 16)))


def undivided_plan() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, ParallelStyle]]:
    return nn.Sequential(nn.Linear(16, 6), nn.Linear(6, 16)), (torch.randn(2, 16),), {"0": ColwiseParallel()}


def talkative() -> tuple[nn.Module, tuple[Tensor, ...]]:
    print("building")
    return mlp()


def dropped() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 16)), (torch.randn(2, 16),)


def casts_itself() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """`module.to(dtype)` does not work on fake tensors."""
    return nn.Linear(16, 4).to(torch.bfloat16), (torch.randn(2, 16, dtype=torch.bfloat16),)


def needs_values() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Reads a tensor's value while it builds, as if from a file: works on real tensors alone."""
    width = int(torch.arange(17).sum().item()) // 8
    return nn.Linear(width, 4), (torch.randn(2, width),)


class Routed(nn.Module):  # type: ignore[misc]
    """An expert per token, chosen by value."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        choice = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero()[:, 0]
            out = out.index_put((rows,), expert(x[rows]))
        return out


class Branching(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x


class OddBatch(nn.Module):  # type: ignore[misc]
    """Does more work in larger batches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.linear(x)) if x.shape[0] > 3 else self.linear(x)


class Frozen(nn.Module):  # type: ignore[misc]
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def routed() -> Any:
    return Routed(), (torch.randn(4, 8),)


def branching() -> Any:
    return Branching(), (torch.randn(4, 8),)


def odd_batch() -> Any:
    return OddBatch(), (torch.randn(2, 8),)


def frozen() -> Any:
    return Frozen(), (torch.randn(2, 8),)


def wrong_size() -> Any:
    return nn.Linear(8, 8), (torch.randn(2, 9),)


def no_tuple() -> Any:
    return nn.Linear(8, 8)


def no_module() -> Any:
    return "linear", (torch.randn(2, 8),)


def bare_tensor() -> Any:
    return nn.Linear(8, 8), torch.randn(2, 8)


def no_batch() -> Any:
    return nn.Linear(8, 8), (torch.randn(2, 8), torch.tensor(1.0))


def two_batches() -> Any:
    return nn.Linear(8, 8), (torch.randn(2, 8), torch.randn(3, 8))


def wrong_plan() -> Any:
    return nn.Linear(8, 8), (torch.randn(2, 8),), {"": "colwise"}


def breaks() -> Any:
    raise KeyError("checkpoint")


not_callable = 3
