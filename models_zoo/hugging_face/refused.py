"""Architectures that no family here reads, by name: what each is, and the known family that is nearest to it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from profiles.records import dataclass
from profiles.tables import read_tables

LIKE_ENOUGH = 0.7
"""From this share of like letters on a name tells the nearest family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why an architecture is refused, and the known family that is nearest to it."""

    why: str
    nearest: str


def refusal_of(name: str, known: Iterable[str]) -> Refusal | None:
    """Return why the `model_type` called `name` is refused; None where transformers has none of that name. `known` are
    the families that are read."""
    kinds, near = _tables()
    kind = kinds.get(name)
    if kind is None:
        return None
    return Refusal(why=kind["why"], nearest=near.get(name) or nearest_family(name, known) or kind["nearest"])


def nearest_family(name: str, known: Iterable[str]) -> str | None:
    """Return the family whose name is most like `name`, None where none is.

    >>> nearest_family("qwen3_vl_moe_text", ["llama", "qwen3", "qwen3_moe"]), nearest_family("t5", ["llama"])
    ('qwen3_moe', None)
    """
    stem = name.replace("-", "_")
    for part in ("_vl", "_text", "_omni", "_thinker"):
        stem = stem.replace(part, "")
    spelled = {family.replace("-", "_"): family for family in known}
    near = get_close_matches(stem, spelled, n=1, cutoff=LIKE_ENOUGH)
    return spelled[near[0]] if near else None


@lru_cache(maxsize=1)
def _tables() -> tuple[dict[str, Any], dict[str, str]]:
    tables = dict(read_tables(Path(__file__).with_name("refused.toml")))
    near = tables.pop("near")
    return {name: table for table in tables.values() for name in table["names"].split()}, near
