"""The families that `families.toml` describes: what makes each differ, as a record that `described` builds by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from models_zoo.layers import Activation, Norm
from profiles.records import dataclass
from profiles.tables import read_tables

Flag = bool | str
"""True or false, or the key that says it: `attention_bias`; with `!` before it the key says the opposite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsFamily:
    """The keys of a family's mixture of experts, and which layers have one.

    A layer is sparse from `first_dense` on, in every `every`-th one counted from 1 (with `from_first` from 0), and not
    where `dense_layers` lists it; `kinds` is a key that lists "sparse" or "dense" for each layer and overrules these.
    Shared experts are as wide as `shared_hidden` says, or as `shared_count` routed ones (`always_shared`: one of them,
    whatever the config says).
    """

    count: str = "num_experts"
    top_k: str = "num_experts_per_tok"
    hidden: str = "moe_intermediate_size"
    shared_hidden: str | None = None
    shared_count: str | None = None
    always_shared: bool = False
    shared_gate: bool = False
    first_dense: str | None = None
    every: str | None = None
    from_first: bool = False
    dense_layers: str | None = None
    kinds: str | None = None
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsFamily:
    """Which layers slide where `layer_types` does not say: all but each `period`-th (`first`: counted from the first
    layer; `each`: these alone), none at period 1, all at period 0. `period_key` is a key that states the period, `flag`
    one without which none slides."""

    key: str = "sliding_window"
    period: int = 0
    first: bool = False
    each: bool = False
    period_key: str | None = None
    flag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of language models by what makes it differ; `defaults` are those of its class in transformers.

    `spelling` has what the class calls a usual key. `defaults.intermediate_size` missing: `times` the hidden size.
    `placement`, `parallel`, `shared_norm` and the norms are as in `models_zoo.layers.TransformerBlock`;
    `sandwich_flag` is a key without which blocks are pre-norm after all. `causal_key` says whether an encoder is
    causal. `rotary` is the share of a head that rotates, 0 without rotary positions; `rotary_dim_key` states
    dimensions instead. A table of learned positions has `position_rows` more rows than positions; `unused_rows` of the
    positions that a config states stand for none. `only` has the values that a key may have.
    """

    prefix: str
    defaults: Mapping[str, Any]
    spelling: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norm: Norm = "rmsnorm"
    norm_bias: Flag = False
    placement: Literal["pre", "post", "sandwich"] = "pre"
    parallel: Flag = False
    shared_norm: Flag = False
    sandwich_flag: str | None = None
    causal: bool = True
    causal_key: str | None = None
    qkv_bias: Flag = False
    output_bias: Flag = False
    feed_forward_bias: Flag = False
    gated: bool = True
    activation: Activation | None = None
    query_key_norm: Literal["none", "head", "full"] = "none"
    query_key_norm_flag: str | None = None
    one_key_value_head: str | None = None
    latent: bool = False
    rotary: float = 1.0
    rotary_dim_key: str | None = None
    times: int = 4
    times_key: str | None = None
    learned_positions: bool = False
    position_rows: int = 0
    unused_rows: int = 0
    token_types: bool = False
    embedding_norm: Norm | None = None
    head_norm: bool = True
    head_bias: Flag = False
    head_transform: bool = False
    dropout: str | None = None
    embedding_dropout: str | None = None
    windows: WindowsFamily | None = None
    experts: ExpertsFamily | None = None
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    remark: str = ""


def family_names() -> tuple[str, ...]:
    """Return the `model_type` of each family in the table, in its order."""
    return tuple(_tables())


@lru_cache(maxsize=1)
def _tables() -> dict[str, dict[str, Any]]:
    return read_tables(Path(__file__).with_name("families.toml"))


def family_prefix(name: str) -> str:
    """Return the prefix of the classes of the family called `name`."""
    return str(_whole(name)["prefix"])


@lru_cache(maxsize=256)
def read_family(name: str) -> Family:
    """Return the record of the family called `name`, which the table has."""
    stated = dict(_whole(name))
    unknown = stated.keys() - {each.name for each in fields(Family)}
    if unknown:
        raise ValueError(f"family {name}: found {', '.join(sorted(unknown))}, expected fields of a family")
    spelling = {
        key: (names,) if isinstance(names, str) else tuple(names) for key, names in stated.pop("spelling", {}).items()
    }
    windows, experts = stated.pop("windows", None), stated.pop("experts", None)
    only = {
        key: tuple(None if value == "null" else value for value in values)
        for key, values in stated.pop("only", {}).items()
    }
    stated["embedding_norm"] = stated.get("embedding_norm") or None
    return Family(
        **stated,
        spelling=spelling,
        only=only,
        windows=None if windows is None else WindowsFamily(**windows),
        experts=None if experts is None else ExpertsFamily(**experts),
    )


def _whole(name: str) -> dict[str, Any]:
    """The table's entry, over what it takes from the one that it is `like`: all but the defaults."""
    entry = _tables()[name]
    if "like" not in entry:
        return entry
    return {**_whole(entry["like"]), **{key: value for key, value in entry.items() if key != "like"}}
