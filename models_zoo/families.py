"""Model families as functions from sizes to a `Model`.

Sizes are counts of elements; `hidden` is the model's width, `seq_len` tokens per sample. What a catalogue entry says
besides its sizes (published count, batch, source) is put on the result by `models_zoo.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models_zoo.layers import (
    Attention,
    Bottleneck,
    Classifier,
    ConvUnit,
    Embedding,
    Experts,
    FeedForward,
    Head,
    Layer,
    LinearAttention,
    Prediction,
    TransformerBlock,
)
from models_zoo.model import ImageInput, Model, TokenInput


def decoder_names(blocks: int) -> tuple[str, ...]:
    """Return the layer names of an embedding, `blocks` transformer blocks and a head."""
    return ("embedding", *(f"block.{i}" for i in range(blocks)), "head")


def gpt(name: str, *, hidden: int, layers: int, heads: int, vocab: int, seq_len: int) -> Model:
    """Return a GPT-2 or GPT-3: learned positions, pre-norm, biases, GELU, feed-forward of 4 hidden, tied head."""
    block = _biased_block(hidden, heads, FeedForward(hidden=4 * hidden, activation="gelu", bias=True))
    return _language_model(
        name,
        "gpt",
        Embedding(vocab=vocab, hidden=hidden, positions=seq_len, dropout=True),
        [block] * layers,
        Head(hidden=hidden, vocab=vocab, tied=True),
        seq_len,
    )


def opt(name: str, *, hidden: int, layers: int, heads: int, vocab: int, seq_len: int) -> Model:
    """OPT (Zhang et al. 2022): as GPT with ReLU; its position table has two rows of padding offset."""
    block = _biased_block(hidden, heads, FeedForward(hidden=4 * hidden, activation="relu", bias=True))
    return _language_model(
        name,
        "opt",
        Embedding(vocab=vocab, hidden=hidden, positions=seq_len + 2, dropout=True),
        [block] * layers,
        Head(hidden=hidden, vocab=vocab, tied=True),
        seq_len,
    )


def bert(name: str, *, hidden: int, layers: int, heads: int, vocab: int, seq_len: int) -> Model:
    """BERT with its masked-language head (Devlin et al. 2019): post-norm, two token types, tied projection, biases."""
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=hidden // heads, causal=False, qkv_bias=True, output_bias=True
    )
    block = TransformerBlock(
        hidden=hidden,
        attention=attention,
        feed_forward=FeedForward(hidden=4 * hidden, activation="gelu", bias=True),
        placement="post",
        dropout=True,
    )
    return _language_model(
        name,
        "bert",
        Embedding(vocab=vocab, hidden=hidden, positions=seq_len, token_types=2, norm="layernorm", dropout=True),
        [block] * layers,
        Head(hidden=hidden, vocab=vocab, norm=None, tied=True, bias=True, transform=True),
        seq_len,
    )


def llama(
    name: str, *, hidden: int, layers: int, heads: int, kv_heads: int, ffn_hidden: int, vocab: int, seq_len: int
) -> Model:
    """Return a Llama 2 or 3: RMSNorm, rotary positions, SwiGLU, grouped-query attention, no biases, untied head."""
    feed_forward = FeedForward(hidden=ffn_hidden, gated=True, activation="silu")
    block = _rotary_block(hidden, heads, kv_heads, feed_forward)
    return _rotary_model(name, "llama", block, layers, vocab, seq_len)


def mixtral(
    name: str,
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    ffn_hidden: int,
    experts: int,
    top_k: int,
    vocab: int,
    seq_len: int,
) -> Model:
    """Mixtral (Jiang et al. 2024): Llama's block with `experts` SwiGLU experts, `top_k` of them for each token."""
    expert = FeedForward(hidden=ffn_hidden, gated=True, activation="silu")
    block = _rotary_block(hidden, heads, kv_heads, Experts(count=experts, top_k=top_k, expert=expert))
    return _rotary_model(name, "mixtral", block, layers, vocab, seq_len)


def gshard_moe(
    name: str, *, hidden: int, layers: int, heads: int, ffn_hidden: int, experts: int, vocab: int, seq_len: int
) -> Model:
    """GShard (Lepikhin et al. 2020): a mixture of experts in every second layer, top-2 with static capacity.

    An expert's capacity is 2 tokens / experts (GShard, algorithm 1), which is top_k 2 at a capacity factor of 1.
    """
    dense = _biased_block(hidden, heads, FeedForward(hidden=ffn_hidden, activation="gelu", bias=True))
    expert = FeedForward(hidden=ffn_hidden, activation="gelu")
    sparse = _biased_block(hidden, heads, Experts(count=experts, top_k=2, expert=expert))
    return _language_model(
        name,
        "moe",
        Embedding(vocab=vocab, hidden=hidden, positions=seq_len, dropout=True),
        [sparse if i % 2 else dense for i in range(layers)],
        Head(hidden=hidden, vocab=vocab, tied=True),
        seq_len,
    )


