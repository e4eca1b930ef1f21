"""Dense families with LayerNorm: GPT-2, OPT, BERT, GPT-NeoX, Phi and Falcon, with biases, and Nemotron, without.

Biases, norms and defaults are those of the classes in transformers; tests compare every family with its class.
"""

from __future__ import annotations

from models_zoo.hugging_face.chain import (
    Chain,
    read_attention,
    read_feed_forward,
    read_rotary_dim,
    read_sizes,
    split_hidden,
)
from models_zoo.hugging_face.keys import Keys
from models_zoo.layers import Attention, Embedding, FeedForward, Head, TransformerBlock

OPT_POSITION_OFFSET = 2
"""Rows at the head of OPT's position table that no token uses."""


def gpt2(keys: Keys) -> Chain:
    """Learned positions, pre-norm, tied head."""
    sizes = read_sizes(keys, hidden=768, layers=12, heads=12, vocab=50257, positions=1024)
    keys.refuse("add_cross_attention", default=False, meaning="cross-attention to another model")
    feed_forward = FeedForward(
        hidden=keys.optional_size("n_inner") or 4 * sizes.hidden,
        activation=keys.activation("activation_function", "gelu_new"),
        bias=True,
    )
    block = TransformerBlock(
        hidden=sizes.hidden,
        attention=_plain_attention(sizes.heads, split_hidden(keys, sizes)),
        feed_forward=feed_forward,
        dropout=keys.share("resid_pdrop", 0.1) > 0,
    )
    dropout = keys.share("embd_pdrop", 0.1) > 0
    return Chain(
        embedding=Embedding(vocab=sizes.vocab, hidden=sizes.hidden, positions=sizes.positions, dropout=dropout),
        blocks=(block,) * sizes.layers,
        head=Head(hidden=sizes.hidden, vocab=sizes.vocab, tied=keys.flag("tie_word_embeddings", True)),
        positions=sizes.positions,
    )


def opt(keys: Keys) -> Chain:
    """Learned positions, ReLU; OPT-350m has post-norm blocks and a narrower table with a matrix either side."""
    sizes = read_sizes(keys, hidden=768, layers=12, heads=12, vocab=50272, positions=2048)
    keys.refuse("layer_norm_elementwise_affine", default=True, meaning="a norm without weights")
    bias = keys.flag("enable_bias", True)
    pre_norm = keys.flag("do_layer_norm_before", True)
    narrow = keys.optional_size("word_embed_proj_dim") or sizes.hidden
    factor = narrow if narrow != sizes.hidden else 0
    dropout = keys.share("dropout", 0.1) > 0
    block = TransformerBlock(
        hidden=sizes.hidden,
        attention=_plain_attention(sizes.heads, split_hidden(keys, sizes), bias=bias),
        feed_forward=FeedForward(
            hidden=keys.size("ffn_dim", 3072, required=True),
            activation=keys.activation("activation_function", "relu"),
            bias=bias,
        ),
        placement="pre" if pre_norm else "post",
        dropout=dropout,
    )
    final_norm = pre_norm and not keys.flag("_remove_final_layer_norm", False)
    return Chain(
        embedding=Embedding(
            vocab=sizes.vocab, hidden=sizes.hidden, positions=sizes.positions + OPT_POSITION_OFFSET, factor=factor
        ),
        blocks=(block,) * sizes.layers,
        head=Head(
            hidden=sizes.hidden,
            vocab=sizes.vocab,
            norm="layernorm" if final_norm else None,
            tied=keys.flag("tie_word_embeddings", True),
            factor=factor,
        ),
        positions=sizes.positions,
    )


def bert(keys: Keys) -> Chain:
    """Post-norm encoder with the masked-language head; as a decoder (`is_decoder`) it is causal."""
    sizes = read_sizes(keys, hidden=768, layers=12, heads=12, vocab=30522, positions=512)
    keys.refuse("add_cross_attention", default=False, meaning="cross-attention to another model")
    keys.word("position_embedding_type", "absolute", ("absolute",))
    dropout = keys.share("hidden_dropout_prob", 0.1) > 0
    causal = keys.flag("is_decoder", False)
    block = TransformerBlock(
        hidden=sizes.hidden,
        attention=_plain_attention(sizes.heads, split_hidden(keys, sizes), causal=causal),
        feed_forward=read_feed_forward(keys, 3072, act="gelu"),
        placement="post",
        dropout=dropout,
    )
    return Chain(
        embedding=Embedding(
            vocab=sizes.vocab,
            hidden=sizes.hidden,
            positions=sizes.positions,
            token_types=keys.size("type_vocab_size", 2),
            norm="layernorm",
            dropout=dropout,
        ),
        blocks=(block,) * sizes.layers,
        head=Head(
            hidden=sizes.hidden,
            vocab=sizes.vocab,
            norm=None,
            tied=keys.flag("tie_word_embeddings", True),
            bias=True,
            transform=True,
        ),
        positions=sizes.positions,
        remark="masked-language head, no pooler",
    )


