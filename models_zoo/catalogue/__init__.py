"""The catalogue of named models: sizes and published figures stand in `catalogue.toml`, as a Hugging Face config where
there is such a family, else as sizes for a function of `families`."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from models_zoo.families import FAMILIES
from models_zoo.hugging_face import config_model
from models_zoo.model import Model, TokenInput
from profiles.errors import InputError
from profiles.tables import read_tables

_ABOUT = ("aliases", "family", "global_batch", "published_parameters", "source")
"""Keys of an entry that are no sizes."""


@lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, Any]]:
    return read_tables(Path(__file__).with_name("catalogue.toml"))


def model_names() -> tuple[str, ...]:
    """Return the names of all zoo models, in the catalogue's order."""
    return tuple(_entries())


_TAILS = re.compile(r"(-(hf|base|instruct|chat|it|pt|bf16|8k|16e|128e))+$")
"""What a release's name says of its training or its file, not of its sizes."""


def zoo_name(reference: str) -> str | None:
    """Return the zoo model that `reference` names in any usual spelling, None where it is none.

    >>> zoo_name("meta-llama/Llama-3.1-8B-Instruct"), zoo_name("Qwen3_30B_A3B"), zoo_name("llama")
    ('llama3-8b', 'qwen3-30b-a3b', None)
    >>> zoo_name("GPT2-1.3B"), zoo_name("gpt2-13b"), zoo_name("Llama 3.1 70B")
    ('gpt2-1.3b', None, 'llama3-70b')
    """
    return _spellings().get(_plain(reference))


def _plain(reference: str) -> str:
    last = re.sub(r"[_ ]", "-", reference.strip().lower()).rsplit("/", 1)[-1]
    # The point of a size stays: 1.3b is not 13b.
    return re.sub(r"-|\.(?!\d+[bm](?![a-z0-9]))", "", _TAILS.sub("", last))


@lru_cache(maxsize=1)
def _spellings() -> dict[str, str]:
    names = {alias: name for name, entry in _entries().items() for alias in entry.get("aliases", ())}
    return {_plain(spelling): name for spelling, name in (names | {name: name for name in _entries()}).items()}


def near_names(name: str) -> str:
    """Return the names most like `name`, for a message; the first few where none is."""
    return ", ".join(get_close_matches(name, model_names(), n=5, cutoff=0.5) or model_names()[:5])


@lru_cache(maxsize=128)
def load_model(name: str) -> Model:
    """Return the zoo model called `name`. Raise InputError, with the nearest names, if there is none.

    >>> load_model("gpt2-1.3b").layers[0].vocab
    50257
    """
    name = zoo_name(name) or name
    entry = _entries().get(name)
    if entry is None:
        raise InputError(where="model", found=repr(name), expected=f"a zoo name such as {near_names(name)}")
    sizes: dict[str, Any] = {key: value for key, value in entry.items() if key not in _ABOUT}
    if "model_type" in entry:
        tokens = sizes.pop("seq_len")
        keys = {key: None if value == "null" else value for key, value in sizes.items()}
        model = config_model({"max_position_embeddings": tokens, **keys}, where="catalogue", name=name)
        model = replace(model, input=TokenInput(seq_len=tokens), kind="zoo", notes=())
    else:
        model = FAMILIES[entry["family"]](name, **sizes)
    return replace(
        model,
        global_batch=entry.get("global_batch"),
        published_parameters=entry.get("published_parameters"),
        source=entry["source"],
        tokens_from="as the catalogue has it" if model.seq_len else "",
    )
