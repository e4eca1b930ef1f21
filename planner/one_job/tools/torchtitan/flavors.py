"""The models that torchtitan knows by name and flavor (models.toml), read by name and found by their sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from models_zoo.hugging_face import config_model
from planner.one_job.tools.base.decoder import Decoder, decoder_of, is_plain_llama
from planner.one_job.tools.base.import_records import NamedModel, load_named
from planner.one_job.tools.base.settings import load_data

Release = Literal["0.2", "0.3"]


def named_flavor(name: str, flavor: str, *, where: str) -> NamedModel | None:
    """Return a flavor's model, by its zoo name or the keys of a `config.json`; None where there is no such. `where`
    names the settings in messages."""
    plain = re.sub(r"_(flex|varlen)(_attn)?$", "", flavor)
    entry = load_data("torchtitan/models.toml").get(name, {}).get(plain)
    if entry is None:
        return None
    if "zoo" in entry:
        return load_named(entry["zoo"])
    config = _config(entry)
    return NamedModel(model=config_model(config, where=where, name=plain), config=config)


def flavor_names() -> list[str]:
    """Return the names and flavors there are, to be listed."""
    return [f"{name} {flavor}" for name, flavors in load_data("torchtitan/models.toml").items() for flavor in flavors]


def find_flavor(decoder: Decoder, release: Release) -> tuple[str, str] | None:
    """Return the name and flavor of the model that has these sizes in a release; None where none has."""
    if not (is_plain_llama(decoder, query_key_norm=True) or decoder.experts):
        return None
    sizes = _sizes(decoder)
    fitting = (flavor for flavor, releases, others in _flavors() if release in releases and others == sizes)
    return next(fitting, None)


@cache
def _flavors() -> tuple[tuple[tuple[str, str], tuple[Release, ...], tuple[object, ...]], ...]:
    return tuple(_read_flavors())


def _read_flavors() -> Iterator[tuple[tuple[str, str], tuple[Release, ...], tuple[object, ...]]]:
    """Each flavor's names, the releases that plans are written for, and its sizes."""
    for name, flavors in load_data("torchtitan/models.toml").items():
        for flavor, entry in flavors.items():
            named = named_flavor(name, flavor, where=f"{name} {flavor}")
            assert named is not None, "the table's own"
            releases = tuple(entry.get("releases", ("0.2", "0.3")))
            yield (name, flavor), releases, _sizes(decoder_of(named.model, "torchtitan"))


def _config(entry: dict[str, Any]) -> dict[str, Any]:
    """The keys of an entry's `config.json`; those listed under `null` are null there."""
    keys = {key: value for key, value in entry.items() if key not in ("null", "releases")}
    return keys | dict.fromkeys(entry.get("null", ()))


def _sizes(decoder: Decoder) -> tuple[object, ...]:
    """What tells flavors apart."""
    experts = decoder.experts
    return (
        *(decoder.blocks, decoder.hidden, decoder.heads, decoder.kv_heads, decoder.head_dim),
        *(decoder.feed_forward_hidden, decoder.vocab, decoder.tied, decoder.query_key_norm, decoder.latent),
        decoder.expert_blocks.count(False),
        experts and (experts.count, experts.top_k, experts.expert.hidden, experts.shared_hidden),
    )
