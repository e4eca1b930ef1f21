"""Decoders as Megatron-LM's arguments make them: no class of transformers, but keys in its way.

The planner's reader of them writes such a `config.json` where a user's arguments make no model of the zoo. Beside the
usual keys it states what other families take for granted: `normalization` (LayerNorm or RMSNorm),
`position_embedding_type` (learned_absolute, rope or none), `gated`, `linear_bias`, `attention_bias` (of queries, keys
and values), `query_key_norm`, `dropout`, and with experts the `expert_layers` that have them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from models_zoo.hugging_face.chain import (
    Chain,
    Sizes,
    latent_attention,
    read_attention,
    read_latent,
    read_sizes,
    slide,
)
from models_zoo.hugging_face.keys import Keys
from models_zoo.layers import (
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Head,
    Norm,
    TransformerBlock,
)

NORMS: dict[str, Norm] = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
POSITIONS = ("learned_absolute", "rope", "none")


def megatron(keys: Keys) -> Chain:
    """Pre-norm blocks that differ in windows and experts alone."""
    sizes = read_sizes(keys, hidden=1024, layers=24, heads=16, vocab=50257, positions=2048)
    norm = NORMS[keys.word("normalization", "LayerNorm", tuple(NORMS))]
    positions = keys.word("position_embedding_type", POSITIONS[0], POSITIONS)
    dropout = keys.flag("dropout", False)
    attention = _attention(keys, sizes, rotary=positions == "rope")
    dense, experts = _dense(keys), _experts(keys)
    sparse = set(keys.sizes("expert_layers")) if experts else set()
    blocks = [
        TransformerBlock(
            hidden=sizes.hidden,
            attention=attention,
            feed_forward=experts if experts and number in sparse else dense,
            norm=norm,
            norm_bias=norm == "layernorm",
            dropout=dropout,
        )
        for number in range(sizes.layers)
    ]
    return Chain(
        embedding=Embedding(
            vocab=sizes.vocab,
            hidden=sizes.hidden,
            positions=sizes.positions if positions == "learned_absolute" else 0,
            dropout=dropout,
        ),
        blocks=slide(keys, blocks, keys.optional_size("sliding_window"), lambda _: True),
        head=Head(
            hidden=sizes.hidden,
            vocab=sizes.vocab,
            norm=norm,
            norm_bias=norm == "layernorm",
            tied=keys.flag("tie_word_embeddings", True),
        ),
        positions=sizes.positions,
    )


def _attention(keys: Keys, sizes: Sizes, *, rotary: bool) -> Attention:
    output_bias = keys.flag("linear_bias", True)
    qkv_bias = keys.flag("attention_bias", output_bias)
    if keys.get("kv_lora_rank", None) is None:
        kind: Literal["none", "head"] = "head" if keys.flag("query_key_norm", False) else "none"
        attention = read_attention(keys, sizes, qkv_bias=qkv_bias, output_bias=output_bias, query_key_norm=kind)
        return attention if rotary else replace(attention, rotary_dim=0)
    latent = read_latent(keys, query_rank=None, key_value_rank=None)
    return latent_attention(sizes, latent, qkv_bias=qkv_bias, output_bias=output_bias)


def _dense(keys: Keys) -> FeedForward:
    return FeedForward(
        hidden=keys.size("intermediate_size", required=True),
        gated=keys.flag("gated", False),
        activation=keys.activation("hidden_act", "gelu"),
        bias=keys.flag("linear_bias", True),
    )


def _experts(keys: Keys) -> Experts | None:
    count = keys.optional_size("num_experts")
    if count is None:
        return None
    chosen = keys.size("num_experts_per_tok", 2)
    if chosen > count:
        raise keys.wrong("num_experts_per_tok", chosen, f"at most {count}, the number of experts")
    dense = _dense(keys)
    return Experts(
        count=count,
        top_k=chosen,
        expert=replace(dense, hidden=keys.size("moe_intermediate_size", dense.hidden)),
        shared_hidden=keys.size("shared_expert_intermediate_size", 0, least=0),
        shared_gate=keys.flag("shared_expert_gate", False),
    )
