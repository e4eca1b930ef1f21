"""A model small enough to profile in a test."""

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
