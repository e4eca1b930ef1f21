"""Mixture-of-experts families: Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 and V3, GPT-OSS, GLM-4.5, Llama 4.

Routing is taken as even: each expert gets top_k / count of the tokens and drops none. Defaults are those of the classes
in transformers; tests compare every family with its class.
"""

from __future__ import annotations

from dataclasses import replace

from models_zoo.hugging_face.chain import (
    Chain,
    Sizes,
    latent_attention,
    read_attention,
    read_gated,
    read_latent,
    read_prediction,
    read_sizes,
    rms_block,
    rms_chain,
    slide,
)
from models_zoo.hugging_face.keys import Keys, describe
from models_zoo.layers import Attention, Experts, FeedForward, TransformerBlock


def mixtral(keys: Keys) -> Chain:
    """Experts in every layer, no shared one."""
    sizes = read_sizes(keys, hidden=4096, layers=32, heads=32, vocab=32000, positions=131072)
    experts = read_experts(
        keys,
        hidden=keys.size("intermediate_size", 14336, required=True),
        count=keys.size(keys.spelling("num_local_experts", "num_experts"), 8, required=True),
        top_k=2,
    )
    block = rms_block(sizes, read_attention(keys, sizes, kv_heads=8), experts)
    window = keys.optional_size("sliding_window")
    return rms_chain(keys, sizes, slide(keys, [block] * sizes.layers, window, lambda _: True))


def qwen2_moe(keys: Keys) -> Chain:
    """A gated shared expert beside the routed ones; every second of the first layers may slide."""
    sizes = read_sizes(keys, hidden=2048, layers=24, heads=16, vocab=151936, positions=32768)
    attention = read_attention(keys, sizes, kv_heads=16, qkv_bias=keys.flag("qkv_bias", True))
    shared = keys.size("shared_expert_intermediate_size", 5632, least=0)
    blocks = qwen_blocks(keys, sizes, attention, dense=5632, expert=1408, count=60, top_k=4, shared=shared)
    window = keys.optional_size("sliding_window", 4096, least=0) if keys.flag("use_sliding_window", False) else None
    last = keys.size("max_window_layers", 28, least=0)
    return rms_chain(keys, sizes, slide(keys, blocks, window or None, lambda i: i % 2 == 0 and i < last))


def qwen3_moe(keys: Keys) -> Chain:
    """No shared expert; norms on each head's queries and keys."""
    sizes = read_sizes(keys, hidden=2048, layers=24, heads=32, vocab=151936, positions=32768)
    attention = read_attention(keys, sizes, kv_heads=4, states_bias=True, query_key_norm="head")
    blocks = qwen_blocks(keys, sizes, attention, dense=6144, expert=768, count=128, top_k=8, shared=0)
    window = keys.optional_size("sliding_window", 4096) if keys.flag("use_sliding_window", False) else None
    return rms_chain(keys, sizes, slide(keys, blocks, window, lambda _: True))


def deepseek_v2(keys: Keys) -> Chain:
    """Latent attention; experts with shared ones behind the first dense layers."""
    sizes = read_sizes(keys, hidden=4096, layers=32, heads=32, vocab=102400, positions=2048)
    keys.refuse("mlp_bias", default=False, meaning="a shared expert with biases")
    return _deepseek(keys, sizes, dense=11008, expert=1407, count=64, top_k=None, shared=2, first_dense=0)


def deepseek_v3(keys: Keys) -> Chain:
    """As V2, with multi-token prediction. The router's correction bias is a buffer, no parameter."""
    sizes = read_sizes(keys, hidden=7168, layers=61, heads=128, vocab=129280, positions=4096)
    return _deepseek(keys, sizes, dense=18432, expert=2048, count=256, top_k=8, shared=1, first_dense=3)


