"""What the families share: the sizes that all have, rotary attention, sliding windows, and the finished chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from models_zoo.hugging_face.keys import Keys, describe
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
from profiles.records import dataclass

MOST_LAYERS = 10_000
"""Each layer is an entry in a tuple: a slip of the keyboard must not eat the machine's memory."""

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A language model's layers, the tokens that its positions reach, and a remark for its source."""

    embedding: Embedding
    blocks: tuple[TransformerBlock, ...]
    head: Head
    positions: int
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes that every family has; `positions` is the longest sequence."""

    hidden: int
    layers: int
    heads: int
    vocab: int
    positions: int


def read_sizes(keys: Keys, *, hidden: int, layers: int, heads: int, vocab: int, positions: int) -> Sizes:
    """Sizes under their usual keys or GPT-2's; the defaults are the class's."""
    return Sizes(
        hidden=keys.size(keys.spelling("hidden_size", "n_embd"), hidden, required=True),
        layers=keys.size(keys.spelling("num_hidden_layers", "n_layer"), layers, required=True, most=MOST_LAYERS),
        heads=keys.size(keys.spelling("num_attention_heads", "n_head"), heads, required=True),
        vocab=keys.size("vocab_size", vocab, required=True),
        positions=keys.size(keys.spelling("max_position_embeddings", "n_positions"), positions),
    )


def split_hidden(keys: Keys, sizes: Sizes) -> int:
    """The head dimension where none is stated: hidden over heads, which must divide it."""
    if sizes.hidden % sizes.heads:
        key = keys.spelling("num_attention_heads", "n_head")
        raise keys.wrong(key, sizes.heads, f"a divisor of the hidden size {sizes.hidden}")
    return sizes.hidden // sizes.heads


def read_attention(
    keys: Keys,
    sizes: Sizes,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    states_bias: bool = False,
    query_key_norm: Literal["none", "head"] = "none",
    rotary_share: float = 1.0,
) -> Attention:
    """Return causal rotary attention. The class's defaults `kv_heads` and `head_dim` None mean as many as heads, and
    hidden over heads; where it `states_bias`, `attention_bias` says whether projections have biases."""
    if states_bias:
        qkv_bias = output_bias = keys.flag("attention_bias", False)
    groups = keys.optional_size("num_key_value_heads", kv_heads) or sizes.heads
    if sizes.heads % groups:
        raise keys.wrong("num_key_value_heads", groups, f"a divisor of the {sizes.heads} attention heads")
    dim = keys.optional_size("head_dim", head_dim) or split_hidden(keys, sizes)
    return Attention(
        heads=sizes.heads,
        kv_heads=groups,
        head_dim=dim,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        query_key_norm=query_key_norm,
        rotary_dim=read_rotary_dim(keys, dim, share=rotary_share),
    )


def read_rotary_dim(keys: Keys, head_dim: int, *, share: float) -> int:
    """Dimensions of a head that rotate: a share said in `rope_parameters` (transformers 5) or beside it (before)."""
    share = keys.share(keys.spelling("partial_rotary_factor", "rotary_pct"), share)
    return int(head_dim * keys.part("rope_parameters").share("partial_rotary_factor", share))


def slide(
    keys: Keys, blocks: Sequence[TransformerBlock], window: int | None, slides: Callable[[int], bool]
) -> tuple[TransformerBlock, ...]:
    """`blocks` with the sliding window put on those that `layer_types` names, else on those that `slides` says."""
    types = keys.get("layer_types", None)
    if types is None:
        types = [LAYER_TYPES[slides(i)] for i in range(len(blocks))]
    elif not isinstance(types, list) or len(types) != len(blocks) or any(kind not in LAYER_TYPES for kind in types):
        raise keys.wrong("layer_types", describe(types), f"{len(blocks)} entries, each {' or '.join(LAYER_TYPES)}")
    elif window is None and LAYER_TYPES[1] in types:
        raise keys.wrong(
            "layer_types", f"{LAYER_TYPES[1]} without a window", "a size under sliding_window, or none such"
        )
    return tuple(
        replace(block, attention=replace(block.self_attention, window=window if kind == LAYER_TYPES[1] else None))
        for block, kind in zip(blocks, types, strict=True)
    )


def read_feed_forward(
    keys: Keys, hidden: int, *, act_key: str = "hidden_act", act: str, gated: bool = False, bias: bool = True
) -> FeedForward:
    """Return a feed-forward; `hidden` and `act` are the class's defaults."""
    return FeedForward(
        hidden=keys.size("intermediate_size", hidden, required=True),
        gated=gated,
        activation=keys.activation(act_key, act),
        bias=bias,
    )


def read_gated(
    keys: Keys, hidden: int, *, act_key: str = "hidden_act", act: str = "silu", bias: bool = False
) -> FeedForward:
    """Return a feed-forward with a gate; `hidden` and `act` are the class's defaults."""
    return read_feed_forward(keys, hidden, act_key=act_key, act=act, gated=True, bias=bias)


def latent_attention(sizes: Sizes, latent: LatentAttention, *, qkv_bias: bool, output_bias: bool) -> Attention:
    """Return attention whose keys and values come out of a narrow `latent`."""
    return Attention(
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=latent.nope_dim + latent.rope_dim,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        rotary_dim=latent.rope_dim,
        latent=latent,
    )


def read_latent(keys: Keys, *, query_rank: int | None, key_value_rank: int | None) -> LatentAttention:
    """Return the sizes of latent attention; `query_rank` and `key_value_rank` are the class's defaults."""
    return LatentAttention(
        query_rank=keys.optional_size("q_lora_rank", query_rank),
        key_value_rank=keys.size("kv_lora_rank", key_value_rank),
        nope_dim=keys.size("qk_nope_head_dim", 128),
        rope_dim=keys.size("qk_rope_head_dim", 64),
        value_dim=keys.size("v_head_dim", 128),
    )


def rms_block(
    sizes: Sizes, attention: Attention | LinearAttention | None, feed_forward: FeedForward | Experts | None
) -> TransformerBlock:
    """A pre-norm block with RMSNorm, Llama's way."""
    return TransformerBlock(
        hidden=sizes.hidden, attention=attention, feed_forward=feed_forward, norm="rmsnorm", norm_bias=False
    )


def read_prediction(keys: Keys, blocks: tuple[TransformerBlock, ...]) -> Prediction | None:
    """Multi-token prediction by `blocks` for each further token; None where the config asks for none."""
    ahead = keys.size(keys.spelling("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers"), 0, least=0)
    return Prediction(count=ahead, blocks=blocks) if ahead else None


def rms_chain(
    keys: Keys,
    sizes: Sizes,
    blocks: Sequence[TransformerBlock],
    *,
    tied: bool = False,
    prediction: Prediction | None = None,
) -> Chain:
    """Embedding, blocks, and a head with RMSNorm, tied as `tie_word_embeddings` says, with `prediction` in it."""
    tied = keys.flag("tie_word_embeddings", tied)
    return Chain(
        embedding=Embedding(vocab=sizes.vocab, hidden=sizes.hidden),
        blocks=tuple(blocks),
        head=Head(
            hidden=sizes.hidden, vocab=sizes.vocab, norm="rmsnorm", norm_bias=False, tied=tied, prediction=prediction
        ),
        positions=sizes.positions,
        remark=f"with {prediction.count} multi-token prediction layer(s)" if prediction else "",
    )
