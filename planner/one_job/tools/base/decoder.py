"""A decoder-only transformer in the numbers that launchers ask for."""

from __future__ import annotations

from dataclasses import replace

from models_zoo.layers import (
    Activation,
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Head,
    LatentAttention,
    Norm,
    TransformerBlock,
)
from models_zoo.model import Model, ModelTraits, TokenInput
from planner.one_job.tools.base.export_records import CannotExpress
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Sizes are counts of elements. What differs between blocks is a tuple with an entry for each.

    `feed_forward_hidden` is the dense blocks', one expert's where no block is dense. `positions` rows of learned
    positions, 0 for none; `rotary_dim` 0 for none. `windows` are tokens that attention is limited to. `traits` is what
    the model's config says beside its layers.
    """

    blocks: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward_hidden: int
    gated: bool
    activation: Activation
    qkv_bias: bool
    output_bias: bool
    feed_forward_bias: bool
    norm: Norm
    query_key_norm: str
    rotary_dim: int
    positions: int
    vocab: int
    tied: bool
    dropout: bool
    windows: tuple[int | None, ...]
    latent: LatentAttention | None
    experts: Experts | None
    expert_blocks: tuple[bool, ...]
    traits: ModelTraits


def decoder_of(model: Model, tool: str) -> Decoder:
    """Return `model` as a decoder whose blocks are alike but for windows and experts; raise CannotExpress (key `model`)
    for any other."""

    def refuse(what: str, expected: str) -> CannotExpress:
        return CannotExpress(tool=tool, key="model", found=f"{model.name}, {what}", expected=expected)

    first, *middle, last = model.layers
    blocks = [layer for layer in middle if isinstance(layer, TransformerBlock)]
    whole = isinstance(model.input, TokenInput) and blocks and len(blocks) == len(middle)
    if not (isinstance(first, Embedding) and isinstance(last, Head) and whole):
        raise refuse(f"a {model.family} model", "an embedding, transformer blocks and a head")
    oddity = _embedding_oddity(first) or _head_oddity(last) or next(filter(None, map(_block_oddity, blocks)), None)
    if oddity is not None:
        raise refuse(oddity, "decoders with a norm before each part, one residual after another, and a plain head")
    mixers = [block.attention for block in blocks if isinstance(block.attention, Attention)]
    if len(mixers) < len(blocks) or any(block.feed_forward is None for block in blocks):
        raise refuse("a hybrid", "blocks that each have attention and a feed-forward")
    if not _alike(blocks, mixers):
        raise refuse("whose blocks differ", "blocks of one size (experts in some of them)")
    return _describe(first, blocks, last, mixers, model.traits)


def is_plain_llama(decoder: Decoder, *, query_key_norm: bool = False) -> bool:
    """Return whether the model is of Llama's kind: RMSNorm, rotary positions, SwiGLU, no biases, windows or experts."""
    return (
        decoder.norm == "rmsnorm"
        and decoder.rotary_dim == decoder.head_dim
        and not decoder.positions
        and (decoder.gated, decoder.activation) == (True, "silu")
        and not (decoder.qkv_bias or decoder.output_bias or decoder.feed_forward_bias)
        and (query_key_norm or decoder.query_key_norm == "none")
        and not any(decoder.windows)
        and decoder.latent is None
        and decoder.experts is None
    )


def _alike(blocks: list[TransformerBlock], mixers: list[Attention]) -> bool:
    """Whether blocks differ in windows alone, and in which of two feed-forwards they have, one of experts."""
    attentions = {replace(mixer, window=None) for mixer in mixers}
    frames = {replace(block, attention=mixers[0], feed_forward=blocks[0].feed_forward) for block in blocks}
    parts = {(type(block.feed_forward), block.feed_forward) for block in blocks}
    return len(attentions) == len(frames) == 1 and len(parts) == len({kind for kind, _ in parts})


# What a plain decoder does not have, in words; None where there is nothing of the kind.


def _embedding_oddity(embedding: Embedding) -> str | None:
    more = embedding.norm or embedding.factor or embedding.token_types
    return "whose embedding is more than a table of tokens" if more else None


def _head_oddity(head: Head) -> str | None:
    if head.bias or head.transform or head.pooler or head.factor or head.predicted or not head.vocab or not head.norm:
        return "whose head is more than a norm and a projection"
    return "which predicts several tokens ahead" if head.prediction else None


def _block_oddity(block: TransformerBlock) -> str | None:
    mixer = block.attention
    if isinstance(mixer, Attention) and mixer.output_gate:
        return "whose attention has an output gate"
    acausal = isinstance(mixer, Attention) and not mixer.causal
    if block.placement != "pre" or block.parallel or block.cross_attention or acausal:
        return "whose blocks are not causal ones with a norm before each part"
    return None


def _describe(
    embedding: Embedding, blocks: list[TransformerBlock], head: Head, mixers: list[Attention], traits: ModelTraits
) -> Decoder:
    attention = mixers[0]
    parts = [block.feed_forward for block in blocks]
    experts = next((part for part in parts if isinstance(part, Experts)), None)
    dense = next((part for part in parts if isinstance(part, FeedForward)), None)
    feed_forward = dense or (experts.expert if experts else None)
    assert feed_forward is not None, "a block has a feed-forward"
    return Decoder(
        blocks=len(blocks),
        hidden=blocks[0].hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        feed_forward_hidden=feed_forward.hidden,
        gated=feed_forward.gated,
        activation=feed_forward.activation,
        qkv_bias=attention.qkv_bias,
        output_bias=attention.output_bias,
        feed_forward_bias=feed_forward.bias,
        norm=blocks[0].norm,
        query_key_norm=attention.query_key_norm,
        rotary_dim=attention.rotary_dim,
        positions=embedding.positions,
        vocab=embedding.vocab,
        tied=head.tied,
        dropout=any(block.dropout for block in blocks),
        windows=tuple(mixer.window for mixer in mixers),
        latent=attention.latent,
        experts=experts,
        expert_blocks=tuple(isinstance(block.feed_forward, Experts) for block in blocks),
        traits=traits,
    )
