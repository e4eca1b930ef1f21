"""Models of run tables as chains of layers: zoo models, config files, and transformers from sizes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from estimator.frontends.load import load_file_model
from models_zoo.catalogue import zoo_name
from models_zoo.families import resnet
from models_zoo.layers import (
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Head,
    Prediction,
    TransformerBlock,
)
from models_zoo.model import ImageInput, Model, TokenInput, decoder_names
from planner.one_job.validation.prepared import Skipped
from planner.one_job.validation.sizes import STYLES, Sizes, sizes_of
from profiles.errors import InputError

if TYPE_CHECKING:
    from planner.one_job.validation.columns import RunRow

LoadModel = Callable[[str], "Model | None"]
"""The model that a row calls by a reference of its own; None where that is no reference."""


def model_of(row: RunRow, *, dropout: bool, assumed: list[str], load: LoadModel | None = None) -> Model | Skipped:
    """Return the row's model, with the row's tokens a sample, or what it lacks; adds to `assumed` what is not stated.

    A zoo name or a config file counts where the row states no sizes of its own; `load` may know further names.
    """
    if row.layers is None and row.hidden is None:
        try:
            model = (load or load_reference)(row.model_name)
        except InputError as error:
            return Skipped(reason=f"model_name: {error}")
        if model is not None:
            return _fed(_ahead(model, row.mtp_layers or 0), row, assumed)
    if row.model_family and row.model_family.lower() not in STYLES:
        return Skipped(reason=f"model_family: {row.model_family} is no model of transformer blocks")
    sizes = sizes_of(row, seq_len=row.seq_len or 0, dropout=dropout, assumed=assumed)
    if isinstance(sizes, Skipped):
        return sizes
    if not row.seq_len:
        return Skipped(reason="seq_len: not stated")
    return build_model(sizes, row.model_name or "model")


def load_reference(name: str) -> Model | None:
    """Return the model of the zoo (however spelt) or of the config file called `name`, None if it is neither."""
    zoo = zoo_name(name)
    if zoo is not None:
        return _load(zoo)
    return _load(name) if name.endswith(".json") or _has_config(name) else None


def _has_config(name: str) -> bool:
    with suppress(OSError):  # a name that no folder can have
        return bool(name) and (Path(name) / "config.json").is_file()
    return False


@lru_cache(maxsize=256)
def _ahead(model: Model, count: int) -> Model:
    """`model` with so many modules for further tokens (MTP), where it has none: each of its last block, or of a hybrid
    its last block of attention and the last of a feed-forward."""
    head = model.layers[-1]
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    if not count or not isinstance(head, Head) or head.prediction or not blocks:
        return model
    mixers = [block for block in blocks if isinstance(block.attention, Attention)]
    ends = [mixers[-1], *[block for block in blocks if block.feed_forward is not None][-1:]] if mixers else blocks[-1:]
    prediction = Prediction(count=count, blocks=tuple(dict.fromkeys(ends)))
    return replace(model, layers=(*model.layers[:-1], replace(head, prediction=prediction)))


def _fed(model: Model, row: RunRow, assumed: list[str]) -> Model:
    """`model` with samples as long, or images as large, as the row states."""
    if isinstance(model.input, ImageInput):
        if row.image is None:
            assumed.append(f"image: not stated; {model.input.height} pixels, the model's own (image)")
            return model
        return _resnet50(row.image) if model.name == "resnet-50" else model
    if row.seq_len is None and model.seq_len:
        assumed.append("seq_len: not stated; the model's own (seq_len)")
    return model if row.seq_len is None or not model.seq_len else _with_seq_len(model, row.seq_len)


@lru_cache(maxsize=16)
def _resnet50(image: int) -> Model:
    return resnet("resnet-50", base_channels=64, width_factor=1, classes=1000, image=image)


@lru_cache(maxsize=256)
def _load(reference: str) -> Model:
    return load_file_model(reference)


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
        prediction=Prediction(count=sizes.mtp_layers, blocks=(blocks[-1],)) if sizes.mtp_layers else None,
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
    behind = number - sizes.dense_layers
    if not sizes.experts or behind < 0 or (behind + 1) % sizes.moe_every:
        return FeedForward(
            hidden=sizes.ffn_hidden, gated=gated, activation="silu" if gated else "gelu", bias=sizes.style != "llama"
        )
    expert = FeedForward(hidden=sizes.moe_ffn, gated=gated, activation="silu" if gated else "gelu")
    return Experts(count=sizes.experts, top_k=sizes.topk, expert=expert, shared_hidden=sizes.shared_hidden)
