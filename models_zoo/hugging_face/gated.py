"""Dense families of Llama's kind: RMSNorm, rotary positions, gated feed-forward.

Biases, norms and defaults are those of the classes in transformers; tests compare every family with its class.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from models_zoo.hugging_face.chain import (
    Chain,
    Sizes,
    read_attention,
    read_gated,
    read_sizes,
    rms_block,
    rms_chain,
    slide,
)
from models_zoo.hugging_face.keys import Keys
from models_zoo.layers import FeedForward, TransformerBlock


def llama(keys: Keys) -> Chain:
    """Biases on all four projections or none, and on the feed-forward or not, as the config says."""
    sizes = read_sizes(keys, hidden=4096, layers=32, heads=32, vocab=32000, positions=2048)
    gated = read_gated(keys, 11008, bias=keys.flag("mlp_bias", False))
    block = rms_block(sizes, read_attention(keys, sizes, states_bias=True), gated)
    return rms_chain(keys, sizes, [block] * sizes.layers)


def mistral(keys: Keys) -> Chain:
    """No biases; the sliding window, if any, is on every layer."""
    sizes = read_sizes(keys, hidden=4096, layers=32, heads=32, vocab=32000, positions=131072)
    block = rms_block(sizes, read_attention(keys, sizes, kv_heads=8), read_gated(keys, 14336))
    window = keys.optional_size("sliding_window", 4096)
    return rms_chain(keys, sizes, slide(keys, [block] * sizes.layers, window, lambda _: True))


def qwen2(keys: Keys) -> Chain:
    """Biases on queries, keys and values alone."""
    sizes = _qwen_sizes(keys)
    block = rms_block(sizes, read_attention(keys, sizes, kv_heads=32, qkv_bias=True), read_gated(keys, 22016))
    return rms_chain(keys, sizes, _qwen_windows(keys, sizes, block))


def qwen3(keys: Keys) -> Chain:
    """Norms on each head's queries and keys."""
    sizes = _qwen_sizes(keys)
    attention = read_attention(keys, sizes, kv_heads=32, head_dim=128, states_bias=True, query_key_norm="head")
    block = rms_block(sizes, attention, read_gated(keys, 22016))
    return rms_chain(keys, sizes, _qwen_windows(keys, sizes, block))


def gemma(keys: Keys) -> Chain:
    """GeGLU, 256-wide heads, a tied head."""
    sizes = read_sizes(keys, hidden=3072, layers=28, heads=16, vocab=256000, positions=8192)
    attention = read_attention(keys, sizes, kv_heads=16, head_dim=256, states_bias=True)
    block = rms_block(sizes, attention, _gemma_gated(keys, 24576))
    return rms_chain(keys, sizes, [block] * sizes.layers, tied=True)


def gemma2(keys: Keys) -> Chain:
    """Sandwich norms; every first of two layers slides."""
    sizes = read_sizes(keys, hidden=2304, layers=26, heads=8, vocab=256000, positions=8192)
    return _sandwich(keys, sizes, query_key_norm=False, period=2)


def gemma3_text(keys: Keys) -> Chain:
    """Sandwich norms and norms on queries and keys; five of six layers slide."""
    sizes = read_sizes(keys, hidden=2304, layers=26, heads=8, vocab=262208, positions=131072)
    period = keys.size(keys.spelling("sliding_window_pattern", "_sliding_window_pattern"), 6)
    return _sandwich(keys, sizes, query_key_norm=True, period=period)


def phi3(keys: Keys) -> Chain:
    """Fused projections without biases, which count as separate ones do; part of a head may rotate (Phi-4 mini)."""
    sizes = read_sizes(keys, hidden=3072, layers=32, heads=32, vocab=32064, positions=4096)
    block = rms_block(sizes, read_attention(keys, sizes), read_gated(keys, 8192))
    block = replace(block, dropout=keys.share("resid_pdrop", 0.0) > 0)
    blocks = slide(keys, [block] * sizes.layers, keys.optional_size("sliding_window"), lambda _: True)
    chain = rms_chain(keys, sizes, blocks)
    return replace(chain, embedding=replace(chain.embedding, dropout=keys.share("embd_pdrop", 0.0) > 0))


def _gemma_gated(keys: Keys, hidden: int) -> FeedForward:
    act_key = "hidden_activation" if keys.get("hidden_activation", None) is not None else "hidden_act"
    return read_gated(keys, hidden, act_key=act_key, act="gelu_pytorch_tanh")


def _qwen_sizes(keys: Keys) -> Sizes:
    return read_sizes(keys, hidden=4096, layers=32, heads=32, vocab=151936, positions=32768)


def _qwen_windows(keys: Keys, sizes: Sizes, block: TransformerBlock) -> tuple[TransformerBlock, ...]:
    """With `use_sliding_window`, layers from `max_window_layers` on slide."""
    window = keys.optional_size("sliding_window", 4096) if keys.flag("use_sliding_window", False) else None
    first = keys.size("max_window_layers", 28, least=0)
    return slide(keys, [block] * sizes.layers, window, lambda i: i >= first)


def _sandwich(keys: Keys, sizes: Sizes, *, query_key_norm: bool, period: int) -> Chain:
    """Gemma 2 and 3: all layers slide save each `period`-th."""
    norm: Literal["none", "head"] = "head" if query_key_norm else "none"
    attention = read_attention(keys, sizes, kv_heads=4, head_dim=256, states_bias=True, query_key_norm=norm)
    block = replace(rms_block(sizes, attention, _gemma_gated(keys, 9216)), placement="sandwich")
    window = keys.optional_size("sliding_window", 4096)
    blocks = slide(keys, [block] * sizes.layers, window, lambda i: (i + 1) % period > 0)
    return rms_chain(keys, sizes, blocks, tied=True)
