"""Model families that no Hugging Face config describes, as functions from sizes to a `Model`.

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
    TransformerBlock,
)
from models_zoo.model import ImageInput, Model, TokenInput, decoder_names


def opt(name: str, *, hidden: int, layers: int, heads: int, vocab: int, seq_len: int) -> Model:
    """Return an OPT (Zhang et al. 2022): as GPT with ReLU; its position table has two rows of padding offset. Its own
    code drops out of the embedding, which the class of transformers does not."""
    block = _biased_block(hidden, heads, FeedForward(hidden=4 * hidden, activation="relu", bias=True))
    return _language_model(
        name,
        "opt",
        Embedding(vocab=vocab, hidden=hidden, positions=seq_len + 2, dropout=True),
        [block] * layers,
        Head(hidden=hidden, vocab=vocab, tied=True),
        seq_len,
    )


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
    "opt": opt,
    "gshard_moe": gshard_moe,
    "nmt": nmt,
    "resnet": resnet,
    "vgg16": vgg16,
}


def _biased_block(hidden: int, heads: int, feed_forward: FeedForward | Experts) -> TransformerBlock:
    attention = Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, output_bias=True)
    return TransformerBlock(hidden=hidden, attention=attention, feed_forward=feed_forward, dropout=True)


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
