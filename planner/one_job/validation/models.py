"""Models of run tables as chains of layers: transformers from sizes, ResNets by name, zoo models and config files."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from estimator.frontends.load import load_any_model
from models_zoo.catalogue import model_names
from models_zoo.families import decoder_names, resnet
from models_zoo.layers import (
    Attention,
    Classifier,
    ConvUnit,
    Embedding,
    Experts,
    FeedForward,
    Head,
    Layer,
    TransformerBlock,
)
from models_zoo.model import ImageInput, Model, TokenInput
from planner.one_job.validation.prepared import Skipped
from planner.one_job.validation.sizes import STYLES, Sizes, named_size, sizes_of
from profiles.errors import InputError

if TYPE_CHECKING:
    from planner.one_job.validation.rows import RunRow
    from planner.one_job.validation.software import RowFramework

RESNET18_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""(channels, first stride) of the four stages of two basic blocks: He et al. 2015, table 1, 18 layers."""

MASKED_SHARE = 0.15
"""Of a sample's tokens that a masked language model predicts (Devlin et al. 2019, section 3.1)."""


def model_of(
    row: RunRow, *, dropout: bool, assumed: list[str], framework: RowFramework | None = None
) -> Model | Skipped:
    """The row's model, with the row's tokens a sample, or what it lacks.

    A zoo name or a config file counts where the row states no sizes of its own. Adds to `assumed` what is not stated.
    `framework` may feed shorter samples than stated, and project masked positions alone.
    """
    if row.layers is None and row.hidden is None and _is_reference(row.model_name):
        return _referenced(row, assumed)
    if row.model_family.lower() == "resnet" or re.match(r"resnet", row.model_name.lower()):
        return _resnet(row, assumed)
    if row.model_family and row.model_family.lower() not in STYLES:
        return Skipped(reason=f"model_family: {row.model_family} is no model of transformer blocks")
    named = named_size(row, "seq_len")
    usual = framework.seq_len if framework else 0
    seq_len = row.seq_len or named or usual
    if not seq_len:
        return Skipped(reason="seq_len: not stated")
    if row.seq_len is None:
        whose = f"as published for {row.model_name}" if named or not framework else f"the default of {framework.name}"
        assumed.append(f"seq_len: not stated; {seq_len}, {whose} (seq_len)")
    fed = dict(framework.fed_lengths).get(seq_len) if framework else None
    if framework and fed:
        assumed.append(f"seq_len: {fed} of {seq_len} tokens computed, as the loader of {framework.name} pads by length")
        seq_len = fed
    sizes = sizes_of(row, seq_len=seq_len, dropout=dropout, assumed=assumed)
    if isinstance(sizes, Skipped):
        return sizes
    if sizes.style == "bert" and framework is not None and framework.predicts_masked_only:
        sizes = replace(sizes, predicted=round(MASKED_SHARE * seq_len))
    return build_model(sizes, row.model_name or "model")


def _is_reference(name: str) -> bool:
    return name in model_names() or name.endswith(".json") or (bool(name) and (Path(name) / "config.json").is_file())


def _referenced(row: RunRow, assumed: list[str]) -> Model | Skipped:
    try:
        model = _load(row.model_name)
    except InputError as error:
        return Skipped(reason=f"model_name: {error}")
    if row.seq_len is None or not model.seq_len:
        if model.seq_len:
            assumed.append("seq_len: not stated; the model's own (seq_len)")
        return model
    return _with_seq_len(model, row.seq_len)


@lru_cache(maxsize=256)
def _load(reference: str) -> Model:
    return load_any_model(reference)


@lru_cache(maxsize=256)
def _with_seq_len(model: Model, seq_len: int) -> Model:
    """The model for `seq_len` tokens a sample, its table of learned positions as long as that needs."""
    layers = tuple(
        replace(layer, positions=max(layer.positions, seq_len))
        if isinstance(layer, Embedding) and layer.positions
        else layer
        for layer in model.layers
    )
    if not isinstance(model.input, TokenInput):
        return model
    return replace(model, layers=layers, input=replace(model.input, seq_len=seq_len))


