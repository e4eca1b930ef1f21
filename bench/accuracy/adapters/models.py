"""Models of published runs: sizes from the row, its notes or what is published under its model's name, as columns."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from bench.accuracy.adapters.frameworks import PublishedFramework
from models_zoo.layers import Classifier, ConvUnit, Layer, TransformerBlock
from models_zoo.model import ImageInput, Model
from planner.one_job.validation.columns import RunRow
from planner.one_job.validation.model import load_reference
from planner.one_job.validation.prepared import Skipped
from planner.one_job.validation.sizes import STYLES, Sizes, sizes_of

NOTE_PATTERNS = {
    "moe_ffn": r"moe_ffn (\d+)",
    "dense_layers": r"dense_layers (\d+)|(\d+) dense layers",
    "shared_experts": r"(\d+) shared expert",
    "head_dim": r"head_dim (\d+)",
}
"""Sizes that a row's notes may state in these words, for want of a column."""

SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "experts", "topk", "ffn_hidden", "moe_ffn")
MORE_SIZES = ("shared_experts", "dense_layers", "moe_every")
QUIET = frozenset({"kv_heads", "head_dim", "moe_ffn", *MORE_SIZES})
"""No sentence where the published figure is taken, since leaving it out is usual."""

LATENT = ("query_rank", "key_value_rank", "nope_dim", "rope_dim", "value_dim")
RENAMED = {"tied": "tied_embeddings", "query_key_norm": "qk_norm"}
KEPT = ("tied", "qkv_bias", "output_bias", "query_key_norm", "embedding_norm", "window", "window_every", *LATENT)
"""What a published architecture states beside sizes that rows have columns for."""

MASKED_SHARE = 0.15
"""Of a sample's tokens that a masked language model predicts (Devlin et al. 2019, section 3.1)."""

RESNET18 = "resnet-18-cifar"
RESNET18_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""(channels, first stride) of the four stages of two basic blocks: He et al. 2015, table 1, 18 layers."""


def model_columns(row: RunRow, framework: PublishedFramework, assumed: list[str]) -> dict[str, Any]:
    """Return the model and the sample length of `row` as columns. Adds to `assumed` what is not stated."""
    published_name = row.model_name != row.model_name.lower() and not row.model_name.endswith(".json")
    if row.layers is None and row.hidden is None and not published_name and load_reference(row.model_name) is not None:
        return {}
    if row.model_family.lower() == "resnet" or re.match(r"resnet", row.model_name.lower()):
        return _resnet_columns(row, assumed)
    entry = _published(row.model_name, row.hidden, row.vocab)
    if "zoo" in entry:
        ahead = row.mtp_layers if row.mtp_layers is not None else entry.get("mtp_layers")
        return {
            "model_name": entry["zoo"],
            "model_family": "",
            "layers": None,
            "hidden": None,
            "mtp_layers": ahead,
        }
    if row.model_family and "style" not in entry and row.model_family.lower() not in STYLES:
        return {}
    columns = _sizes(row, entry, assumed)
    columns |= _seq_len(row, framework, entry, assumed)
    if columns["model_family"] == "bert" and "squad" in row.model_name.lower():
        columns["predicted_tokens"] = 1
        assumed.append("head: of question answering; one position's vocabulary projection stands for it")
    elif columns["model_family"] == "bert" and framework.predicts_masked_only and columns["seq_len"]:
        columns["predicted_tokens"] = round(MASKED_SHARE * columns["seq_len"])
    if columns["layers"] is None and row.params_b is not None:
        columns["layers"] = _layers(replace(row, **{**columns, "layers": 1}), row.params_b)
        assumed.append("layers: not stated; derived from params_b, hidden and vocab")
    return columns


def refusal(name: str) -> str | None:
    """Return why the model called `name` is none that is predicted; None where nothing says so."""
    why: str | None = _published(name, None, None).get("refused")
    return why


@cache
def _architectures() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("architectures.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1024)
def _published(name: str, hidden: int | None, vocab: int | None) -> dict[str, Any]:
    """The entry of architectures.toml that a name means, where what the row states does not speak against it."""
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    stated = {"hidden": hidden, "vocab": vocab}
    for key, entry in _architectures().items():
        if re.fullmatch(entry["names"], plain) and all(
            stated[size] == value for size, value in entry.get("when", {}).items()
        ):
            return {**entry, "key": key}
    return {}


def _sizes(row: RunRow, entry: dict[str, Any], assumed: list[str]) -> dict[str, Any]:
    """What the row states of each size, else its notes, else what is published under the model's name."""
    columns: dict[str, Any] = {"model_family": _family(row, entry)}
    for size in (*SIZES, *MORE_SIZES):
        columns[size] = _stated(row, size)
        if columns[size] is None and size in entry:
            columns[size] = entry[size]
            if size not in QUIET and not (size == "ffn_hidden" and columns["experts"]):
                assumed.append(f"{size}: not stated; as published for {entry['key']}")
    if columns["experts"]:
        # `ffn_hidden` of a mixture is the dense width where the expert's is stated or published apart from it.
        stated = row.ffn_hidden
        columns["moe_ffn"] = columns["moe_ffn"] or stated
        dense = entry.get("ffn_hidden") if stated in (None, columns["moe_ffn"]) else stated
        columns["ffn_hidden"] = dense or columns["moe_ffn"]
    columns |= {RENAMED.get(key, key): entry[key] for key in KEPT if key in entry}
    columns.setdefault("embedding_norm", "embedding norm" in row.notes.lower() or None)
    return columns


