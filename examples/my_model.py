"""A model of one's own for cellplan: a function that returns a torch module and its example inputs, batch first."""

import torch
from torch import nn


class Block(nn.Module):
    """A feed-forward block with a residual way round it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with what the block adds to it."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def make_torch() -> tuple[nn.Module, torch.Tensor]:
    """Twelve blocks on samples of 512 tokens."""
    return nn.Sequential(*(Block(1024) for _ in range(12))), torch.zeros(4, 512, 1024)
