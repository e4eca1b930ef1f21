"""Small layers of every kind that the transformer family knows, for the tests that compare estimates with torch."""

from __future__ import annotations

from dataclasses import replace

from models_zoo.layers import (
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Head,
    LatentAttention,
    LinearAttention,
    Prediction,
    TransformerBlock,
)
from profiles.vocabulary import Shard

HIDDEN = 32
SEQ_LEN = 8

_ATTENTION = Attention(heads=4, kv_heads=4, head_dim=8, qkv_bias=True, output_bias=True)
_MLP = FeedForward(hidden=64, bias=True)
GPT = TransformerBlock(hidden=HIDDEN, attention=_ATTENTION, feed_forward=_MLP)
_LLAMA_ATTENTION = Attention(heads=4, kv_heads=2, head_dim=8, rotary_dim=8)
_SWIGLU = FeedForward(hidden=48, gated=True, activation="silu")
LLAMA = TransformerBlock(
    hidden=HIDDEN, attention=_LLAMA_ATTENTION, feed_forward=_SWIGLU, norm="rmsnorm", norm_bias=False
)
_LATENT = LatentAttention(query_rank=12, key_value_rank=16, nope_dim=8, rope_dim=4, value_dim=6)
MLA = replace(LLAMA, attention=Attention(heads=4, kv_heads=4, head_dim=12, qkv_bias=True, latent=_LATENT))
EXPERTS = Experts(count=4, top_k=2, expert=FeedForward(hidden=24), capacity_factor=1.25)
_SHARED = Experts(count=8, top_k=3, expert=_SWIGLU, shared_hidden=40, shared_gate=True)
_CROSS = replace(_ATTENTION, causal=False)

BLOCKS: dict[str, TransformerBlock] = {
    "gpt": GPT,
    "gpt_dropout": replace(GPT, dropout=True),
    "bert": replace(GPT, attention=_CROSS, placement="post", dropout=True),
    "relu_no_bias": replace(GPT, feed_forward=FeedForward(hidden=64, activation="relu"), norm_bias=False),
    "gated_relu": replace(GPT, feed_forward=FeedForward(hidden=64, activation="relu", gated=True, bias=True)),
    "llama": LLAMA,
    "multi_query": replace(LLAMA, attention=replace(_LLAMA_ATTENTION, kv_heads=1, qkv_bias=True)),
    "qwen3": replace(LLAMA, attention=replace(_LLAMA_ATTENTION, query_key_norm="head")),
    "full_norm": replace(LLAMA, attention=replace(_LLAMA_ATTENTION, query_key_norm="full", rotary_dim=4)),
    "gemma": replace(LLAMA, placement="sandwich", feed_forward=replace(_SWIGLU, activation="gelu")),
    "mla": MLA,
    "mla_no_query_rank": replace(
        MLA, norm="layernorm", attention=replace(MLA.self_attention, latent=replace(_LATENT, query_rank=None))
    ),
    "neox": replace(GPT, attention=replace(_ATTENTION, rotary_dim=2), parallel=True, dropout=True),
    "phi": replace(GPT, attention=replace(_ATTENTION, rotary_dim=4), parallel=True, shared_norm=True),
    "moe": replace(GPT, feed_forward=EXPERTS),
    "moe_top_1_bias": replace(GPT, feed_forward=replace(EXPERTS, top_k=1, expert=_MLP)),
    "moe_shared": replace(LLAMA, feed_forward=_SHARED),
    "moe_shared_relu": replace(
        GPT, feed_forward=replace(_SHARED, expert=FeedForward(hidden=24, activation="relu"), shared_gate=False)
    ),
    "moe_latent": replace(LLAMA, feed_forward=replace(_SHARED, latent=12)),
    "moe_parallel": replace(GPT, feed_forward=EXPERTS, parallel=True, shared_norm=True),
    "decoder": replace(GPT, cross_attention=_CROSS, placement="post", dropout=True),
    "decoder_pre": replace(GPT, cross_attention=replace(_CROSS, kv_heads=2, rotary_dim=8)),
}
MAMBA = LinearAttention(
    rule="state_space",
    heads=8,
    groups=2,
    key_dim=6,
    value_dim=4,
    norm_size=8,
    chunk=4,
    convolution_bias=True,
)
DELTA = LinearAttention(rule="delta", heads=8, groups=4, key_dim=6, value_dim=4, norm_size=4, chunk=2)
HYBRIDS: dict[str, TransformerBlock] = {
    "mamba": replace(LLAMA, attention=MAMBA),
    "mamba_one_group": replace(LLAMA, attention=replace(MAMBA, groups=1), feed_forward=None),
    "mamba_one_chunk": replace(LLAMA, attention=replace(MAMBA, chunk=64, convolution_bias=False), feed_forward=_MLP),
    "delta": replace(LLAMA, attention=DELTA),
    "delta_experts": replace(LLAMA, attention=replace(DELTA, groups=8, chunk=3), feed_forward=_SHARED),
    "delta_one_chunk": replace(LLAMA, attention=replace(DELTA, groups=2, chunk=8), feed_forward=None),
    "feed_forward_alone": replace(LLAMA, attention=None, feed_forward=FeedForward(hidden=64, activation="relu2")),
    "attention_alone": replace(GPT, feed_forward=None, dropout=True),
    "output_gate": replace(
        LLAMA, attention=replace(_LLAMA_ATTENTION, output_gate=True, query_key_norm="head", rotary_dim=2)
    ),
}
"""Blocks with other mixers of tokens than plain attention, or with one of the two parts alone."""
EMBEDDINGS: dict[str, Embedding] = {
    "plain": Embedding(vocab=50, hidden=HIDDEN),
    "gpt": Embedding(vocab=50, hidden=HIDDEN, positions=16, dropout=True),
    "bert": Embedding(vocab=50, hidden=HIDDEN, positions=16, token_types=2, norm="layernorm", dropout=True),
    "opt_350m": Embedding(vocab=50, hidden=HIDDEN, positions=16, factor=16),
}
HEADS: dict[str, Head] = {
    "gpt": Head(hidden=HIDDEN, vocab=50),
    "bias": Head(hidden=HIDDEN, vocab=50, norm="rmsnorm", bias=True),
    "bert": Head(hidden=HIDDEN, vocab=50, norm=None, bias=True, transform=True, pooler=True),
    "opt_350m": Head(hidden=HIDDEN, vocab=50, norm=None, factor=16),
    "predicting": Head(
        hidden=HIDDEN, vocab=50, norm="rmsnorm", prediction=Prediction(count=2, blocks=(LLAMA, HYBRIDS["mamba"]))
    ),
    "predicting_tied": Head(hidden=HIDDEN, vocab=50, tied=True, prediction=Prediction(count=1, blocks=(GPT,))),
    "bare": Head(hidden=HIDDEN, vocab=0),
    "bare_pooled": Head(hidden=HIDDEN, vocab=0, norm=None, pooler=True),
}
LAYERS = (
    {f"block_{name}": layer for name, layer in (BLOCKS | HYBRIDS).items()}
    | {f"embedding_{name}": layer for name, layer in EMBEDDINGS.items()}
    | {f"head_{name}": layer for name, layer in HEADS.items()}
)
DEGREES = ((1, False), (2, False), (2, True), (4, True))


def shard(tp: int, sequence_parallel: bool) -> Shard:
    return Shard(tp=tp, sequence_parallel=sequence_parallel, micro_batch_per_rank=3, seq_len=SEQ_LEN, dtype="fp32")
