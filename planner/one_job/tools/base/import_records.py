"""What a reader of settings makes of them: options of `estimate`, the model, and what it could not follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Protocol

from estimator.frontends.load import load_any_model
from models_zoo.catalogue import load_model, model_names
from models_zoo.hugging_face import config_model
from models_zoo.model import Model
from models_zoo.user_code import NO_CODE, UserCode
from planner.shared.options.common import Launcher
from planner.shared.options.estimate import EstimateOptions
from profiles.records import dataclass

Stated = dict[str, Any]
"""Options of `estimate` by name: those that settings fix, and no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model and how to find it again: `reference`, which is what `MODEL` may be, or where nothing of that name is
    there yet the keys of a `config.json` that describes it."""

    model: Model
    reference: str | None = None
    config: Mapping[str, Any] | None = None


def load_named(reference: str, code: UserCode = NO_CODE) -> NamedModel:
    """Return the model that the user named; `code` is what of their own it may run. Raise InputError where there is
    none."""
    return NamedModel(model=load_any_model(reference, code), reference=reference)


def describe_model(config: Mapping[str, Any], *, where: str, name: str) -> NamedModel:
    """Return the zoo's model whose layers the keys of a `config.json` describe, so that a plan needs no file beside it;
    else the model that they make, called `name`. Raise InputError, naming `where`, for keys that make none."""
    described = config_model(config, where=where, name=name)
    same = next((zoo for zoo in map(load_model, model_names()) if zoo.layers == described.layers), None)
    return NamedModel(model=described, config=config) if same is None else NamedModel(model=same, reference=same.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Settings of a launcher in cellplan's words.

    `setting` names them in messages: a file, or the arguments. `options` are those of `estimate` that the settings fix,
    `words` what the settings call each. `devices` is the launcher's world size. `software` holds features in place of
    what the named software declares. `blocks` are transformer blocks of each chunk of layers, in their order (None:
    shared evenly). `shard` is the ranks that share a copy of the state, or `copies` how many there are, where it is not
    all ranks.
    """

    launcher: Launcher
    setting: str
    model: NamedModel
    options: Stated
    words: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None
    software: Mapping[str, Any] = field(default_factory=dict)
    blocks: tuple[int, ...] | None = None
    shard: int | None = None
    copies: int | None = None
    assumptions: tuple[str, ...] = ()


class Reader(Protocol):
    """Reads settings: a path or the settings themselves. `model` is what the user named, if anything; `options` what
    was given beside the settings."""

    def __call__(self, settings: str, *, model: str | None, options: EstimateOptions) -> Imported: ...


def not_understood(name: str, names: Iterable[str], *, shown: Callable[[str], str] = str) -> str:
    """A sentence about a setting that nobody knows, with the nearest name there is."""
    near = get_close_matches(name, list(names), n=1, cutoff=0.7)
    hint = f"; the nearest known is {shown(near[0])}" if near else ""
    return f"{shown(name)} is not understood, and not in the estimate{hint}"