def gpt_neox(keys: Keys) -> Chain:
    """Rotary on a quarter of each head; attention and feed-forward side by side, each with its norm."""
    sizes = read_sizes(keys, hidden=6144, layers=44, heads=64, vocab=50432, positions=2048)
    bias = keys.flag("attention_bias", True)
    head_dim = split_hidden(keys, sizes)
    attention = Attention(
        heads=sizes.heads,
        kv_heads=sizes.heads,
        head_dim=head_dim,
        qkv_bias=bias,
        output_bias=bias,
        rotary_dim=read_rotary_dim(keys, head_dim, share=0.25),
    )
    dropout = keys.share("hidden_dropout", 0.0) > 0
    block = TransformerBlock(
        hidden=sizes.hidden,
        attention=attention,
        feed_forward=read_feed_forward(keys, 24576, act="gelu"),
        parallel=keys.flag("use_parallel_residual", True),
        dropout=dropout,
    )
    return Chain(
        embedding=Embedding(vocab=sizes.vocab, hidden=sizes.hidden, dropout=dropout),
        blocks=(block,) * sizes.layers,
        head=Head(hidden=sizes.hidden, vocab=sizes.vocab, tied=keys.flag("tie_word_embeddings", False)),
        positions=sizes.positions,
    )


def phi(keys: Keys) -> Chain:
    """Rotary on half of each head; attention and feed-forward side by side behind one norm; a head with bias."""
    sizes = read_sizes(keys, hidden=2048, layers=24, heads=32, vocab=51200, positions=2048)
    attention = read_attention(
        keys,
        sizes,
        qkv_bias=True,
        output_bias=True,
        query_key_norm="head" if keys.flag("qk_layernorm", False) else "none",
        rotary_share=0.5,
    )
    block = TransformerBlock(
        hidden=sizes.hidden,
        attention=attention,
        feed_forward=read_feed_forward(keys, 8192, act="gelu_new"),
        parallel=True,
        shared_norm=True,
        dropout=keys.share("resid_pdrop", 0.0) > 0,
    )
    return Chain(
        embedding=Embedding(vocab=sizes.vocab, hidden=sizes.hidden, dropout=keys.share("embd_pdrop", 0.0) > 0),
        blocks=(block,) * sizes.layers,
        head=Head(hidden=sizes.hidden, vocab=sizes.vocab, tied=keys.flag("tie_word_embeddings", False), bias=True),
        positions=sizes.positions,
    )


def nemotron(keys: Keys) -> Chain:
    """Rotary on half of each head, squared ReLU, no biases but the norms'."""
    sizes = read_sizes(keys, hidden=6144, layers=32, heads=48, vocab=256000, positions=4096)
    block = TransformerBlock(
        hidden=sizes.hidden,
        attention=read_attention(keys, sizes, states_bias=True, rotary_share=0.5),
        feed_forward=read_feed_forward(keys, 24576, act="relu2", bias=keys.flag("mlp_bias", False)),
    )
    return Chain(
        embedding=Embedding(vocab=sizes.vocab, hidden=sizes.hidden),
        blocks=(block,) * sizes.layers,
        head=Head(hidden=sizes.hidden, vocab=sizes.vocab, tied=keys.flag("tie_word_embeddings", False)),
        positions=sizes.positions,
    )


def falcon(keys: Keys) -> Chain:
    """Attention and feed-forward side by side, behind one norm or (in the new architecture) two; one key-value head, a
    few, or as many as queries; with ALiBi no rotary positions."""
    sizes = read_sizes(keys, hidden=4544, layers=32, heads=71, vocab=65024, positions=2048)
    head_dim, bias = split_hidden(keys, sizes), keys.flag("bias", False)
    newer = keys.flag("new_decoder_architecture", False)
    groups = 1 if keys.flag("multi_query", True) and not newer else sizes.heads
    if newer:
        groups = keys.optional_size("num_kv_heads") or sizes.heads
        if sizes.heads % groups:
            raise keys.wrong("num_kv_heads", groups, f"a divisor of the {sizes.heads} attention heads")
    norms = keys.optional_size("num_ln_in_parallel_attn") or (2 if newer else 1)
    parallel = newer or keys.flag("parallel_attn", True)
    dropout = keys.share("hidden_dropout", 0.0) > 0
    block = TransformerBlock(
        hidden=sizes.hidden,
        attention=Attention(
            heads=sizes.heads,
            kv_heads=groups,
            head_dim=head_dim,
            qkv_bias=bias,
            output_bias=bias,
            rotary_dim=0 if keys.flag("alibi", False) else head_dim,
        ),
        feed_forward=FeedForward(
            hidden=keys.optional_size("ffn_hidden_size") or 4 * sizes.hidden,
            activation=keys.activation("activation", "gelu"),
            bias=bias,
        ),
        parallel=parallel,
        shared_norm=parallel and norms == 1,
        dropout=dropout,
    )
    return Chain(
        embedding=Embedding(vocab=sizes.vocab, hidden=sizes.hidden),
        blocks=(block,) * sizes.layers,
        head=Head(hidden=sizes.hidden, vocab=sizes.vocab, tied=keys.flag("tie_word_embeddings", True)),
        positions=sizes.positions,
    )


def _plain_attention(heads: int, head_dim: int, *, bias: bool = True, causal: bool = True) -> Attention:
    return Attention(heads=heads, kv_heads=heads, head_dim=head_dim, causal=causal, qkv_bias=bias, output_bias=bias)
