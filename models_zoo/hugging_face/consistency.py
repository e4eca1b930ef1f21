"""What a config says that no model can have: values of the wrong kind, and keys that contradict each other.

A family's reader checks what it asks for. This is for the rest, which a class of transformers or a launcher would
stumble over, and which an estimate must not pass over in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from models_zoo.hugging_face.chain import Chain
from models_zoo.hugging_face.keys import Keys, describe
from models_zoo.layers import Attention, Experts
from profiles.tables import read_tables

WIDEST_HEAD = 1024
"""Dimensions of an attention head, where the hidden size is no more. Published models have at most 512."""

MOST_BITS = 32
"""Of a weight that is stored narrower than it is trained."""


def check_consistency(keys: Keys, chain: Chain) -> None:
    """Raise InputError for the first value of `keys` that no model can have, or that contradicts another or the `chain`
    that the family's reader made of them."""
    apart = replace(keys, asked=set())  # To look at a key here is not to understand it.
    _check_kinds(apart, asked=keys.asked)
    _check_layers(apart, len(chain.blocks))
    for block in dict.fromkeys(chain.blocks):
        if isinstance(block.attention, Attention):
            _check_attention(apart, block.attention, block.hidden)
        if isinstance(block.feed_forward, Experts):
            _check_groups(apart, block.feed_forward)
    rotary = max(
        (block.attention.rotary_dim for block in chain.blocks if isinstance(block.attention, Attention)), default=0
    )
    _check_scaling(apart, "rope_scaling", rotary)
    _check_scaling(apart, "rope_parameters", rotary)
    _check_storage(apart)


@lru_cache(maxsize=1)
def _kinds() -> dict[str, dict[str, frozenset[str]]]:
    tables = read_tables(Path(__file__).with_name("kinds.toml"))
    return {name: {key: frozenset(words.split()) for key, words in table.items()} for name, table in tables.items()}


def _check_kinds(keys: Keys, *, asked: set[str]) -> None:
    """Each key that has a kind, but for those that the family's reader `asked` for."""
    kinds = {name: table.get("keys", frozenset()) for name, table in _kinds().items()}
    for key, value in keys.values.items():
        if value is None or keys.prefix + key in asked:
            continue
        if key in kinds["counts"] or key in kinds["sizes"]:
            keys.size(key, least=int(key in kinds["sizes"]))
        elif key in kinds["numbers"]:
            keys.number(key)
        elif key in kinds["positive"]:
            keys.number(key, above=True)
        elif key in kinds["shares"]:
            keys.share(key, 0.0)
        elif key in kinds["flags"]:
            keys.flag(key, False)
        elif key in kinds["words"]:
            keys.word(key, "")


def _check_layers(keys: Keys, layers: int) -> None:
    """Lists with an entry for each layer, lists of layers, and counts of them."""
    kinds = _kinds()
    for key in kinds["each_layer"]["keys"] & keys.values.keys():
        entries = keys.values[key]
        if entries is None or entries == []:
            continue
        if not isinstance(entries, list) or not all(isinstance(entry, str | int) for entry in entries):
            raise keys.wrong(key, describe(entries), f"{layers} entries, one for each layer")
        if len(entries) != layers:
            raise keys.wrong(key, f"{len(entries)} entries", f"{layers} entries, one for each layer")
        unknown = [entry for entry in entries if entry not in kinds["known"]["layers"]]
        if key == "layer_types" and unknown:
            raise keys.wrong(key, describe(unknown[0]), f"entries of {', '.join(sorted(kinds['known']['layers']))}")
    for key in kinds["layers"]["keys"] & keys.values.keys():
        numbers = keys.sizes(key)
        if numbers and max(numbers) >= layers:
            raise keys.wrong(key, max(numbers), f"numbers of layers, from 0 to {layers - 1}")
    for key in ("first_k_dense_replace", "num_nextn_predict_layers"):
        count = keys.size(key, 0, least=0)
        if count > layers:
            raise keys.wrong(key, count, f"at most {layers}, the number of layers")