@lru_cache(maxsize=1024)
def build_model(sizes: Sizes, name: str) -> Model:
    """The chain of embedding, blocks and head that `sizes` describe."""
    blocks = [_block(sizes, number) for number in range(sizes.layers)]
    gpt, bert = sizes.style == "gpt", sizes.style == "bert"
    embedding = Embedding(
        vocab=sizes.vocab,
        hidden=sizes.hidden,
        positions=sizes.seq_len if gpt or bert else 0,
        token_types=2 if bert else 0,
        norm="layernorm" if bert or sizes.embedding_norm else None,
        dropout=sizes.dropout,
    )
    rms = sizes.style == "llama"
    head = Head(
        hidden=sizes.hidden,
        vocab=sizes.vocab,
        norm=None if bert else "rmsnorm" if rms else "layernorm",
        norm_bias=not rms,
        tied=sizes.tied,
        bias=bert,
        transform=bert,
        predicted=sizes.predicted,
    )
    return Model(
        name=name,
        family=sizes.style if not sizes.experts else "moe",
        layers=(embedding, *blocks, head),
        layer_names=decoder_names(sizes.layers),
        input=TokenInput(seq_len=sizes.seq_len),
    )


def _block(sizes: Sizes, number: int) -> TransformerBlock:
    rms = sizes.style == "llama"
    windowed = sizes.window is not None and number % sizes.window_every == 0
    latent = sizes.latent
    attention = Attention(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim if latent is None else latent.nope_dim + latent.rope_dim,
        causal=sizes.style != "bert",
        qkv_bias=sizes.qkv_bias,
        output_bias=sizes.output_bias,
        query_key_norm=sizes.query_key_norm,
        rotary_dim=0 if not rms else sizes.head_dim if latent is None else latent.rope_dim,
        window=sizes.window if windowed else None,
        latent=latent,
    )
    return TransformerBlock(
        hidden=sizes.hidden,
        attention=attention,
        feed_forward=_feed_forward(sizes, number),
        norm="rmsnorm" if rms else "layernorm",
        norm_bias=not rms,
        placement="post" if sizes.style == "bert" else "pre",
        dropout=sizes.dropout and not rms,
    )


def _feed_forward(sizes: Sizes, number: int) -> FeedForward | Experts:
    gated = sizes.style == "llama"
    if not sizes.experts or number < sizes.dense_layers:
        return FeedForward(
            hidden=sizes.ffn_hidden, gated=gated, activation="silu" if gated else "gelu", bias=sizes.style != "llama"
        )
    expert = FeedForward(hidden=sizes.moe_ffn, gated=gated, activation="silu" if gated else "gelu")
    return Experts(count=sizes.experts, top_k=sizes.topk, expert=expert, shared_hidden=sizes.shared_hidden)


def _resnet(row: RunRow, assumed: list[str]) -> Model | Skipped:
    """ResNet-50 on ImageNet and ResNet-18 on CIFAR-10, the pairs of Gavel (Narayanan et al. 2020, table 2)."""
    name = row.model_name.lower()
    if re.match(r"resnet-?50", name):
        image = row.image or 224
        if row.image is None:
            assumed.append("image: not stated; 224 pixels, as ImageNet's for ResNet-50 (image)")
        return _resnet50(image)
    if re.match(r"resnet-?18", name):
        image = row.image or 32
        if row.image is None:
            assumed.append("image: not stated; 32 pixels, as CIFAR-10's for ResNet-18 (image)")
        assumed.append("ResNet-18: its additions and 1x1 shortcuts are left out")
        return _resnet18(image)
    return Skipped(reason=f"model_name: {row.model_name} has no specification")


@lru_cache(maxsize=16)
def _resnet50(image: int) -> Model:
    return resnet("resnet-50", base_channels=64, width_factor=1, classes=1000, image=image)


@lru_cache(maxsize=16)
def _resnet18(image: int) -> Model:
    """The CIFAR form: a 3x3 stem without pooling, then eight basic blocks of two 3x3 convolutions."""
    layers: list[Layer] = [ConvUnit(c_in=3, c_out=64, height=image, width=image, kernel=3, padding=1, first=True)]
    names, c_in, size = ["stem"], 64, image
    for stage, (channels, first_stride) in enumerate(RESNET18_STAGES):
        for number in range(4):
            stride = first_stride if number == 0 else 1
            layers.append(
                ConvUnit(c_in=c_in, c_out=channels, height=size, width=size, kernel=3, stride=stride, padding=1)
            )
            names.append(f"stage.{stage}.{number // 2}.{number % 2}")
            c_in, size = channels, size // stride
    layers.append(Classifier(features=(512, 10), height=size, width=size))
    return Model(
        name="resnet-18",
        family="resnet",
        layers=tuple(layers),
        layer_names=(*names, "classifier"),
        input=ImageInput(channels=3, height=image, width=image),
    )
