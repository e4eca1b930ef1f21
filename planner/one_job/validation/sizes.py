"""The sizes of a row's model, from its own columns; what is blank becomes a named default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from models_zoo.layers import LatentAttention
from planner.one_job.validation.prepared import Skipped
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.one_job.validation.columns import RunRow

Style = Literal["gpt", "llama", "bert"]
QueryKeyNorm = Literal["none", "head", "full"]

STYLES: dict[str, Style] = {"dense_gpt": "gpt", "gpt": "gpt", "llama": "llama", "moe": "llama", "bert": "bert"}
"""Block styles by `model_family`; a family that is not here has no model of blocks."""

QUERY_KEY_NORMS: dict[str, QueryKeyNorm] = {"": "none", "none": "none", "head": "head", "full": "full"}
DEFAULT_VOCAB: dict[Style, int] = {"gpt": 50257, "llama": 32000, "bert": 30522}
HEAD_DIMS = (128, 64, 96, 80, 72)
"""Tried in this order where a row states no heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """All that is needed to build a model of blocks. `experts` 0: dense; `window_every` 2: every second block has it.

    `shared_hidden` is the width of the shared experts together; `dense_layers` the first blocks without experts, behind
    which each `moe_every`-th has them; `mtp_layers` modules predict further tokens.
    `predicted`: as `Head`'s.
    """

    style: Style
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    seq_len: int
    dropout: bool
    tied: bool
    qkv_bias: bool
    output_bias: bool
    query_key_norm: QueryKeyNorm
    embedding_norm: bool
    latent: LatentAttention | None
    window: int | None
    window_every: int
    experts: int
    topk: int
    moe_ffn: int
    shared_hidden: int
    dense_layers: int
    moe_every: int = 1
    mtp_layers: int = 0
    predicted: int = 0


def sizes_of(row: RunRow, *, seq_len: int, dropout: bool, assumed: list[str]) -> Sizes | Skipped:
    """Return the row's sizes, or what is missing. Adds to `assumed` each size that the row does not state."""
    if row.layers is None or row.hidden is None:
        return Skipped(reason="layers and hidden: not stated, and model_name is none of `cellplan models list`")
    style = _style(row, assumed)
    vocab = _vocab(row, style, assumed)
    heads_and_width = _heads(row, row.hidden, assumed)
    if isinstance(heads_and_width, Skipped):
        return heads_and_width
    heads, head_dim = heads_and_width
    experts = row.experts or 0
    if experts and not row.topk:
        return Skipped(reason="topk: not stated for a model with experts")
    latent = _latent(row)
    if isinstance(latent, Skipped):
        return latent
    ffn_hidden, moe_ffn = _feed_forward(row, style, row.hidden, assumed)
    return Sizes(
        style=style,
        layers=row.layers,
        hidden=row.hidden,
        heads=heads,
        kv_heads=row.kv_heads or heads,
        head_dim=head_dim,
        ffn_hidden=ffn_hidden,
        vocab=vocab,
        seq_len=seq_len,
        dropout=dropout,
        tied=_flag(row.tied_embeddings, otherwise=style != "llama"),
        qkv_bias=_flag(row.qkv_bias, otherwise=style != "llama"),
        output_bias=_flag(row.output_bias, otherwise=style != "llama"),
        query_key_norm=QUERY_KEY_NORMS[row.qk_norm],
        embedding_norm=bool(row.embedding_norm),
        latent=latent,
        window=row.window,
        window_every=row.window_every or 1,
        experts=experts,
        topk=row.topk or 0,
        moe_ffn=moe_ffn,
        shared_hidden=(row.shared_experts or 0) * moe_ffn,
        dense_layers=min(row.dense_layers or 0, row.layers),
        moe_every=row.moe_every or 1,
        mtp_layers=row.mtp_layers or 0,
        predicted=row.predicted_tokens or 0,
    )


def _style(row: RunRow, assumed: list[str]) -> Style:
    if not row.model_family:
        assumed.append("model_family: not stated; llama (model_family)")
        return "llama"
    return STYLES[row.model_family.lower()]


def _vocab(row: RunRow, style: Style, assumed: list[str]) -> int:
    if row.vocab is None:
        assumed.append(f"vocab: not stated; {DEFAULT_VOCAB[style]} (vocab)")
    return row.vocab or DEFAULT_VOCAB[style]


def _heads(row: RunRow, hidden: int, assumed: list[str]) -> tuple[int, int] | Skipped:
    """Attention's heads, and the width of each."""
    heads = row.heads or _default_heads(hidden, assumed)
    head_dim = row.head_dim or (hidden // heads if heads and hidden % heads == 0 else None)
    if heads is None or head_dim is None:
        return Skipped(reason="heads: not stated, or not a divisor of hidden")
    return heads, head_dim


def _flag(stated: bool | None, *, otherwise: bool) -> bool:
    return otherwise if stated is None else stated


def _latent(row: RunRow) -> LatentAttention | Skipped | None:
    if row.key_value_rank is None:
        return None
    if row.nope_dim is None or row.rope_dim is None or row.value_dim is None:
        return Skipped(reason="nope_dim, rope_dim and value_dim: not stated beside key_value_rank")
    return LatentAttention(
        query_rank=row.query_rank,
        key_value_rank=row.key_value_rank,
        nope_dim=row.nope_dim,
        rope_dim=row.rope_dim,
        value_dim=row.value_dim,
    )


def _feed_forward(row: RunRow, style: Style, hidden: int, assumed: list[str]) -> tuple[int, int]:
    """Widths of the dense feed-forward and of one expert (0 without experts), whose width is `ffn_hidden`'s where
    `moe_ffn` is blank."""
    width = row.ffn_hidden or (row.moe_ffn if row.experts else None)
    if width is None:
        # 4 h; with a gate 8/3 h in multiples of 256, as Llama (Touvron et al. 2023a, section 2.2).
        width = 4 * hidden if style != "llama" else -(-(8 * hidden // 3) // 256) * 256
        assumed.append(f"ffn_hidden: not stated; {'4 h' if style != 'llama' else '8/3 h'} (ffn_hidden)")
    return width, (row.moe_ffn or width) if row.experts else 0


def _default_heads(hidden: int, assumed: list[str]) -> int | None:
    width = next((width for width in HEAD_DIMS if hidden % width == 0), None)
    if width is None:
        return None
    assumed.append(f"heads: not stated; of {width} each (heads)")
    return hidden // width