def _family(row: RunRow, entry: dict[str, Any]) -> str:
    if "style" in entry:
        return str(entry["style"])
    return row.model_family.lower()


def _stated(row: RunRow, size: str) -> int | None:
    stated: int | None = getattr(row, size)
    if stated is None and size in NOTE_PATTERNS:
        match = re.search(NOTE_PATTERNS[size], row.notes)
        stated = int(next(group for group in match.groups() if group)) if match else None
    return stated


def _seq_len(
    row: RunRow, framework: PublishedFramework, entry: dict[str, Any], assumed: list[str]
) -> dict[str, int | None]:
    """Tokens of a sample: stated, published for the model or usual for the framework; fewer if its loader pads less."""
    seq_len: int | None = row.seq_len or entry.get("seq_len") or framework.seq_len or None
    if row.seq_len is None and seq_len:
        whose = f"as published for {row.model_name}" if "seq_len" in entry else f"the default of {framework.name}"
        assumed.append(f"seq_len: not stated; {seq_len}, {whose} (seq_len)")
    fed = dict(framework.fed_lengths).get(seq_len or 0)
    if fed:
        assumed.append(f"seq_len: {fed} of {seq_len} tokens computed, as the loader of {framework.name} pads by length")
    return {"seq_len": fed or seq_len}


def _layers(row: RunRow, params_b: float) -> int | None:
    """Blocks that the parameter count leaves: (P - V h) / (12 h^2) for GPT's blocks and its like for others."""
    sizes = sizes_of(row, seq_len=row.seq_len or 1, dropout=False, assumed=[])
    if isinstance(sizes, Skipped):
        return None
    tables = sizes.vocab * sizes.hidden * (1 if sizes.tied else 2)
    layers = _divided((params_b * 1e9 - tables) / block_parameters(sizes), row.degree("pp") or 1)
    return layers if layers >= 1 else None


def block_parameters(sizes: Sizes) -> int:
    """Return parameters of the matrices of one block with experts, if the model has them; norms and biases left out.

    For GPT's block 12 h^2 (Narayanan et al. 2021, equation 2).
    """
    width = sizes.heads * sizes.head_dim
    attention = sizes.hidden * (2 * width + 2 * sizes.kv_heads * sizes.head_dim)
    matrices = 3 if sizes.style == "llama" else 2
    if not sizes.experts:
        return attention + matrices * sizes.hidden * sizes.ffn_hidden
    return attention + matrices * sizes.hidden * (sizes.experts * sizes.moe_ffn + sizes.shared_hidden)


def _divided(layers: float, stages: int) -> int:
    """The whole number of blocks nearest to `layers`; of those within one, one that the stages share evenly.

    Embedding and head count as two more where the blocks alone are not shared evenly, as DeepSpeed's pipeline has it.
    """
    near = [
        n for n in range(math.ceil(layers - 1), math.floor(layers + 1) + 1) if not n % stages or not (n + 2) % stages
    ]
    return min(near, key=lambda n: abs(n - layers)) if near else round(layers)


# Images


def _resnet_columns(row: RunRow, assumed: list[str]) -> dict[str, Any]:
    """ResNet-50 on ImageNet and ResNet-18 on CIFAR-10, the pairs of Gavel (Narayanan et al. 2020, table 2)."""
    name = row.model_name.lower()
    if re.match(r"resnet-?50", name):
        return {"model_name": "resnet-50", "layers": None, "hidden": None}
    if re.match(r"resnet-?18", name):
        assumed.append("ResNet-18: its additions and 1x1 shortcuts are left out")
        return {"model_name": RESNET18, "layers": None, "hidden": None}
    return {}


def load_published(name: str) -> Model | None:
    """Return the model that a row of the explicit table calls `name`: ResNet-18, or one that the product knows."""
    return resnet18() if name == RESNET18 else load_reference(name)


def count_blocks(name: str) -> int | None:
    """Return the transformer blocks of the model that a row calls `name`, None where the product does not know it."""
    model = load_published(name)
    return None if model is None else sum(isinstance(layer, TransformerBlock) for layer in model.layers)


@cache
def resnet18(image: int = 32) -> Model:
    """Return the CIFAR form: a 3x3 stem without pooling, then eight basic blocks of two 3x3 convolutions."""
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
        name=RESNET18,
        family="resnet",
        layers=tuple(layers),
        layer_names=(*names, "classifier"),
        input=ImageInput(channels=3, height=image, width=image),
    )
