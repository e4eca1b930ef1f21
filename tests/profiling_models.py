"""Models small enough to profile in a test."""

from typing import Any

from models_zoo.layers import Attention, Embedding, FeedForward, Head, TransformerBlock
from models_zoo.model import Model, TokenInput

EMBEDDING = Embedding(vocab=64, hidden=32, positions=16)
BLOCK = TransformerBlock(
    hidden=32,
    attention=Attention(heads=4, kv_heads=4, head_dim=8, qkv_bias=True, output_bias=True),
    feed_forward=FeedForward(hidden=128, bias=True),
)
HEAD = Head(hidden=32, vocab=64)

SMALL_GPT = Model(
    name="small",
    family="gpt",
    layers=(EMBEDDING, BLOCK, BLOCK, BLOCK, HEAD),
    layer_names=("embedding", "block.0", "block.1", "block.2", "head"),
    input=TokenInput(seq_len=16),
)


def residual_network() -> tuple[Any, tuple[Any, ...]]:
    """What a user's factory returns: a torch module that ends in a loss, and its example input."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.gelu(self.up(x)))

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(16, 5)

        def forward(self, x: Any, targets: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return nn.functional.cross_entropy(self.head(x), targets)

    return Network(), (torch.randn(4, 16), torch.zeros(4, dtype=torch.int64))
