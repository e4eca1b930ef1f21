"""Layers of a family out of its record in the table and the keys of a config.

Most families are a chain of like blocks that differ in norms, biases, gates, windows, experts and a few more things,
each of which is a field of `table.Family`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from models_zoo.hugging_face.chain import (
    MOST_LAYERS,
    Chain,
    Sizes,
    latent_attention,
    read_rotary_dim,
    slide,
)
from models_zoo.hugging_face.keys import LARGEST_SIZE, Keys, describe
from models_zoo.hugging_face.table import ExpertsFamily, Family, Flag, WindowsFamily, read_family
from models_zoo.layers import (
    Activation,
    Attention,
    Embedding,
    Experts,
    FeedForward,
    Head,
    LatentAttention,
    TransformerBlock,
)
from profiles.records import dataclass


def described(name: str, keys: Keys) -> Chain:
    """Return the layers of the family called `name`. Raise InputError for a key that is missing or wrong, or whose
    value is not modelled."""
    reading = Reading(family=read_family(name), keys=keys)
    family = reading.family
    for key, allowed in family.only.items():
        reading.check(key, allowed)
    sizes = reading.sizes()
    blocks = _blocks(reading, sizes)
    if family.windows is not None:
        blocks = _slide(reading, blocks, family.windows)
    return Chain(
        embedding=_embedding(reading, sizes),
        blocks=tuple(blocks),
        head=Head(
            hidden=sizes.hidden,
            vocab=sizes.vocab,
            norm=family.norm if family.head_norm else None,
            norm_bias=reading.flag(family.norm_bias),
            tied=reading.flag("tie_word_embeddings"),
            bias=reading.flag(family.head_bias),
            transform=family.head_transform,
        ),
        positions=sizes.positions,
        remark=family.remark,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A config's keys as its family spells them, and the family's defaults."""

    family: Family
    keys: Keys

    def name(self, key: str) -> str:
        """Return the spelling of `key` that the config has."""
        return self.keys.spelling(key, *self.family.spelling.get(key, ()))

    def default(self, key: str) -> Any:
        """Return the class's default of `key`, None where it states none."""
        return self.family.defaults.get(key)

    def size(self, key: str, *, required: bool = False, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """Return an integer; null counts as absent."""
        return self.keys.size(self.name(key), self.default(key), required=required, least=least, most=most)

    def optional_size(self, key: str, *, least: int = 1) -> int | None:
        """Return an integer, or None where the config or the class says null."""
        return self.keys.optional_size(self.name(key), self.default(key), least=least)

    def alike(self, key: str) -> Reading:
        """Return the reading where a list under `key` that says the same for each layer stands for its one value."""
        values = self.keys.get(self.name(key), None)
        if isinstance(values, list) and values and all(value == values[0] for value in values):
            return replace(self, keys=replace(self.keys, values={**self.keys.values, self.name(key): values[0]}))
        return self

    def flag(self, what: Flag) -> bool:
        """Return what a flag of the family says."""
        if isinstance(what, bool):
            return what
        key = what.removeprefix("!")
        return self.keys.flag(self.name(key), bool(self.default(key))) != what.startswith("!")

    def dropped(self, key: str | None) -> bool:
        """Return whether the share under `key` is more than none."""
        return key is not None and self.keys.share(self.name(key), float(self.default(key) or 0.0)) > 0

    def check(self, key: str, allowed: Sequence[Any]) -> None:
        """Raise InputError where `key` has none of the `allowed` values; null says nothing."""
        value = self.keys.get(self.name(key), self.default(key))
        if value is not None and value not in allowed:
            listed = " or ".join(describe(each) for each in allowed)
            raise self.keys.wrong(self.name(key), describe(value), f"{listed} (another is not modelled)")

    def sizes(self) -> Sizes:
        """Return the sizes that every family has."""
        return Sizes(
            hidden=self.size("hidden_size", required=True),
            layers=self.size("num_hidden_layers", required=True, most=MOST_LAYERS),
            heads=self.size("num_attention_heads", required=True),
            vocab=self.size("vocab_size", required=True),
            positions=self.size("max_position_embeddings") - self.family.unused_rows,
        )

    def activation(self) -> Activation:
        """Return the feed-forward's activation."""
        if self.family.activation is not None:
            return self.family.activation
        return self.keys.activation(self.name("hidden_act"), str(self.default("hidden_act")))


def _embedding(reading: Reading, sizes: Sizes) -> Embedding:
    family = reading.family
    rows = sizes.positions + family.unused_rows + family.position_rows
    return Embedding(
        vocab=sizes.vocab,
        hidden=sizes.hidden,
        positions=rows if family.learned_positions else 0,
        token_types=reading.size("type_vocab_size", least=0) if family.token_types else 0,
        norm=family.embedding_norm,
        dropout=reading.dropped(family.embedding_dropout or family.dropout),
    )


def _blocks(reading: Reading, sizes: Sizes) -> list[TransformerBlock]:
    """A block for each layer, dense or with experts."""
    family = reading.family
    attention = _latent(reading, sizes) if family.latent else _attention(reading, sizes)
    parallel = reading.flag(family.parallel)

    def block(part: FeedForward | Experts) -> TransformerBlock:
        return TransformerBlock(
            hidden=sizes.hidden,
            attention=attention,
            feed_forward=part,
            norm=family.norm,
            norm_bias=reading.flag(family.norm_bias),
            placement=_placement(reading),
            parallel=parallel,
            shared_norm=parallel and reading.flag(family.shared_norm),
            dropout=reading.dropped(family.dropout),
        )

    sparse = _sparse_layers(reading, sizes.layers, family.experts) if family.experts else [False] * sizes.layers
    parts: dict[bool, TransformerBlock] = {}
    if family.experts is not None and any(sparse):
        parts[True] = block(_experts(reading, family.experts))
    if not all(sparse):
        parts[False] = block(_dense(reading, sizes.hidden))
    return [parts[kind] for kind in sparse]


def _placement(reading: Reading) -> Literal["pre", "post", "sandwich"]:
    flag = reading.family.sandwich_flag
    if flag is not None:
        return "sandwich" if reading.flag(flag) else "pre"
    return reading.family.placement


def _attention(reading: Reading, sizes: Sizes) -> Attention:
    family, keys = reading.family, reading.keys
    if family.one_key_value_head is None:
        groups = reading.optional_size("num_key_value_heads") or sizes.heads
    else:
        groups = 1 if reading.flag(family.one_key_value_head) else sizes.heads
    if sizes.heads % groups:
        key = reading.name("num_key_value_heads")
        raise keys.wrong(key, groups, f"a divisor of the {sizes.heads} attention heads")
    dim = reading.optional_size("head_dim")
    if dim is None and sizes.hidden % sizes.heads:
        key = reading.name("num_attention_heads")
        raise keys.wrong(key, sizes.heads, f"a divisor of the hidden size {sizes.hidden}")
    dim = dim or sizes.hidden // sizes.heads
    normed = family.query_key_norm_flag is None or reading.flag(family.query_key_norm_flag)
    return Attention(
        heads=sizes.heads,
        kv_heads=groups,
        head_dim=dim,
        causal=family.causal if family.causal_key is None else reading.flag(family.causal_key),
        qkv_bias=reading.flag(family.qkv_bias),
        output_bias=reading.flag(family.output_bias),
        query_key_norm=family.query_key_norm if normed else "none",
        rotary_dim=_rotary_dim(reading, dim),
    )


def _rotary_dim(reading: Reading, head_dim: int) -> int:
    family = reading.family
    if family.rotary_dim_key is not None:
        return min(head_dim, reading.optional_size(family.rotary_dim_key) or head_dim)
    return read_rotary_dim(reading.keys, head_dim, share=family.rotary) if family.rotary else 0


def _latent(reading: Reading, sizes: Sizes) -> Attention:
    family = reading.family
    latent = LatentAttention(
        query_rank=reading.optional_size("q_lora_rank"),
        key_value_rank=reading.size("kv_lora_rank"),
        nope_dim=reading.size("qk_nope_head_dim"),
        rope_dim=reading.size("qk_rope_head_dim"),
        value_dim=reading.size("v_head_dim"),
    )
    qkv_bias, output_bias = reading.flag(family.qkv_bias), reading.flag(family.output_bias)
    return latent_attention(sizes, latent, qkv_bias=qkv_bias, output_bias=output_bias)


def _dense(reading: Reading, hidden: int) -> FeedForward:
    family = reading.family
    if reading.default("intermediate_size") is None:
        times = family.times if family.times_key is None else reading.size(family.times_key)
        inner = reading.optional_size("intermediate_size") or times * hidden
    else:
        inner = reading.size("intermediate_size", required=True)
    return FeedForward(
        hidden=inner, gated=family.gated, activation=reading.activation(), bias=reading.flag(family.feed_forward_bias)
    )


def _experts(reading: Reading, names: ExpertsFamily) -> Experts:
    keys = reading.keys
    count = reading.size(names.count, required=True)
    chosen = reading.alike(names.top_k).size(names.top_k)
    if chosen > count:
        raise keys.wrong(reading.name(names.top_k), chosen, f"at most {count}, the number of experts")
    hidden = reading.size(names.hidden, required=True)
    shared = hidden if names.always_shared else 0
    if names.shared_count is not None:
        shared = hidden * (reading.optional_size(names.shared_count, least=0) or 0)
    if names.shared_hidden is not None:
        shared = reading.size(names.shared_hidden, least=0)
    return Experts(
        count=count,
        top_k=chosen,
        expert=FeedForward(hidden=hidden, gated=names.gated, activation=reading.activation(), bias=names.bias),
        shared_hidden=shared,
        shared_gate=names.shared_gate and shared > 0,
    )


def _sparse_layers(reading: Reading, layers: int, names: ExpertsFamily) -> list[bool]:
    """Which of the layers have experts; none where the config counts none."""
    keys = reading.keys
    if not (reading.optional_size(names.count, least=0) or 0):
        return [False] * layers
    kinds = None if names.kinds is None else keys.get(names.kinds, None)
    if kinds is not None and names.kinds is not None:
        if (
            not isinstance(kinds, list)
            or len(kinds) != layers
            or any(kind not in ("sparse", "dense") for kind in kinds)
        ):
            raise keys.wrong(names.kinds, describe(kinds), f"{layers} entries, each sparse or dense")
        return [kind == "sparse" for kind in kinds]
    first = reading.size(names.first_dense, least=0) if names.first_dense is not None else 0
    every = reading.size(names.every) if names.every is not None else 1
    dense = set(keys.sizes(names.dense_layers)) if names.dense_layers is not None else set()
    counted = 0 if names.from_first else 1
    return [i >= first and (i + counted) % every == 0 and i not in dense for i in range(layers)]


def _slide(reading: Reading, blocks: list[TransformerBlock], windows: WindowsFamily) -> list[TransformerBlock]:
    keys, period = reading.keys, windows.period
    slides = windows.flag is None or reading.flag(windows.flag)
    window = reading.optional_size(windows.key) if slides else None
    if windows.period_key is not None and keys.get("layer_types", None) is None:
        period = reading.size(windows.period_key)
    number = 0 if windows.first else 1
    return list(slide(keys, blocks, window, lambda i: not period or ((i + number) % period > 0) != windows.each))