def nmt(name: str, *, hidden: int, layers: int, heads: int, ffn_hidden: int, vocab: int, seq_len: int) -> Model:
    """Translation Transformer (Vaswani et al. 2017): `layers` encoder and `layers` decoder blocks, post-norm, ReLU.

    Sinusoidal positions have no weights; both embeddings and the projection share one table (section 3.4).
    """
    self_attention = Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, causal=False)
    feed_forward = FeedForward(hidden=ffn_hidden, activation="relu", bias=True)
    encoder = TransformerBlock(
        hidden=hidden, attention=self_attention, feed_forward=feed_forward, placement="post", dropout=True
    )
    decoder = TransformerBlock(
        hidden=hidden,
        attention=Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        feed_forward=feed_forward,
        placement="post",
        cross_attention=self_attention,
        dropout=True,
    )
    embedding = Embedding(vocab=vocab, hidden=hidden, dropout=True)
    tied = Embedding(vocab=vocab, hidden=hidden, dropout=True, tied=True)
    head = Head(hidden=hidden, vocab=vocab, norm=None, tied=True)
    return Model(
        name=name,
        family="nmt",
        layers=(embedding, *[encoder] * layers, tied, *[decoder] * layers, head),
        layer_names=(
            *("encoder.embedding", *(f"encoder.{i}" for i in range(layers))),
            *("decoder.embedding", *(f"decoder.{i}" for i in range(layers)), "head"),
        ),
        input=TokenInput(seq_len=seq_len, decoder_start=1 + layers),
    )


def nemotron_h(
    name: str,
    *,
    pattern: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn_hidden: int,
    mamba_heads: int,
    mamba_head_dim: int,
    mamba_groups: int,
    state: int,
    chunk: int,
    vocab: int,
    seq_len: int,
    tied: bool = False,
    predictions: int = 0,
    head_dim: int = 0,
    experts: int = 0,
    top_k: int = 0,
    expert_hidden: int = 0,
    shared_hidden: int = 0,
) -> Model:
    """Nemotron-H (NVIDIA 2025), Nemotron 3, and with M alone Mamba-2: a letter of `pattern` is a layer of one part.

    M is Mamba-2, * attention without positions in heads of `head_dim` (0: of 128 at most), - a squared-ReLU
    feed-forward, E a mixture of `experts` of these, `expert_hidden` wide, of which a token visits `top_k` and one of
    `shared_hidden`. `predictions` further tokens are each predicted by an attention and a feed-forward layer.
    """
    mamba = LinearAttention(
        rule="state_space",
        heads=mamba_heads,
        groups=mamba_groups,
        key_dim=state,
        value_dim=mamba_head_dim,
        norm_size=mamba_heads * mamba_head_dim // mamba_groups,
        chunk=chunk,
        convolution_bias=True,
    )
    attention = Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim or min(128, hidden // heads))
    feed_forward = FeedForward(hidden=ffn_hidden, activation="relu2")

    def block(mixer: Attention | LinearAttention | None, mlp: FeedForward | Experts | None) -> TransformerBlock:
        return TransformerBlock(hidden=hidden, attention=mixer, feed_forward=mlp, norm="rmsnorm", norm_bias=False)

    blocks = {"M": block(mamba, None), "*": block(attention, None), "-": block(None, feed_forward)}
    if experts:
        expert = FeedForward(hidden=expert_hidden, activation="relu2")
        mixture = Experts(count=experts, top_k=top_k, expert=expert, shared_hidden=shared_hidden)
        blocks["E"] = block(None, mixture)
    ahead = Prediction(count=predictions, blocks=(blocks["*"], blocks["-"])) if predictions else None
    head = Head(hidden=hidden, vocab=vocab, norm="rmsnorm", norm_bias=False, tied=tied, prediction=ahead)
    chain = [blocks[letter] for letter in pattern]
    return _language_model(name, "nemotron-h", Embedding(vocab=vocab, hidden=hidden), chain, head, seq_len)


def qwen3_next(
    name: str,
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    linear_heads: int,
    linear_groups: int,
    linear_dim: int,
    chunk: int,
    experts: int,
    top_k: int,
    expert_hidden: int,
    vocab: int,
    seq_len: int,
    predictions: int = 0,
) -> Model:
    """Qwen3-Next (Qwen 2025): of four layers three with the gated delta rule and one with gated attention, of which a
    quarter of each head rotates; experts with a gated shared one. `predictions` further tokens as DeepSeek-V3's."""
    delta = LinearAttention(
        rule="delta",
        heads=linear_heads,
        groups=linear_groups,
        key_dim=linear_dim,
        value_dim=linear_dim,
        norm_size=linear_dim,
        chunk=chunk,
    )
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        query_key_norm="head",
        rotary_dim=head_dim // 4,
        output_gate=True,
    )
    expert = FeedForward(hidden=expert_hidden, gated=True, activation="silu")
    sparse = Experts(count=experts, top_k=top_k, expert=expert, shared_hidden=expert_hidden, shared_gate=True)
    full, linear = (
        TransformerBlock(hidden=hidden, attention=mixer, feed_forward=sparse, norm="rmsnorm", norm_bias=False)
        for mixer in (attention, delta)
    )
    head = Head(
        hidden=hidden,
        vocab=vocab,
        norm="rmsnorm",
        norm_bias=False,
        prediction=Prediction(count=predictions, blocks=(full,)) if predictions else None,
    )
    chain = [linear if (number + 1) % 4 else full for number in range(layers)]
    return _language_model(name, "qwen3-next", Embedding(vocab=vocab, hidden=hidden), chain, head, seq_len)


