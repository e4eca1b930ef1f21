"""The sizes of a row's model: its own columns first, then what is published under its name, then named defaults."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import models_zoo
from models_zoo.layers import LatentAttention
from planner.one_job.validation.prepared import Skipped

if TYPE_CHECKING:
    from planner.one_job.validation.rows import RunRow

Style = Literal["gpt", "llama", "bert"]

STYLES: dict[str, Style] = {"dense_gpt": "gpt", "gpt": "gpt", "llama": "llama", "moe": "llama", "bert": "bert"}
"""Block styles by `model_family`; a family that is not here has no model of blocks."""

DEFAULT_VOCAB: dict[Style, int] = {"gpt": 50257, "llama": 32000, "bert": 30522}
HEAD_DIMS = (128, 64, 96, 80, 72)
"""Tried in this order where a row states no heads."""

NOTE_PATTERNS = {
    "moe_ffn": r"moe_ffn (\d+)",
    "dense_layers": r"dense_layers (\d+)|(\d+) dense layers",
    "shared_experts": r"(\d+) shared expert",
    "head_dim": r"head_dim (\d+)",
}
"""Sizes that a row's notes may state in these words, for want of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """All that is needed to build a model of blocks. `experts` 0: dense; `window_every` 2: every second block has it.

    `shared_hidden` is the width of the shared experts together; `dense_layers` the first blocks without experts.
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
    query_key_norm: Literal["none", "head", "full"]
    embedding_norm: bool
    latent: LatentAttention | None
    window: int | None
    window_every: int
    experts: int
    topk: int
    moe_ffn: int
    shared_hidden: int
    dense_layers: int
    predicted: int = 0


