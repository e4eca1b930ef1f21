"""What becomes of the keys of a config that make no layer: carried to launchers, without effect, noted, or unknown.

Every key that a family's reader asked for is mapped or refused there. Of the others none is dropped silently: what
changes values but neither time nor memory is said to, what would change them and is not priced is said so, and what
nobody knows is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from models_zoo.hugging_face.keys import Keys, describe
from profiles.tables import read_tables


def _caps(value: object) -> str | None:
    return f"scores capped at {describe(value)}: the pass over them is not priced"


def _stored(value: object) -> str | None:
    method = value.get("quant_method") if isinstance(value, dict) else None
    named = f" ({method})" if isinstance(method, str) and re.fullmatch(r"[\w.-]{1,40}", method) else ""
    return f"weights are priced in the training's type, not as the file holds them{named}"


def _ahead(value: object) -> str | None:
    return f"{describe(value)} multi-token prediction layer(s) are not priced" if value else None


NOTED: dict[str, Callable[[object], str | None]] = {
    "attn_logit_softcapping": _caps,
    "final_logit_softcapping": _caps,
    "quantization_config": _stored,
    "compression_config": _stored,
    "num_nextn_predict_layers": _ahead,
    "num_mtp_layers": _ahead,
    "mtp_num_layers": _ahead,
    "use_bidirectional_attention": lambda value: "attention is priced as causal" if value else None,
    "is_causal": lambda value: None if value else "attention is priced as the family's class has it",
    "attention_types": lambda _: "local attention is priced as full",
    "attn_config": lambda _: "priced as its class has it: ALiBi, as many key-value heads as heads",
    "no_rope_layers": lambda value: "rotary positions are priced in every layer" if value else None,
}
"""What is said of a key whose value the estimate leaves out; None where this value asks for nothing."""


def describe_fates(keys: Keys, *, dropped: bool) -> tuple[str, ...]:
    """Return a sentence for each key, or kind of key, that nobody asked `keys` for and that is no bookkeeping.

    `dropped`: the blocks have dropout, which then stands in attention too.
    """
    fates = _fates()
    left = [key for key in keys.values if keys.prefix + key not in keys.asked]
    said = [_noted(keys, key) for key in left]
    said += [] if dropped else [_random(keys, [key for key in left if key in fates["dropouts"]])]
    scaled = [
        key
        for key in left
        if key in fates["of_values"] - fates["carried"] and keys.values[key] not in (None, False, 1, 1.0)
    ]
    if scaled:
        said.append(f"{', '.join(scaled)}: other values, without effect on time and memory")
    parts = [key for key in left if key.endswith("_config") and isinstance(keys.values[key], dict) and key not in NOTED]
    if parts:
        said.append(f"{', '.join(parts)}: not priced")
    known = NOTED.keys() | set(parts) | frozenset().union(*fates.values())
    unknown = [key for key in left if key not in known and not key.startswith(("_", "unsloth"))]
    if unknown:
        shown = ", ".join(_with_near(key, keys) for key in unknown[:12]) + (
            f" and {len(unknown) - 12} more" if len(unknown) > 12 else ""
        )
        said.append(f"keys not understood, taken as without effect: {shown}")
    return tuple(each for each in said if each is not None)


@lru_cache(maxsize=1)
def _fates() -> dict[str, frozenset[str]]:
    tables = read_tables(Path(__file__).with_name("fates.toml"))
    return {name: frozenset(table["keys"].split()) for name, table in tables.items()}


def _with_near(key: str, keys: Keys) -> str:
    """The key, with one that is spelled much like it and that the config does not have."""
    if len(key) > 60 or not key.isprintable():
        return describe(key)
    missing = [
        name for name in (asked.removeprefix(keys.prefix) for asked in sorted(keys.asked)) if name not in keys.values
    ]
    near = get_close_matches(key, missing, n=1, cutoff=0.9)
    return f"{key} (is it {near[0]}?)" if near else key


def _noted(keys: Keys, key: str) -> str | None:
    value = keys.values[key]
    if key not in NOTED or value is None:
        return None
    sentence = NOTED[key](value)
    return None if sentence is None else f"{key}: {sentence}"


def _random(keys: Keys, names: Iterable[str]) -> str | None:
    """Dropout that the layers do not have: in attention it stands with the block's own."""
    stated = [name for name in names if keys.values[name] not in (None, 0, 0.0, False)]
    return f"{', '.join(stated)}: priced as 0" if stated else None
