"""The sizes of a model that its launchers ask for, read off its layers."""

from __future__ import annotations

from models_zoo.layers import Attention, Embedding, Experts, FeedForward, Head, TransformerBlock
from models_zoo.model import Model
from planner.shared.plan import ModelSizes


def model_sizes(model: Model, *, parameters: int) -> ModelSizes:
    """Sizes of `model`, which has `parameters` parameters in all. Where layers differ, the largest.

    `feed_forward_hidden` is one expert's in a mixture of experts.
    """
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    attention = [block.attention for block in blocks if isinstance(block.attention, Attention)]
    experts = [block.feed_forward for block in blocks if isinstance(block.feed_forward, Experts)]
    dense = [block.feed_forward for block in blocks if isinstance(block.feed_forward, FeedForward)]
    return ModelSizes(
        layers=len(model.layers),
        blocks=len(blocks) or None,
        parameters=parameters,
        hidden=max((block.hidden for block in blocks), default=None),
        heads=max((part.heads for part in attention), default=None),
        kv_heads=max((part.kv_heads for part in attention), default=None),
        feed_forward_hidden=max((part.hidden for part in [part.expert for part in experts] or dense), default=None),
        vocab=max((layer.vocab for layer in model.layers if isinstance(layer, Embedding | Head)), default=None),
        experts=max((part.count for part in experts), default=None),
        experts_per_token=max((part.top_k for part in experts), default=None),
    )