RESNET50_STAGES = (3, 4, 6, 3)


def resnet(name: str, *, base_channels: int, width_factor: int, classes: int, image: int) -> Model:
    """Return a ResNet-50 (He et al. 2015) with `base_channels` for 64, 3x3 convolutions `width_factor` times as wide.

    Widening the 3x3 alone is Alpa's wide ResNet; with 64 base channels and factor 1 this is ResNet-50. Square images of
    `image` pixels, a multiple of 32.
    """
    size = image // 4
    stem = ConvUnit(
        c_in=3,
        c_out=base_channels,
        height=image,
        width=image,
        kernel=7,
        stride=2,
        padding=3,
        pool=3,
        pool_stride=2,
        pool_padding=1,
        first=True,
    )
    layers: list[Layer] = [stem]
    names = ["stem"]
    c_in = base_channels
    for stage, blocks in enumerate(RESNET50_STAGES):
        channels = base_channels << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(
                Bottleneck(
                    c_in=c_in,
                    reduced_channels=channels,
                    width_channels=channels * width_factor,
                    c_out=4 * channels,
                    height=size,
                    width=size,
                    stride=stride,
                )
            )
            names.append(f"stage.{stage}.{block}")
            c_in, size = 4 * channels, size // stride
    layers.append(Classifier(features=(c_in, classes), height=size, width=size))
    family = "resnet" if width_factor == 1 else "wide-resnet"
    return _image_model(name, family, layers, [*names, "classifier"], image)


VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""(channels, convolutions) between max-pools: Simonyan and Zisserman 2014, table 1, column D."""


def vgg16(name: str, *, classes: int, image: int) -> Model:
    """VGG-16: 3x3 convolutions with bias, a max-pool after each group, three fully connected layers of 4096."""
    layers: list[Layer] = []
    names = []
    c_in, size = 3, image
    for stage, (channels, convolutions) in enumerate(VGG16_STAGES):
        for i in range(convolutions):
            pool = 2 if i == convolutions - 1 else 0
            layers.append(
                ConvUnit(
                    c_in=c_in,
                    c_out=channels,
                    height=size,
                    width=size,
                    kernel=3,
                    padding=1,
                    batch_norm=False,
                    bias=True,
                    pool=pool,
                    pool_stride=pool,
                    first=not layers,
                )
            )
            names.append(f"conv.{stage}.{i}")
            c_in = channels
        size //= 2
    features = (c_in * size * size, 4096, 4096, classes)
    layers.append(Classifier(features=features, height=size, width=size, average_pool=False))
    return _image_model(name, "vgg", layers, [*names, "classifier"], image)


FAMILIES: dict[str, Callable[..., Model]] = {
    "gpt": gpt,
    "opt": opt,
    "bert": bert,
    "llama": llama,
    "mixtral": mixtral,
    "gshard_moe": gshard_moe,
    "nmt": nmt,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen3_next,
    "resnet": resnet,
    "vgg16": vgg16,
}


def _biased_block(hidden: int, heads: int, feed_forward: FeedForward | Experts) -> TransformerBlock:
    attention = Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, output_bias=True)
    return TransformerBlock(hidden=hidden, attention=attention, feed_forward=feed_forward, dropout=True)


def _rotary_block(hidden: int, heads: int, kv_heads: int, feed_forward: FeedForward | Experts) -> TransformerBlock:
    head_dim = hidden // heads
    attention = Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotary_dim=head_dim)
    return TransformerBlock(
        hidden=hidden, attention=attention, feed_forward=feed_forward, norm="rmsnorm", norm_bias=False
    )


def _rotary_model(name: str, family: str, block: TransformerBlock, layers: int, vocab: int, seq_len: int) -> Model:
    embedding = Embedding(vocab=vocab, hidden=block.hidden)
    head = Head(hidden=block.hidden, vocab=vocab, norm="rmsnorm", norm_bias=False)
    return _language_model(name, family, embedding, [block] * layers, head, seq_len)


def _language_model(
    name: str, family: str, embedding: Embedding, blocks: Sequence[TransformerBlock], head: Head, seq_len: int
) -> Model:
    return Model(
        name=name,
        family=family,
        layers=(embedding, *blocks, head),
        layer_names=decoder_names(len(blocks)),
        input=TokenInput(seq_len=seq_len),
    )


def _image_model(name: str, family: str, layers: Sequence[Layer], names: Sequence[str], image: int) -> Model:
    return Model(
        name=name,
        family=family,
        layers=tuple(layers),
        layer_names=tuple(names),
        input=ImageInput(channels=3, height=image, width=image),
    )