def _check_attention(keys: Keys, attention: Attention, hidden: int) -> None:
    dim, widest = attention.head_dim, max(WIDEST_HEAD, hidden)
    if dim > widest:
        raise keys.wrong("head_dim", dim, f"at most {widest} dimensions of a head")
    if dim > 4 and dim % 2 and attention.rotary_dim == dim:
        raise keys.wrong("head_dim", dim, "an even number: rotary positions turn pairs of dimensions")
    groups = keys.size("num_key_value_heads", 1)
    if attention.heads % groups:
        raise keys.wrong("num_key_value_heads", groups, f"a divisor of the {attention.heads} attention heads")


def _check_groups(keys: Keys, experts: Experts) -> None:
    """Groups of experts of which a router chooses some before it chooses experts."""
    groups = keys.size("n_group", 1, least=0)
    if groups <= 1:
        return
    chosen = keys.size("topk_group", groups)
    if experts.count % groups:
        raise keys.wrong("n_group", groups, f"a divisor of the {experts.count} experts")
    if chosen > groups:
        raise keys.wrong("topk_group", chosen, f"at most {groups}, the number of groups (n_group)")
    reached = chosen * experts.count // groups
    if experts.top_k > reached:
        found = f"{chosen} of {groups} groups, which have {reached} experts"
        raise keys.wrong("topk_group", found, f"groups with the {experts.top_k} experts that each token visits")


def _check_scaling(keys: Keys, key: str, rotary_dim: int) -> None:
    """Settings of rotary positions, which may stand apart for each kind of layer."""
    part = keys.part(key)
    inner = [name for name, value in part.values.items() if isinstance(value, Mapping)]
    for settings in [part.part(name) for name in inner] or [part]:
        _check_rope(settings, rotary_dim)


def _check_rope(part: Keys, rotary_dim: int) -> None:
    table = _kinds()
    # Transformers writes a rope_type beside the older type, which may then be another.
    for name in ("rope_type", "type"):
        kind, kinds = part.values.get(name), table["known"]["rope"]
        if kind is not None and (not isinstance(kind, str) or kind not in kinds):
            raise part.wrong(name, describe(kind), f"one of {', '.join(sorted(kinds))}")
        if kind in table["stretched"]["rope"] and part.values.get("factor") is None:
            raise part.wrong("factor", "nothing", f"a number above 0, which {kind} stretches positions by")
    for key in ("factor", "rope_theta", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        part.number(key, above=True)
    for key in ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        part.number(key)
    low, high = part.number("low_freq_factor"), part.number("high_freq_factor")
    if low is not None and high is not None and high <= low:
        raise part.wrong("high_freq_factor", describe(high), f"more than the low_freq_factor {describe(low)}")
    for key in ("short_factor", "long_factor"):
        factors = part.values.get(key)
        if factors is None:
            continue
        if not isinstance(factors, list) or not all(_is_positive(factor) for factor in factors):
            raise part.wrong(key, describe(factors), "a list of numbers above 0")
        if rotary_dim and len(factors) != rotary_dim // 2:
            expected = f"{rotary_dim // 2} numbers, one for each pair of a head's {rotary_dim} dimensions"
            raise part.wrong(key, f"{len(factors)} numbers", expected)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and isfinite(value)


def _check_storage(keys: Keys) -> None:
    """How the file's weights are held."""
    stored = _kinds()["known"]
    for key in ("quantization_config", "compression_config"):
        part = keys.part(key)
        method = part.values.get("quant_method")
        if method is not None and (not isinstance(method, str) or method.lower() not in stored["methods"]):
            raise part.wrong("quant_method", describe(method), f"one of {', '.join(sorted(stored['methods']))}")
        bits = part.number("bits", above=True)
        if bits is not None and bits > MOST_BITS:
            raise part.wrong("bits", describe(bits), f"at most {MOST_BITS}")
    for key in ("torch_dtype", "dtype"):
        named = keys.values.get(key)
        for word in named.values() if isinstance(named, Mapping) else [named]:
            known = word is None or (isinstance(word, str) and word.removeprefix("torch.") in stored["dtypes"])
            if not known:
                raise keys.wrong(key, describe(word), f"one of {', '.join(sorted(stored['dtypes']))}")