@cache
def _architectures() -> dict[str, dict[str, Any]]:
    path = Path(models_zoo.__file__).with_name("architectures.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=1024)
def _named(name: str, hidden: int | None, vocab: int | None) -> tuple[str, dict[str, Any]] | None:
    """The entry of architectures.toml that a name means, where what the row states does not speak against it."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    stated = {"hidden": hidden, "vocab": vocab}
    for key, entry in _architectures().items():
        if re.fullmatch(entry["names"], plain) and all(
            stated[size] == value for size, value in entry.get("when", {}).items()
        ):
            return key, entry
    return None


def named_size(row: RunRow, size: str) -> Any:
    """A size published under the row's model name, None if there is none."""
    entry = _named(row.model_name, row.hidden, row.vocab)
    return entry[1].get(size) if entry else None


def sizes_of(row: RunRow, *, seq_len: int, dropout: bool, assumed: list[str]) -> Sizes | Skipped:
    """The row's sizes, or what is missing. Adds to `assumed` each size that the row does not state.

    Layers that nobody states follow from `params_b`: (P - V h) / (12 h^2) for GPT's blocks and its like for others.
    """
    known = _Known(row, assumed)
    style = known.style()
    if style is None:
        return Skipped(reason="layers and hidden: neither stated nor published under the model's name")
    hidden = known.size("hidden")
    if hidden is None:
        return Skipped(reason="layers and hidden: neither stated nor published under the model's name")
    vocab = known.size("vocab")
    if vocab is None:
        vocab = DEFAULT_VOCAB[style]
        assumed.append(f"vocab: not stated; {vocab} (vocab)")
    latent = known.latent()
    heads = known.size("heads") or _default_heads(hidden, assumed)
    head_dim = known.size("head_dim", quiet=True) or (hidden // heads if heads and hidden % heads == 0 else None)
    if heads is None or head_dim is None:
        return Skipped(reason="heads: not stated, or not a divisor of hidden")
    kv_heads = known.size("kv_heads", quiet=True) or heads
    experts = known.size("experts") or 0
    ffn_hidden, moe_ffn = known.feed_forward(style, hidden, experts)
    sizes = Sizes(
        style=style,
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_hidden=ffn_hidden,
        vocab=vocab,
        seq_len=seq_len,
        dropout=dropout,
        tied=known.flag("tied", otherwise=style != "llama"),
        qkv_bias=known.flag("qkv_bias", otherwise=style != "llama"),
        output_bias=known.flag("output_bias", otherwise=style != "llama"),
        query_key_norm=named_size(row, "query_key_norm") or "none",
        embedding_norm=known.flag("embedding_norm", otherwise="embedding norm" in row.notes.lower()),
        latent=latent,
        window=named_size(row, "window"),
        window_every=named_size(row, "window_every") or 1,
        experts=experts,
        topk=known.size("topk") or 0,
        moe_ffn=moe_ffn,
        shared_hidden=(known.size("shared_experts", quiet=True) or 0) * moe_ffn,
        dense_layers=known.size("dense_layers", quiet=True) or 0,
    )
    if sizes.experts and not sizes.topk:
        return Skipped(reason="topk: not stated for a model with experts")
    return _with_layers(sizes, known.size("layers"), row, assumed)


class _Known:
    """What the row states of a size, else its notes, else what is published under the model's name."""

    def __init__(self, row: RunRow, assumed: list[str]) -> None:
        self._row, self._assumed = row, assumed
        self._entry = _named(row.model_name, row.hidden, row.vocab)

    def style(self) -> Style | None:
        family = self._row.model_family.lower()
        if self._entry and (not family or family in STYLES):
            found: Style = self._entry[1]["style"]
            return found
        if not family and self._row.hidden:
            self._assumed.append("model_family: not stated; llama (model_family)")
            return "llama"
        return STYLES.get(family)

    def size(self, name: str, *, quiet: bool = False) -> int | None:
        """`quiet`: no sentence where the published figure is taken, since leaving it out is usual."""
        stated: int | None = getattr(self._row, name)
        if stated is None and name in NOTE_PATTERNS:
            match = re.search(NOTE_PATTERNS[name], self._row.notes)
            stated = int(next(group for group in match.groups() if group)) if match else None
        if stated is not None or self._entry is None:
            return stated
        published: int | None = self._entry[1].get(name)
        if published is not None and not quiet:
            self._assumed.append(f"{name}: not stated; as published for {self._entry[0]}")
        return published

    def flag(self, name: str, *, otherwise: bool) -> bool:
        return bool(self._entry[1].get(name, otherwise)) if self._entry else otherwise

    def latent(self) -> LatentAttention | None:
        entry = self._entry[1] if self._entry else {}
        if "key_value_rank" not in entry:
            return None
        return LatentAttention(
            query_rank=entry.get("query_rank"),
            key_value_rank=entry["key_value_rank"],
            nope_dim=entry["nope_dim"],
            rope_dim=entry["rope_dim"],
            value_dim=entry["value_dim"],
        )

    def feed_forward(self, style: Style, hidden: int, experts: int) -> tuple[int, int]:
        """Widths of the dense feed-forward and of one expert (0 without experts).

        `ffn_hidden` of a mixture is the dense width where the expert's is stated or published apart from it.
        """
        published = (self._entry[1] if self._entry else {}).get("ffn_hidden")
        stated = self._row.ffn_hidden
        if not experts:
            return stated or self.size("ffn_hidden") or self._default_ffn(style, hidden), 0
        moe_ffn = self.size("moe_ffn", quiet=True) or stated or self._default_ffn(style, hidden)
        dense = published if stated in (None, moe_ffn) else stated
        return dense or moe_ffn, moe_ffn

    def _default_ffn(self, style: Style, hidden: int) -> int:
        """4 h; with a gate 8/3 h in multiples of 256, as Llama (Touvron et al. 2023a, section 2.2)."""
        width = 4 * hidden if style != "llama" else -(-(8 * hidden // 3) // 256) * 256
        self._assumed.append(f"ffn_hidden: not stated; {'4 h' if style != 'llama' else '8/3 h'} (ffn_hidden)")
        return width


def block_parameters(sizes: Sizes) -> int:
    """Parameters of the matrices of one block with experts, if the model has them; norms and biases left out.

    For GPT's block 12 h^2 (Narayanan et al. 2021, equation 2).
    """
    width = sizes.heads * sizes.head_dim
    attention = sizes.hidden * (2 * width + 2 * sizes.kv_heads * sizes.head_dim)
    matrices = 3 if sizes.style == "llama" else 2
    if not sizes.experts:
        return attention + matrices * sizes.hidden * sizes.ffn_hidden
    return attention + matrices * sizes.hidden * (sizes.experts * sizes.moe_ffn + sizes.shared_hidden)


def _default_heads(hidden: int, assumed: list[str]) -> int | None:
    width = next((width for width in HEAD_DIMS if hidden % width == 0), None)
    if width is None:
        return None
    assumed.append(f"heads: not stated; of {width} each (heads)")
    return hidden // width


def _divided(layers: float, stages: int) -> int:
    """The whole number of blocks nearest to `layers`; of those within one, one that the stages share evenly.

    Embedding and head count as two more where the blocks alone are not shared evenly, as DeepSpeed's pipeline has it.
    """
    near = [
        n for n in range(math.ceil(layers - 1), math.floor(layers + 1) + 1) if not n % stages or not (n + 2) % stages
    ]
    return min(near, key=lambda n: abs(n - layers)) if near else round(layers)


def _with_layers(sizes: Sizes, layers: int | None, row: RunRow, assumed: list[str]) -> Sizes | Skipped:
    """The sizes with their number of blocks, worked out from the parameter count where nobody states it."""
    if layers is None:
        if row.params_b is None:
            return Skipped(reason="layers: neither stated nor derivable, as params_b is blank too")
        tables = sizes.vocab * sizes.hidden * (1 if sizes.tied else 2)
        layers = _divided((row.params_b * 1e9 - tables) / block_parameters(sizes), row.pp or 1)
        assumed.append("layers: not stated; derived from params_b, hidden and vocab")
        if layers < 1:
            return Skipped(reason="layers: params_b leaves no block beside the vocabulary")
    return replace(sizes, layers=layers, dense_layers=min(sizes.dense_layers, layers))
