"""The catalogue of named models: sizes and published figures stand in `catalogue.toml`, as a Hugging Face config where
there is such a family, else as sizes for a function of `families`."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from models_zoo.families import FAMILIES
from models_zoo.hugging_face import config_model
from models_zoo.model import Model, TokenInput
from profiles.errors import InputError

_ABOUT = ("family", "global_batch", "published_parameters", "source")
"""Keys of an entry that are no sizes."""


@lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))


def model_names() -> tuple[str, ...]:
    """Return the names of all zoo models, in the catalogue's order."""
    return tuple(_entries())


def near_names(name: str) -> str:
    """Return the names most like `name`, for a message; the first few where none is."""
    return ", ".join(get_close_matches(name, model_names(), n=5, cutoff=0.5) or model_names()[:5])


@lru_cache(maxsize=128)
def load_model(name: str) -> Model:
    """Return the zoo model called `name`. Raise InputError, with the nearest names, if there is none.

    >>> load_model("gpt2-1.3b").layers[0].vocab
    50257
    """
    entry = _entries().get(name)
    if entry is None:
        raise InputError(where="model", found=repr(name), expected=f"a zoo name such as {near_names(name)}")
    sizes = {key: value for key, value in entry.items() if key not in _ABOUT}
    if "model_type" in entry:
        tokens = sizes.pop("seq_len")
        model = config_model({"max_position_embeddings": tokens, **sizes}, where="catalogue", name=name)
        model = replace(model, input=TokenInput(seq_len=tokens), kind="zoo")
    else:
        model = FAMILIES[entry["family"]](name, **sizes)
    return replace(
        model,
        global_batch=entry.get("global_batch"),
        published_parameters=entry.get("published_parameters"),
        source=entry["source"],
    )