def gpt_oss(keys: Keys) -> Chain:
    """Experts with biases in every layer; every first of two layers slides. What its heads and its router add to scores
    (a sink for each head, a bias for each expert) is left out."""
    sizes = read_sizes(keys, hidden=2880, layers=36, heads=64, vocab=201088, positions=131072)
    bias = keys.flag("attention_bias", True)
    attention = read_attention(keys, sizes, kv_heads=8, head_dim=64, qkv_bias=bias, output_bias=bias)
    hidden = keys.size("intermediate_size", 2880, required=True)
    count = keys.size(keys.spelling("num_local_experts", "num_experts"), 128, required=True)
    experts = read_experts(keys, hidden=hidden, count=count, top_k=4)
    block = rms_block(sizes, attention, replace(experts, expert=replace(experts.expert, bias=True)))
    window = keys.optional_size("sliding_window", 128)
    chain = rms_chain(keys, sizes, slide(keys, [block] * sizes.layers, window, lambda i: i % 2 == 0))
    left_out = sizes.layers * (sizes.heads + count)
    return replace(chain, remark=f"without attention sinks and the router's biases ({left_out} parameters)")


def glm4_moe(keys: Keys) -> Chain:
    """Biases on queries, keys and values at most; experts with a shared one behind the first dense layers."""
    sizes = read_sizes(keys, hidden=4096, layers=46, heads=96, vocab=151552, positions=131072)
    attention = read_attention(
        keys,
        sizes,
        kv_heads=8,
        qkv_bias=keys.flag("attention_bias", False),
        query_key_norm="head" if keys.flag("use_qk_norm", False) else "none",
        rotary_share=0.5,
    )
    return _deepseek(
        keys, sizes, dense=10944, expert=1408, count=128, top_k=8, shared=1, first_dense=1, attention=attention
    )


def llama4_text(keys: Keys) -> Chain:
    """Experts beside a shared one as wide in every `interleave_moe_layer_step`-th layer, a wider dense one elsewhere.

    Its norm of queries and keys has no weights and is left out. Layers with rotary positions attend within chunks.
    """
    sizes = read_sizes(keys, hidden=5120, layers=48, heads=40, vocab=202048, positions=131072)
    attention = read_attention(keys, sizes, kv_heads=8, head_dim=128, states_bias=True)
    step = keys.size("interleave_moe_layer_step", 1)
    stated = keys.get("moe_layers", None)
    sparse = [i in set(keys.sizes("moe_layers")) if stated else (i + 1) % step == 0 for i in range(sizes.layers)]
    hidden = keys.size("intermediate_size", 8192, required=True)
    experts = read_experts(keys, hidden=hidden, count=keys.size("num_local_experts", 16), top_k=1, shared=hidden)
    dense = FeedForward(
        hidden=keys.size("intermediate_size_mlp", 16384), gated=True, activation=experts.expert.activation
    )
    blocks = [rms_block(sizes, attention, experts if kind else dense) for kind in sparse]
    chunk = keys.optional_size("attention_chunk_size", 8192)
    chain = rms_chain(keys, sizes, _chunked(keys, blocks, chunk))
    return replace(chain, remark=f"attention within {chunk} tokens taken as a window") if chunk else chain


def _chunked(keys: Keys, blocks: list[TransformerBlock], chunk: int | None) -> list[TransformerBlock]:
    """`blocks` with a window as long as a chunk on those that attend within chunks: three of four, if not named."""
    every = keys.size("no_rope_layer_interval", 4)
    rotates = keys.get("no_rope_layers", None) or [(i + 1) % every != 0 for i in range(len(blocks))]
    kinds = keys.get("layer_types", None)
    if kinds is None:
        kinds = ["chunked_attention" if turns else "full_attention" for turns in rotates]
    if not isinstance(kinds, list) or len(kinds) != len(blocks):
        raise keys.wrong("layer_types", describe(kinds), f"{len(blocks)} entries, one for each layer")
    windows = [chunk if kind == "chunked_attention" else None for kind in kinds]
    return [
        replace(block, attention=replace(block.self_attention, window=window))
        for block, window in zip(blocks, windows, strict=True)
    ]


def read_experts(
    keys: Keys, *, hidden: int, count: int, top_k: int | None, shared: int = 0, shared_gate: bool = False
) -> Experts:
    """`count` gated experts of `hidden` columns; `top_k` is the class's default of how many a token visits."""
    chosen = keys.size("num_experts_per_tok", top_k)
    if chosen > count:
        raise keys.wrong("num_experts_per_tok", chosen, f"at most {count}, the number of experts")
    return Experts(
        count=count,
        top_k=chosen,
        expert=FeedForward(hidden=hidden, gated=True, activation=keys.activation("hidden_act", "silu")),
        shared_hidden=shared,
        shared_gate=shared_gate,
    )


def qwen_blocks(
    keys: Keys,
    sizes: Sizes,
    attention: Attention,
    *,
    dense: int,
    expert: int,
    count: int,
    top_k: int,
    shared: int,
) -> list[TransformerBlock]:
    """Experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`; dense layers elsewhere."""
    count = keys.size(keys.spelling("num_experts", "num_local_experts"), count, required=True, least=0)
    step = keys.size("decoder_sparse_step", 1)
    only_dense = set(keys.sizes("mlp_only_layers"))
    sparse = [count > 0 and i not in only_dense and (i + 1) % step == 0 for i in range(sizes.layers)]
    experts = None
    if any(sparse):
        hidden = keys.size("moe_intermediate_size", expert, required=True)
        experts = read_experts(keys, hidden=hidden, count=count, top_k=top_k, shared=shared, shared_gate=shared > 0)
    return _mixed_blocks(keys, sizes, attention, sparse, experts, dense)


def _deepseek(
    keys: Keys,
    sizes: Sizes,
    *,
    dense: int,
    expert: int,
    count: int,
    top_k: int | None,
    shared: int,
    first_dense: int,
    attention: Attention | None = None,
) -> Chain:
    """Experts from layer `first_k_dense_replace` on, in every `moe_layer_freq`-th layer; without routed ones, none."""
    spelling = keys.spelling("n_routed_experts", "num_local_experts", "num_experts")
    routed = keys.optional_size(spelling, count, least=0) or 0
    first = keys.size("first_k_dense_replace", first_dense, least=0)
    every = keys.size("moe_layer_freq", 1)
    sparse = [routed > 0 and i >= first and i % every == 0 for i in range(sizes.layers)]
    experts = None
    if any(sparse):
        hidden = keys.size("moe_intermediate_size", expert, required=True)
        shared = keys.optional_size("n_shared_experts", shared, least=0) or 0
        experts = read_experts(keys, hidden=hidden, count=routed, top_k=top_k, shared=hidden * shared)
    blocks = _mixed_blocks(keys, sizes, attention or _latent_attention(keys, sizes), sparse, experts, dense)
    return rms_chain(keys, sizes, blocks, prediction=read_prediction(keys, (blocks[-1],)))


def _mixed_blocks(
    keys: Keys, sizes: Sizes, attention: Attention, sparse: list[bool], experts: Experts | None, dense_hidden: int
) -> list[TransformerBlock]:
    """A block for each layer: with `experts` where `sparse` says so, with a dense feed-forward elsewhere."""
    blocks: dict[bool, TransformerBlock] = {}
    if experts:
        blocks[True] = rms_block(sizes, attention, experts)
    if not all(sparse):
        blocks[False] = rms_block(sizes, attention, read_gated(keys, dense_hidden))
    return [blocks[kind] for kind in sparse]


def _latent_attention(keys: Keys, sizes: Sizes) -> Attention:
    bias = keys.flag("attention_bias", False)
    latent = read_latent(keys, query_rank=1536, key_value_rank=512)
    return latent_attention(sizes, latent, qkv_bias=bias, output_bias=bias)
